"""Random subsampling of the counts of one block on the GPU: the same counts as on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy as cp
import numpy as np
from cupyx.scipy import sparse

from scatlas.arrays import cupy_arrays
from scatlas.kernels.build import cuda
from scatlas.kernels.counts.downsample_cpu import sort_genes

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from scatlas.arrays.cupy_arrays import Block


def draw_counts(
    x: Block, cells: Any, targets: Any, *, seed: int, replace: bool, dtype: DTypeLike
) -> Block:
    """As on the CPU: the same counts."""
    n_rows, n_genes = map(int, x.shape)
    values = x.data if sparse.issparse(x) else x
    out = cp.empty(values.shape, dtype)
    ends = cp.empty(values.size, cp.uint64) if replace else cuda.NULL
    given = (
        np.int64(n_rows),
        *([] if sparse.issparse(x) else [np.int64(n_genes)]),
        cp.asarray(cells, dtype=cp.int64),
        cp.asarray(targets, dtype=cp.int64),
        np.uint64(seed),
        ends,
        out,
    )
    threads = cuda.grid_of_threads(n_rows)
    if not sparse.issparse(x):
        run = cuda.kernel("counts/downsample", "draw_dense", x.dtype, out.dtype)
        run(*threads, (x, *cuda.strides(x), *given))
        return out
    offsets = cuda.row_offsets(x)
    values, genes = sort_genes(values, x.indices, offsets, n_genes, cp)
    run = cuda.kernel("counts/downsample", "draw_csr", values.dtype, out.dtype)
    run(*threads, (values, offsets, *given))
    kept = out != 0
    before = cp.concatenate([cp.zeros(1, cp.int64), cp.cumsum(kept, dtype=cp.int64)])
    indptr = before[offsets].astype(x.indptr.dtype)
    return cupy_arrays.csr(out[kept], genes[kept], indptr, n_genes)
