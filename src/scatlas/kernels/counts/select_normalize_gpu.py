"""Selection of cells and genes of one block and log-normalisation, in one sweep on the GPU."""

from __future__ import annotations

from typing import Any

import cupy as cp
import numpy as np
from cupyx.scipy import sparse

from scatlas.arrays.cupy_arrays import Block, csr
from scatlas.kernels.build import cuda
from scatlas.kernels.counts.normalize_cpu import scaled_dtype
from scatlas.kernels.counts.normalize_gpu import log1p_into
from scatlas.kernels.counts.select_cpu import index_dtype
from scatlas.kernels.counts.select_gpu import count_genes, take_dense, take_genes

_INT32 = np.iinfo(np.int32).max


def select_and_log_normalize(x: Block, scales: Any, new_column: Any) -> Block:
    """As on the CPU: the same bits. One pass over the indices counts the selected values, another
    writes them.
    """
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
