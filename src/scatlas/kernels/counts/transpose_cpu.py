"""A row block by gene, and the blocks of some genes put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    import scipy.sparse as sp

    from scatlas.arrays.array_types import Array, Ints


def by_gene(block: sp.csr_matrix) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values of a CSR block gene after gene, the cells of a gene in ascending order.

    Parameters
    ----------
    block
        ``[n_cells, n_genes]``, at most 2^32 cells; its indices are within the genes.

    Returns
    -------
    Values; their rows in the block, uint32; number of values of each gene, int64 ``[n_genes]``.
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
    """Copy the values of successive genes of one block to their places among those of all blocks.

    Parameters
    ----------
    data, rows
        Values of the genes in this block and their rows, as `by_gene` gives them.
    counts
        Number of values of each gene, int64 ``[n_genes]``.
    first_row
        Number of the block's first cell.
    starts
        Where the values of each gene go, int64 ``[n_genes]``.
    out, cells
        Values and cell numbers of all blocks, changed in place.
    """
    j = 0
    for gene in range(counts.size):
        start = starts[gene]
        for k in range(counts[gene]):
            out[start + k] = data[j]
            cells[start + k] = first_row + rows[j]
            j += 1
