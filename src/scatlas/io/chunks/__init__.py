"""Decodes the chunks of one array to numbers; knows no AnnData."""
