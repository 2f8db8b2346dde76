"""Products of the centred cells with themselves, without their Gram matrix.

For iterations that need ``(X - 1 mu^T)^T (X - 1 mu^T) V`` for a few vectors V at a time. Rows are
cut into parts by their values alone. Each thread adds up one part, and the parts are added in
order, so that no bit depends on the number of threads.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.arrays.array_types import Array, Block, Floats, Ints, is_sparse, row_offsets
from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# Each part has sums of all genes: 16 parts of 4 vectors of 30,000 genes take 15 MB. A part of fewer
# values takes less time than to hand it to a thread.
_MAX_PARTS, _VALUES_PER_PART = 16, 100_000
_ROWS_AT_ONCE = 256  # dense rows that are float64 at the same time


def centred_product(
    x: Block, mean: Floats, run: Callable[..., Iterable[Any]] = map
) -> Callable[[Floats], Floats]:
    """Function that multiplies vectors ``[n_genes, n]`` with the Gram matrix of ``x - mean``."""
    n_cells = x.shape[0]
    n_values = x.data.size if is_sparse(x) else n_cells * x.shape[1]
    n_parts = min(_MAX_PARTS, max(1, n_values // _VALUES_PER_PART))
    if not is_sparse(x):
        dense = np.asarray(x)
        bounds = np.linspace(0, n_cells, n_parts + 1).astype(np.int64)
    else:
        offsets = row_offsets(x)
        bounds = np.searchsorted(offsets, np.linspace(0, offsets[-1], n_parts + 1))
        bounds[0], bounds[-1] = 0, n_cells
    parts = [(int(a), int(b)) for a, b in pairwise(bounds) if a < b]

    def product(vectors: Floats) -> Floats:
        shift = mean @ vectors

        def of_part(rows: tuple[int, int]) -> tuple[Floats, Floats]:
            totals = np.zeros_like(vectors)
            projected = np.zeros(vectors.shape[1])
            if is_sparse(x):
                indptr = offsets[rows[0] : rows[1] + 1]
                _add_rows(x.data, x.indices, indptr, vectors, shift, totals, projected)
            else:
                _add_dense(dense[rows[0] : rows[1]], vectors, shift, totals, projected)
            return totals, projected

        total, sums = np.zeros_like(vectors), np.zeros(vectors.shape[1])
        for totals, projected in run(of_part, parts):
            total += totals
            sums += projected
        total -= mean[:, None] * sums
        return total

    return product


def _add_dense(x: Array, vectors: Floats, shift: Floats, totals: Floats, projected: Floats) -> None:
    for start in range(0, x.shape[0], _ROWS_AT_ONCE):
        rows = np.asarray(x[start : start + _ROWS_AT_ONCE], np.float64)
        scores = rows @ vectors - shift
        totals += rows.T @ scores
        projected += scores.sum(axis=0)


@njit(nogil=True, cache=True)
def _add_rows(
    data: Array,
    indices: Array,
    indptr: Ints,
    vectors: Floats,
    shift: Floats,
    totals: Floats,
    projected: Floats,
) -> None:
    # Four variables in place of an array: they stay in registers. Subscripts without a sign need no
    # test for counting from the end, which takes a fifth of the time.
    for row in range(indptr.size - 1):
        a, b, c, d = -shift[0], -shift[1], -shift[2], -shift[3]
        for at in range(np.uint64(indptr[row]), np.uint64(indptr[row + 1])):
            gene, value = np.uint64(indices[at]), np.float64(data[at])
            a += value * vectors[gene, 0]
            b += value * vectors[gene, 1]
            c += value * vectors[gene, 2]
            d += value * vectors[gene, 3]
        projected[0] += a
        projected[1] += b
        projected[2] += c
        projected[3] += d
        for at in range(np.uint64(indptr[row]), np.uint64(indptr[row + 1])):
            gene, value = np.uint64(indices[at]), np.float64(data[at])
            totals[gene, 0] += value * a
            totals[gene, 1] += value * b
            totals[gene, 2] += value * c
            totals[gene, 3] += value * d
