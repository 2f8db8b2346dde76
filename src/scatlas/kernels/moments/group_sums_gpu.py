"""Sums, sums of squares and nonzero values per group of cells and gene, added in place on the GPU:
integers in any order, the floats of a group in that of its cells, to the CPU's bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy as cp
import numpy as np

from scatlas.kernels.build import cuda
from scatlas.kernels.moments.group_sums_cpu import SumKinds, Sums
from scatlas.kernels.moments.pairs_cpu import local_groups, means_and_deviations

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from scatlas.arrays.cupy_arrays import Block


def zeros(shape: tuple[int, int], dtype: DTypeLike, wanted: SumKinds) -> Sums:
    return Sums.zeros(cp, shape, dtype, wanted)


def add(x: Block, codes: NDArray[np.integer], into: Sums) -> None:
    """As on the CPU, with `codes` in the main memory, `into` on the GPU; one thread at a time."""
    n_rows, n_genes = map(int, x.shape)
    kind, types, block = cuda.rows_of(x)
    nonzero = _pointer(into.nonzero)
    if into.whole:
        grid, threads = cuda.grid_of_warps(n_rows)
        where = cp.asarray(codes.astype(np.int32)), np.int64(n_rows), np.int64(n_genes)
        sums = _pointer(into.sums), _pointer(into.squares)
        name = f"add_whole_{kind}"
    else:
        rows = np.flatnonzero(codes >= 0)
        rows = rows[np.argsort(codes[rows], kind="stable")]
        groups, starts = np.unique(codes[rows], return_index=True)
        starts = np.append(starts, rows.size)
        grid, threads = (max(1, groups.size),), (cuda.THREADS,)
        order = (cp.asarray(part.astype(np.int64)) for part in (rows, starts, groups))
        where = *order, np.int64(groups.size), np.int64(n_genes)
        arrays = into.sums, into.errors, into.squares, into.square_errors
        sums = tuple(map(_pointer, arrays))
        name = f"add_real_{kind}"
    cuda.kernel("moments/group_sums", name, *types)(grid, threads, (*block, *where, *sums, nonzero))


def group_sums(x: Block, codes: NDArray[np.integer], wanted: SumKinds) -> tuple[cp.ndarray, Sums]:
    groups, local = local_groups(codes, int(x.shape[0]))
    sums = zeros((groups.size, int(x.shape[1])), x.dtype, wanted)
    add(x, local, sums)
    return cp.asarray(groups), sums


def mean_var(total: Sums, n: NDArray[np.int64], dof: int, mean: Any, var: Any) -> None:
    """As on the CPU: the same operations in order."""
    of = cp.asarray(n).astype(cp.float64)
    sums, low = _pair(total.sums, total.errors)
    if var is not None:
        squares = _pair(total.squares, total.square_errors)
        _, deviations = means_and_deviations(sums, low, *squares, of)
        var[...] = deviations / cp.where(of > dof, of - dof, cp.nan)
    if mean is not None:
        mean[...] = sums / of


def _pair(high: cp.ndarray, low: cp.ndarray | None) -> tuple[cp.ndarray, cp.ndarray]:
    """Sums as pairs of float64: integers of 54 bits and more need two."""
    if low is not None:
        return high, low
    rounded = high.astype(cp.float64)
    return rounded, (high - rounded.astype(cp.int64)).astype(cp.float64)


def _pointer(array: Any) -> Any:
    return cuda.NULL if array is None else array
