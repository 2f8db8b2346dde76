"""Sums per cell and per gene of a range of genes of a CSC matrix, added in any order: the caller
makes sure that float64 holds every sum exactly (:func:`largest_integer`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.counts.qc_cpu import is_integral

if TYPE_CHECKING:
    from scatlas.arrays.array_types import Array, Bools, Ints


def largest_integer(values: Array) -> float:
    """Largest magnitude of the values; infinite if one of them is no integer."""
    if values.size == 0:
        return 0.0
    if not is_integral(values):
        return np.inf
    return max(float(values.max()), -float(values.min()))


@njit(nogil=True, cache=True)
def add_totals(
    data: Array,
    indices: Array,
    indptr: Ints,
    first: int,
    last: int,
    positive: bool,
    cells: Array,
    genes: Array,
) -> None:
    """Add the values of genes `first` to `last`, or if `positive` one for each above zero."""
    for gene in range(first, last):
        total = genes.dtype.type(0)
        for at in range(indptr[gene], indptr[gene + 1]):
            value = cells.dtype.type(data[at] > 0) if positive else cells.dtype.type(data[at])
            cells[np.uint64(indices[at])] += value
            total += value
        genes[gene] = total


@njit(nogil=True, cache=True)
def add_qc(
    data: Array,
    indices: Array,
    indptr: Ints,
    first: int,
    last: int,
    masks: Bools,
    cells: Array,
    n_genes: Ints,
    masked: Array,
    genes: Array,
    n_cells: Ints,
) -> None:
    """Add totals (`cells`, `genes`), numbers of values that are not zero (`n_genes`, `n_cells`),
    and totals over the genes of each mask: `masked` ``[n_masks, n_cells]``.
    """
    for gene in range(first, last):
        total, n = genes.dtype.type(0), 0
        for at in range(indptr[gene], indptr[gene + 1]):
            cell, value = np.uint64(indices[at]), cells.dtype.type(data[at])
            present = value != 0
            cells[cell] += value
            n_genes[cell] += present
            total += value
            n += present
        genes[gene], n_cells[gene] = total, n
        for m in range(masks.shape[0]):
            if masks[m, gene]:
                for at in range(indptr[gene], indptr[gene + 1]):
                    masked[m, np.uint64(indices[at])] += cells.dtype.type(data[at])
