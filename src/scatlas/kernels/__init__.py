"""Numerics of one row block: arrays in, arrays out; no AnnData, no Dask, no files."""

from __future__ import annotations

import numpy as np

# What counts are stored as, the narrowest first.
COUNT_DTYPES = (np.uint8, np.uint16, np.uint32)
