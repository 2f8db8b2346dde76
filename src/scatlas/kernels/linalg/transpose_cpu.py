"""Change of order of a compressed sparse matrix, CSC to CSR, in parts (Numba)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from scatlas.arrays.array_types import Array, Ints


@njit(nogil=True, cache=True)
def count_minor(indices: Array, start: int, stop: int, counts: Ints) -> None:
    """Add the number of entries of each minor index among ``indices[start:stop]`` to `counts`."""
    for at in range(start, stop):
        counts[indices[at]] += 1


@njit(nogil=True, cache=True)
def scatter(
    data: Array,
    indices: Array,
    indptr: Ints,
    first: int,
    last: int,
    places: Ints,
    out_data: Array,
    out_indices: Array,
) -> None:
    """Write the entries of the lines `first` to `last` to their places in the other order; `places`
    says where the next entry of each minor index goes, and moves on.
    """
    for line in range(first, last):
        for at in range(indptr[line], indptr[line + 1]):
            place = places[indices[at]]
            places[indices[at]] = place + 1
            out_data[place] = data[at]
            out_indices[place] = line


def first_places(counts: Ints) -> tuple[Ints, Ints]:
    """Offsets of the new lines, and the place of the first entry of each part of the old order in
    each. `counts` ``[n_parts, n_lines]`` are the entries of each new line in each part.
    """
    indptr = np.zeros(counts.shape[1] + 1, np.int64)
    np.cumsum(counts.sum(axis=0), out=indptr[1:])
    places = indptr[:-1] + np.cumsum(counts, axis=0) - counts
    return indptr, places
