"""Gram matrix of row blocks on the GPU: pairs of stored values, or BLAS on dense rows.

No sum depends on the order in which threads finish: an entry is summed by one warp per run of its
gene's cells and over runs in order (pairs), or by a dgemm of a fixed shape (dense rows). The last
bits depend on where blocks begin.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import cupy as cp
import numpy as np
from cupyx.scipy import sparse

from scatlas.kernels.build import cuda
from scatlas.kernels.linalg.gram_cpu import check_genes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scatlas.arrays.cupy_arrays import Block

# A pair of stored values costs as much as this many multiply-adds of dgemm: about 31 T/s of these
# against 450 G/s, counted in squares (twice the pairs).
_PAIR_COST = 40.0
# Values per part, which are sorted by gene: with their indices they stay in L2.
_PART_VALUES = 2**22
# Genes whose products a warp keeps in shared memory: 20 kB, so that 11 warps share a processor.
_PANEL = 2560
# Genes that a warp counts in shared memory.
_COUNTED = 8192
# Maximum number of warps that count, and of their counts in all.
_CHUNKS, _COUNTS = 2048, 2**23
# Minimum number of values of a gene per run (one warp), and maximum bytes of the products of runs.
_RUN = 1024
_RUN_BYTES = 2**26
# Bytes of dense rows at a time, genes per dgemm, and runs of rows in sums of columns.
_DENSE_BYTES = 2**26
_DENSE_PANEL = 2560
_COLUMN_RUNS = 64


def add_block(
    x: Block,
    sums: cp.ndarray,
    upper: cp.ndarray,
    *,
    panel: int | None = None,  # noqa: ARG001
    threads: int = 1,  # noqa: ARG001
    run: Callable[..., Iterable[Any]] = map,  # noqa: ARG001
) -> None:
    """As on the CPU, asynchronous on the current stream, with the block as one panel. Rows are
    added in parts of a fixed size, whatever memory is free: the last bits depend on it.
    """
    n_rows, n_genes = x.shape
    check_genes(n_genes)
    if n_rows == 0 or n_genes == 0:
        return
    rows_at_once = max(64, _DENSE_BYTES // (8 * n_genes))
    bounds = [*range(0, n_rows, rows_at_once), n_rows]
    if not sparse.issparse(x):
        for a, b in pairwise(bounds):
            _add_dense(cp.ascontiguousarray(x[a:b], dtype=cp.float64), sums, upper)
        return
    if x.data.size == 0:
        return
    indptr = cuda.row_offsets(x)
    squares, is_sorted, cuts = _inspect(x.indices, indptr)
    if is_sorted and _PAIR_COST * squares < float(n_rows) * n_genes * n_genes:
        for (a, first), (b, end) in pairwise(cuts):
            part = slice(first, end)
            _add_pairs(x.data[part], x.indices[part], indptr[a : b + 1], sums, upper)
        return
    name = "scatter" if is_sorted else "scatter_any"
    scatter = cuda.kernel("linalg/gram", name, x.data.dtype, x.indices.dtype)
    for a, b in pairwise(bounds):
        rows = cp.zeros((b - a, n_genes))
        grid = cuda.grid_of_warps(b - a) if is_sorted else cuda.grid_of_threads(b - a)
        pointers = indptr[a : b + 1]
        scatter(*grid, (x.data, x.indices, pointers, np.int64(b - a), np.int64(n_genes), rows))
        _add_dense(rows, sums, upper)


def _inspect(indices: cp.ndarray, indptr: cp.ndarray) -> tuple[int, bool, list[tuple[int, int]]]:
    """Sum of the squared values per row, whether rows are sorted and without repeats, and where
    parts begin and end: rows and positions of the first value.
    """
    n_rows = indptr.size - 1
    n_cuts = indices.size // _PART_VALUES
    info = cp.zeros((2 + n_cuts, 2), cp.int64)
    inspect = cuda.kernel("linalg/gram", "inspect", indices.dtype)
    (grid, *_), block = cuda.grid_of_warps(n_rows)
    step = np.int64(_PART_VALUES)
    inspect((min(grid, 1056),), block, (indices, indptr, np.int64(n_rows), step, info))
    (squares, unsorted), (origin, end), *cuts = info.get().tolist()
    cuts = [(0, origin), *((row, at) for row, at in cuts if row), (n_rows, end)]
    kept = [cuts[0]]
    for row, at in cuts[1:]:
        if at > kept[-1][1]:
            kept.append((row, at))
    return squares, not unsorted, kept


def _add_pairs(
    data: cp.ndarray,
    indices: cp.ndarray,
    indptr: cp.ndarray,
    sums: cp.ndarray,
    upper: cp.ndarray,
) -> None:
    """Add the rows of a part, whose first value is the first of `data`."""
    n_rows, n_values, n_genes = indptr.size - 1, data.size, sums.size
    index = indices.dtype
    n_chunks = max(1, min(n_rows, _CHUNKS, max(64, _COUNTS // n_genes)))
    each = -(-n_rows // n_chunks)
    n_chunks = -(-n_rows // each)
    width, panels = _panels(n_genes, _COUNTED)
    counts = cp.empty((n_chunks, n_genes), cp.uint32)
    rows = (indices, indptr, np.int64(n_rows), np.int64(each), np.int32(n_genes), np.int32(width))
    grid, warp = (n_chunks, panels), (32,)
    cuda.kernel("linalg/gram", "count", index)(grid, warp, (*rows, counts), shared_mem=4 * width)

    totals = cp.empty(n_genes, cp.int64)
    before = cuda.kernel("linalg/gram", "before")
    before((-(-n_genes // 32),), (32, 32), (counts, np.int32(n_chunks), np.int32(n_genes), totals))
    run = max(_RUN, -(-8 * n_values * n_genes // _RUN_BYTES))
    first, tasks = cp.empty(n_genes + 1, cp.int64), cp.empty(n_genes + 1, cp.int64)
    starts = cuda.kernel("linalg/gram", "starts")
    starts((1,), (1024,), (totals, np.int32(n_genes), np.int64(run), first, tasks))
    entries = cp.empty(n_values, cp.uint64)
    by_gene = cuda.kernel("linalg/gram", "by_gene", index)
    by_gene(grid, warp, (*rows, counts, first, entries), shared_mem=4 * width)

    # Upper bound: a task per gene, and one per full run of values.
    n_more = n_values // run
    more, more_sums = cp.empty((n_more, n_genes)), cp.empty(n_more)
    width, panels = _panels(n_genes, _PANEL)
    sizes = (np.int32(n_genes), np.int64(run), np.int32(width))
    args = (data, indices, entries, first, tasks, *sizes, sums, upper, more, more_sums)
    pairs = cuda.kernel("linalg/gram", "pairs", data.dtype, index)
    pairs((n_genes + n_more, panels), warp, args, shared_mem=8 * width)
    if n_more:
        further = cuda.kernel("linalg/gram", "further")
        grid = (n_genes, -(-n_genes // cuda.THREADS))
        further(grid, (cuda.THREADS,), (tasks, np.int32(n_genes), more, more_sums, sums, upper))


def _panels(n_genes: int, max_genes: int) -> tuple[int, int]:
    """Genes of a panel, and how many panels there are."""
    n = -(-n_genes // max_genes)
    return -(-n_genes // n), n


def _add_dense(rows: cp.ndarray, sums: cp.ndarray, upper: cp.ndarray) -> None:
    """``upper += rows.T @ rows`` in place, by panels that lie on or above the diagonal."""
    n_rows, n_genes = rows.shape
    each = -(-n_rows // _COLUMN_RUNS)
    n_parts = -(-n_rows // each)
    parts = cp.empty((n_parts, n_genes))
    grid = -(-n_genes // cuda.THREADS)
    genes, threads = np.int32(n_genes), (cuda.THREADS,)
    column_sums = cuda.kernel("linalg/gram", "column_sums")
    column_sums((grid, n_parts), threads, (rows, np.int64(n_rows), genes, np.int64(each), parts))
    cuda.kernel("linalg/gram", "add_parts")(
        (grid,), threads, (parts, np.int32(n_parts), genes, sums)
    )
    for lo in range(0, n_genes, _DENSE_PANEL):
        _dgemm(rows, upper, lo, min(lo + _DENSE_PANEL, n_genes))


def _dgemm(rows: cp.ndarray, upper: cp.ndarray, lo: int, hi: int) -> None:
    """``upper[lo:hi, lo:] += rows[:, lo:hi].T @ rows[:, lo:]``."""
    # CuPy's functions would copy such parts of matrices.
    from cupy.cuda import cublas, device

    n_rows, n_genes = rows.shape
    one = np.ones(1)
    handle = device.get_cublas_handle()
    mode = cublas.getPointerMode(handle)
    cublas.setPointerMode(handle, cublas.CUBLAS_POINTER_MODE_HOST)
    from_rows = rows.data.ptr + 8 * lo
    to_upper = upper.data.ptr + 8 * (lo * n_genes + lo)
    try:
        # Fortran reads row-major matrices as their transposes.
        cublas.dgemm(
            *(handle, cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_T, n_genes - lo, hi - lo, n_rows),
            *(one.ctypes.data, from_rows, n_genes, from_rows, n_genes),
            *(one.ctypes.data, to_upper, n_genes),
        )
    finally:
        cublas.setPointerMode(handle, mode)


def mirror(upper: cp.ndarray) -> None:
    n = upper.shape[0]
    tiles = -(-n // 32)
    if tiles:
        cuda.kernel("linalg/gram", "mirror")((tiles, tiles), (32, 32), (upper, np.int32(n)))
