"""The bytes of one array, chunk by chunk, as numbers; knows no AnnData."""
