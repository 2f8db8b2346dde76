"""Numerics of one row block: arrays in, arrays out; no AnnData, no Dask, no files."""
