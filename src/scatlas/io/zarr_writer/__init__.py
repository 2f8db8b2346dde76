"""Writes Zarr v3 arrays and AnnData elements with the same bytes on every run."""
