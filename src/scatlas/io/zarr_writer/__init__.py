"""Writes Zarr v3 arrays and AnnData elements with the same bytes on every run.

zarrs does not replace it: it writes the same arrays at 0.44 to 0.49 of this speed
(`bench/results/readers-zarrs-2026-11-24.txt`), and this writer appends in bounded memory.
"""
