"""One row block on the GPU with its genes scaled."""

from __future__ import annotations

from typing import Any

import cupy as cp
import numpy as np
from cupyx.scipy import sparse

from scatlas.arrays.cupy_arrays import csr
from scatlas.kernels.build import cuda


def scale(
    x: cp.ndarray | sparse.csr_matrix,
    mean: Any,
    sd: Any,
    max_value: float | None,
    rows: Any = None,
    *,
    dtype: Any,
) -> cp.ndarray | sparse.csr_matrix:
    """As on the CPU: the same bits."""
    n_rows, n_genes = map(np.int64, x.shape)
    high = np.float64(np.inf if max_value is None else max_value)
    low = np.float64(-np.inf) if mean is None else -high
    dtype = np.dtype(dtype)
    sd = cuda.as_float64(sd)
    mean = None if mean is None else cuda.as_float64(mean)
    mask = cuda.NULL if rows is None else cp.ascontiguousarray(cp.asarray(rows, dtype=bool))
    warps = cuda.grid_of_warps(int(n_rows))
    if not sparse.issparse(x):
        out = cp.empty(x.shape, dtype)
        run = cuda.kernel("linalg/scale", "scale_dense", x.dtype, dtype)
        centre = cuda.NULL if mean is None else mean
        run(*warps, (x, *cuda.strides(x), n_rows, n_genes, centre, sd, low, high, mask, out))
        return out
    pointers = cuda.row_offsets(x)
    types = x.dtype, x.indices.dtype, dtype
    block = x.data, x.indices, pointers, n_rows
    if mean is None:
        data = cp.empty(x.data.shape, dtype)
        cuda.kernel("linalg/scale", "scale_csr", *types)(
            *warps, (*block, sd, low, high, mask, data)
        )
        # Copies of the index arrays, so that an edit in place does not change the source block.
        return csr(data, x.indices.copy(), x.indptr.copy(), x.shape[1])
    out = cp.empty(x.shape, dtype)
    zeros = -mean / sd
    zeros = cp.where(zeros > high, high, cp.where(zeros < low, low, zeros)).astype(dtype)
    run = cuda.kernel("linalg/scale", "scale_csr_to_dense", *types)
    run(*warps, (*block, n_genes, mean, sd, low, high, mask, zeros, out))
    return out


def scale_stored_values(
    x: sparse.csr_matrix, mean: Any, sd: Any, zeros: Any, bounds: tuple[float, float]
) -> sparse.csr_matrix:
    """As on the CPU: the same bits."""
    data = cp.empty(x.data.shape, cp.float32)
    n = np.int64(data.size)
    low, high = map(np.float64, bounds)
    run = cuda.kernel("linalg/scale", "shift", x.dtype, x.indices.dtype)
    per_gene = cuda.as_float64(mean), cuda.as_float64(sd), cuda.as_float64(zeros)
    run(*cuda.grid_of_threads(int(n)), (x.data, x.indices, n, *per_gene, low, high, data))
    return csr(data, x.indices.copy(), x.indptr.copy(), x.shape[1])
