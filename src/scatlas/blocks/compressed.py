"""Rows, columns and order of a matrix in memory, by several threads: NumPy and SciPy take one.

SciPy's conversion of CSC to CSR takes longer than most functions.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from scatlas.arrays.array_types import row_offsets
from scatlas.blocks.streaming import for_each
from scatlas.compute.threads import n_threads

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Parts of the matrix, however many threads there are; each needs 8 bytes per row.
_N_PARTS = 4
_MIN_VALUES = 200_000  # per thread


def to_csr(x: sp.csc_matrix | sp.csc_array) -> sp.csr_matrix | sp.csr_array:
    """A CSC matrix as CSR with ascending columns; the arrays of ``x.tocsr()``, to the same bits."""
    if x.nnz < _MIN_VALUES:
        return x.tocsr()
    from scatlas.kernels import CsrArrays
    from scatlas.kernels.counts.transpose_cpu import count_indices, scatter, slots_of_parts

    indptr = row_offsets(x)
    bounds = np.searchsorted(indptr, np.linspace(0, indptr[-1], _N_PARTS + 1))
    bounds[0], bounds[-1] = 0, x.shape[1]
    counts = np.zeros((_N_PARTS, x.shape[0]), np.int64)

    def count(i: int) -> None:
        count_indices(x.indices[indptr[bounds[i]] : indptr[bounds[i + 1]]], counts[i])

    for_each(count, range(_N_PARTS))
    offsets, next_slots = slots_of_parts(counts)
    index_type = sp.get_index_dtype((x.indices, x.indptr), maxval=max(x.nnz, *x.shape))
    data, indices = np.empty(x.nnz, x.dtype), np.empty(x.nnz, index_type)

    def move(i: int) -> None:
        columns = CsrArrays(x.data, x.indices, indptr[bounds[i] : bounds[i + 1] + 1])
        labels = np.arange(bounds[i], bounds[i + 1], dtype=index_type)
        scatter(columns, labels, None, next_slots[i], data, indices)

    for_each(move, range(_N_PARTS))
    kind = sp.csr_array if isinstance(x, sp.sparray) else sp.csr_matrix
    out = kind((data, indices, offsets.astype(index_type)), shape=x.shape)
    out.has_sorted_indices = True
    return out


_MIN_DENSE_VALUES = 2**20  # the same for dense rows, of which a copy takes less time


def select_sorted(x: Any, positions: NDArray[np.integer[Any]], axis: int) -> Any:
    """``x[positions]`` (axis 0) or ``x[:, positions]`` of a dense, CSR or CSC matrix in memory, for
    positions that ascend without repeats.
    """
    at = positions.astype(np.int64, copy=False)
    if isinstance(x, np.ndarray):
        return _dense(x, at, axis)
    whole_lines = (x.format == "csr") == (axis == 0)
    data, indices, indptr = _lines(x, at) if whole_lines else _entries(x, at, axis)
    shape = (at.size, x.shape[1]) if axis == 0 else (x.shape[0], at.size)
    return type(x)((data, indices, indptr.astype(indices.dtype)), shape=shape)


def _dense(x: NDArray[Any], at: NDArray[np.int64], axis: int) -> NDArray[Any]:
    out = np.empty((at.size, x.shape[1]) if axis == 0 else (x.shape[0], at.size), x.dtype)

    def copy(part: slice) -> None:
        of_part, own = (x, at[part]) if axis == 0 else (x[part], at)
        # With mode="clip" NumPy writes to `out` directly; no position is outside of the array.
        np.take(of_part, own, axis=axis, out=out[part], mode="clip")

    for_each(copy, ranges(len(out), out.size // _MIN_DENSE_VALUES))
    return out


def _lines(x: Any, lines: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    from scatlas.kernels import CsrArrays, csr_arrays
    from scatlas.kernels.counts.select_cpu import copy_lines

    old = csr_arrays(x)
    indptr = _offsets(np.diff(old.indptr)[lines])
    new = CsrArrays(np.empty(indptr[-1], x.dtype), np.empty(indptr[-1], x.indices.dtype), indptr)

    def copy(part: slice) -> None:
        copy_lines(old, lines, part.start, part.stop, new)

    for_each(copy, line_ranges(indptr))
    return new


def _entries(
    x: Any, positions: NDArray[np.int64], axis: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    from scatlas.kernels import CsrArrays, csr_arrays
    from scatlas.kernels.counts.select_cpu import copy_kept, count_kept

    old = csr_arrays(x)
    kept = np.zeros(x.shape[axis], np.uint8)
    kept[positions] = 1
    new_index = (np.cumsum(kept, dtype=np.int64) - 1).astype(x.indices.dtype)
    counts, parts = np.empty(old.indptr.size - 1, np.int64), line_ranges(old.indptr)

    def count(part: slice) -> None:
        count_kept(old, kept, part.start, part.stop, counts)

    for_each(count, parts)
    indptr = _offsets(counts)
    new = CsrArrays(np.empty(indptr[-1], x.dtype), np.empty(indptr[-1], x.indices.dtype), indptr)

    def copy(part: slice) -> None:
        copy_kept(old, kept, new_index, part.start, part.stop, new)

    for_each(copy, parts)
    return new


def _offsets(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def ranges(n: int, most: int) -> list[slice]:
    """Ranges of `n` items, one per thread and `most` at most."""
    n_ranges = max(1, min(n_threads(), most))
    bounds = [n * i // n_ranges for i in range(n_ranges + 1)]
    return [slice(*ends) for ends in pairwise(bounds)]


def line_ranges(indptr: NDArray[np.integer[Any]]) -> list[slice]:
    """Ranges of lines with about as many values, one per thread."""
    ends = np.searchsorted(indptr, [part.stop for part in value_ranges(indptr)[:-1]])
    bounds = [0, *map(int, ends), indptr.size - 1]
    return [slice(*ends) for ends in pairwise(bounds)]


def value_ranges(indptr: NDArray[np.integer[Any]]) -> list[slice]:
    """Ranges of the values of all lines, one per thread."""
    n_values = int(indptr[-1])
    return ranges(n_values, n_values // _MIN_VALUES)
