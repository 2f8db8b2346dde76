"""Numbers as Zarr v3 arrays, front to back and to the same bytes on every run."""
