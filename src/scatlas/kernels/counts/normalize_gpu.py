"""Elementwise operations on one block on the GPU: scaling, log(1 + x); both of selected genes.

The bits are the CPU's: same operations, same order, no fused multiply-adds.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import cupy as cp
import numpy as np
from cupyx.scipy import sparse

from scatlas.arrays.cupy_arrays import csr
from scatlas.kernels.build import cuda
from scatlas.kernels.counts.normalize_cpu import logged_dtype, scaled_dtype, with_data
from scatlas.kernels.counts.select_cpu import index_dtype
from scatlas.kernels.counts.select_gpu import count_genes, take_dense, take_genes

if TYPE_CHECKING:
    from scatlas.arrays.cupy_arrays import Block

_INT32 = np.iinfo(np.int32).max


def scale_rows(x: Block, factors: Any) -> Block:
    factors = cuda.as_float64(factors)
    if factors.shape != x.shape[:1]:
        raise ValueError(f"{factors.size} factors for {x.shape[0]} cells")
    dtype = scaled_dtype(x.dtype)
    n_rows, n_genes = map(np.int64, x.shape)
    if not sparse.issparse(x):
        out = cp.empty(x.shape, dtype)
        run = cuda.kernel("counts/normalize", "scale_dense", x.dtype, dtype)
        run(*cuda.grid_of_warps(int(n_rows)), (x, *cuda.strides(x), factors, n_rows, n_genes, out))
        return out
    out = cp.empty(x.data.shape, dtype)
    if x.format == "csr":
        pointers = cuda.row_offsets(x)
        run = cuda.kernel("counts/normalize", "scale_csr", x.dtype, dtype)
        run(*cuda.grid_of_warps(int(n_rows)), (x.data, pointers, factors, n_rows, out))
    else:
        run = cuda.kernel("counts/normalize", "scale_csc", x.dtype, x.indices.dtype, dtype)
        n = np.int64(x.data.size)
        run(*cuda.grid_of_threads(int(n)), (x.data, x.indices, factors, n, out))
    return with_data(x, out)


def log1p(x: Block, base: float | None = None) -> Block:
    values = x.data if sparse.issparse(x) else cp.ascontiguousarray(x)
    out = cp.empty(values.shape, logged_dtype(values.dtype))
    log1p_into(values, out, base)
    return with_data(x, out) if sparse.issparse(x) else out


def log1p_into(values: cp.ndarray, out: cp.ndarray, base: float | None = None) -> None:
    """Write log(1 + x) of contiguous `values` to `out`, which may be the same array."""
    log_base = np.float64(1.0 if base is None else math.log(base))
    run = cuda.kernel("counts/normalize", "log1p_flat", values.dtype, out.dtype)
    n = np.int64(values.size)
    run(*cuda.grid_of_threads(int(n)), (values, n, log_base, out))


def select_and_log_normalize(x: Block, scales: Any, new_column: Any) -> Block:
    """As on the CPU, to the same bits: one pass counts the selected values, another writes them."""
    new_column = cp.asnumpy(new_column)
    if scales.shape != x.shape[:1] or new_column.shape != x.shape[1:]:
        msg = f"{scales.size} scales and {new_column.size} genes for a block of {x.shape}"
        raise ValueError(msg)
    rows = cp.asarray(np.flatnonzero(~np.isnan(cp.asnumpy(scales))))
    scales = cuda.as_float64(scales)
    wanted = new_column >= 0
    shape = rows.size, int(np.count_nonzero(wanted))
    dtype = scaled_dtype(x.dtype)
    if not sparse.issparse(x):
        index = np.empty(shape[1], np.int64)
        index[new_column[wanted]] = np.flatnonzero(wanted)
        out = cp.empty(shape, dtype)
        take_dense(x, rows, cp.asarray(index), scales, out)
        log1p_into(out, out)
        return out
    counted = count_genes(x, new_column, rows, shape[0])
    max_values = x.data.size
    if max_values > _INT32:  # else the number of values in the kept cells does not matter
        max_values = int((x.indptr[rows + 1] - x.indptr[rows]).sum().get())
    width = index_dtype(max_values, shape[1])
    data = cp.empty(counted.n_values, dtype)
    indices = cp.empty(counted.n_values, width)
    data, indices = take_genes(x, counted, data, indices, scales)
    log1p_into(data, data)
    return csr(data, indices, counted.indptr.astype(width), shape[1])
