"""Numerics of one row block: arrays in, arrays out; no AnnData, no Dask, no files."""

from __future__ import annotations

import numpy as np

# What counts are stored as, the narrowest first.
COUNT_DTYPES = (np.uint8, np.uint16, np.uint32)


def gene_dtype(n_genes: int) -> np.dtype:
    """Smallest dtype of the gene indices of counts in memory."""
    return np.dtype(np.uint16 if n_genes <= 2**16 else np.int32)
