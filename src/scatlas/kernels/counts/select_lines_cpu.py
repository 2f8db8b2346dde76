"""Selection from a range of lines of a compressed sparse matrix: rows of CSR, columns of CSC."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from scatlas.arrays.array_types import Array, Ints


@njit(nogil=True, cache=True)
def copy_lines(
    data: Array,
    indices: Array,
    indptr: Ints,
    lines: Ints,
    first: int,
    last: int,
    out_data: Array,
    out_indices: Array,
    out_indptr: Ints,
) -> None:
    """Copy the lines ``lines[first:last]`` to their places, which begin at ``out_indptr``."""
    for i in range(first, last):
        start, stop, to = indptr[lines[i]], indptr[lines[i] + 1], out_indptr[i]
        out_data[to : to + stop - start] = data[start:stop]
        out_indices[to : to + stop - start] = indices[start:stop]


@njit(nogil=True, cache=True)
def count_kept(
    indices: Array, indptr: Ints, kept: Array, first: int, last: int, counts: Ints
) -> None:
    """Number of entries of the lines `first` to `last` whose index is kept (uint8, 1 or 0)."""
    for line in range(first, last):
        n = 0
        for at in range(indptr[line], indptr[line + 1]):
            n += kept[np.uint64(indices[at])]
        counts[line] = n


@njit(nogil=True, cache=True)
def copy_kept(
    data: Array,
    indices: Array,
    indptr: Ints,
    kept: Array,
    new_index: Array,
    first: int,
    last: int,
    out_data: Array,
    out_indices: Array,
    out_indptr: Ints,
) -> None:
    """Copy the kept entries of the lines `first` to `last`, which get new indices."""
    for line in range(first, last):
        to, stop = out_indptr[line], out_indptr[line + 1]
        for at in range(indptr[line], indptr[line + 1]):
            if to == stop:
                break
            # Written in any case, and the place taken only if kept: branches would be random.
            index = np.uint64(indices[at])
            out_data[to], out_indices[to] = data[at], new_index[index]
            to += np.int64(kept[index])
