"""A row block by gene, and the blocks of some genes put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    import scipy.sparse as sp

    from scatlas.arrays.array_types import Array, Ints


def by_gene(block: sp.csr_matrix) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values of a CSR block gene after gene, in the order of the cells; their rows in the block, at
    most 2^32, uint32; and the number of values of each gene.
    """
    n_values = int(block.indptr[-1] - block.indptr[0])
    data, rows = np.empty(n_values, block.data.dtype), np.empty(n_values, np.uint32)
    counts = np.zeros(block.shape[1], np.int64)
    _sort_by_gene(block.data, block.indices, block.indptr, counts, data, rows)
    return data, rows, counts


@njit(nogil=True, cache=True)
def _sort_by_gene(
    data: Array, indices: Array, indptr: Ints, counts: Ints, out: Array, out_rows: Array
) -> None:
    first, last = indptr[0], indptr[-1]
    for j in range(first, last):
        counts[indices[j]] += 1
    place = np.zeros(counts.size, np.int64)
    for gene in range(1, counts.size):
        place[gene] = place[gene - 1] + counts[gene - 1]
    for i in range(indptr.size - 1):
        for j in range(indptr[i], indptr[i + 1]):
            k = place[indices[j]]
            out[k] = data[j]
            out_rows[k] = i
            place[indices[j]] = k + 1


@njit(nogil=True, cache=True)
def copy_segments(
    data: Array, rows: Array, counts: Ints, first_row: int, starts: Ints, out: Array, cells: Array
) -> None:
    """Copy the values of successive genes of one block to those of all blocks, at `starts`. `data`,
    `rows` and `counts` are results of :func:`by_gene`, whose row 0 is cell `first_row`.
    """
    j = 0
    for gene in range(counts.size):
        start = starts[gene]
        for k in range(counts[gene]):
            out[start + k] = data[j]
            cells[start + k] = first_row + rows[j]
            j += 1
