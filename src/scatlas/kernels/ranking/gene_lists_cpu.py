"""Ranks of the genes of lists among all genes of a cell (Numba)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from scatlas.arrays.array_types import Array, Floats, Ints


@njit(nogil=True, cache=True)
def signed_rank_sums(
    data: Array,
    indices: Array,
    indptr: Ints,
    n_genes: int,
    slots: Ints,
    members: Ints,
    signs: Floats,
    list_ends: Ints,
    max_rank: float,
    out: Floats,
    moments: Floats,
) -> None:
    """Sum of the signed ranks of each list's genes in each cell, ``out`` [n_cells, n_lists], and
    mean and standard deviation of the ranks of all its genes, ``moments`` [n_cells, 2].

    The largest value has rank 1; equal values, such as zeros, share the mean of their ranks, and no
    rank is above `max_rank`. `slots` [n_columns] numbers the genes of lists,
    -1 for others; list `i` has the slots ``members[list_ends[i]:list_ends[i + 1]]``.
    """
    ranks = np.empty(slots.max() + 1)
    for cell in range(indptr.size - 1):
        first, last = indptr[cell], indptr[cell + 1]
        values = np.sort(data[first:last])
        n_below = np.searchsorted(values, 0, "right")
        total = squares = 0.0
        at = values.size
        while at > n_below:
            lowest = min(np.searchsorted(values, values[at - 1]), at - 1)  # NaN finds no end
            rank = min(values.size - at + (at - lowest + 1) / 2, max_rank)
            total += (at - lowest) * rank
            squares += (at - lowest) * rank * rank
            at = lowest
        rest = n_genes - (values.size - n_below)
        absent = min(values.size - n_below + (rest + 1) / 2, max_rank)
        mean = (total + rest * absent) / n_genes
        moments[cell, 0] = mean
        variance = (squares + rest * absent * absent) / n_genes - mean * mean
        moments[cell, 1] = np.sqrt(max(variance, 0.0))
        ranks[:] = absent
        for i in range(first, last):
            slot = slots[np.uint64(indices[i])]
            if slot >= 0 and data[i] > 0:
                lowest = np.searchsorted(values, data[i])
                end = np.searchsorted(values, data[i], "right")
                ranks[slot] = min(values.size - end + (end - lowest + 1) / 2, max_rank)
        for number in range(list_ends.size - 1):
            total = 0.0
            for i in range(list_ends[number], list_ends[number + 1]):
                total += signs[i] * ranks[members[i]]
            out[cell, number] = total
