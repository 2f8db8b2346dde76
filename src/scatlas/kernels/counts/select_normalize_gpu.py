"""Cutting cells and genes out of one block on the GPU and log-normalising them, in one sweep."""

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


def select_and_log_normalize(x: Block, scales: Any, place: Any) -> Block:
    """As :func:`~scatlas.kernels.counts.select_normalize_cpu.select_and_log_normalize`, on the
    GPU.

    The same bits. A pass over the indices counts what stays, a second one writes it.
    """
    place = cp.asnumpy(place)
    if scales.shape != x.shape[:1] or place.shape != x.shape[1:]:
        msg = f"{scales.size} scales and {place.size} genes for a block of {x.shape}"
        raise ValueError(msg)
    rows = cp.asarray(np.flatnonzero(~np.isnan(cp.asnumpy(scales))))
    scales = cuda.vector(scales)
    wanted = place >= 0
    shape = rows.size, np.count_nonzero(wanted)
    dtype = scaled_dtype(x.dtype)
    if not sparse.issparse(x):
        index = np.empty(shape[1], np.int64)
        index[place[wanted]] = np.flatnonzero(wanted)
        out = cp.empty(shape, dtype)
        take_dense(x, rows, cp.asarray(index), scales, out)
        log1p_into(out, out)
        return out
    counted = count_genes(x, place, rows, shape[0])
    n_most = x.data.size
    if n_most > _INT32:  # only then does it matter how many values lie in the kept cells
        n_most = int((x.indptr[rows + 1] - x.indptr[rows]).sum().get())
    width = index_dtype(n_most, shape[1])
    data = cp.empty(counted.n_values, dtype)
    indices = cp.empty(counted.n_values, width)
    data, indices = take_genes(x, counted, data, indices, scales)
    log1p_into(data, data)
    return csr(data, indices, counted.indptr.astype(width), shape[1])
