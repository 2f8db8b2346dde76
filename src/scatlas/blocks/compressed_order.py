"""CSC as CSR, by several threads: SciPy's conversion takes one, and longer than most functions."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from scatlas.arrays.array_types import row_offsets
from scatlas.blocks.streaming import for_each

# Parts of the matrix, however many threads there are; each needs 8 bytes per row.
_N_PARTS = 4
_LEAST_VALUES = 200_000


def to_csr(x: sp.csc_matrix | sp.csc_array) -> sp.csr_matrix | sp.csr_array:
    """A CSC matrix as CSR with ascending columns; the arrays of ``x.tocsr()``, to the same bits."""
    if x.nnz < _LEAST_VALUES:
        return x.tocsr()
    from scatlas.kernels import CsrArrays
    from scatlas.kernels.counts.transpose_cpu import count_indices, scatter, slots_of_parts

    indptr = row_offsets(x)
    bounds = np.searchsorted(indptr, np.linspace(0, indptr[-1], _N_PARTS + 1))
    bounds[0], bounds[-1] = 0, x.shape[1]
    parts = [slice(i, i + 1) for i in range(_N_PARTS)]
    counts = np.zeros((_N_PARTS, x.shape[0]), np.int64)

    def count(part: slice) -> None:
        i = part.start
        count_indices(x.indices[indptr[bounds[i]] : indptr[bounds[i + 1]]], counts[i])

    for_each(count, parts)
    offsets, next_slots = slots_of_parts(counts)
    index_type = sp.get_index_dtype((x.indices, x.indptr), maxval=max(x.nnz, *x.shape))
    data, indices = np.empty(x.nnz, x.dtype), np.empty(x.nnz, index_type)

    def move(part: slice) -> None:
        i = part.start
        columns = CsrArrays(x.data, x.indices, indptr[bounds[i] : bounds[i + 1] + 1])
        labels = np.arange(bounds[i], bounds[i + 1], dtype=index_type)
        scatter(columns, labels, None, next_slots[i], data, indices)

    for_each(move, parts)
    kind = sp.csr_array if isinstance(x, sp.sparray) else sp.csr_matrix
    out = kind((data, indices, offsets.astype(index_type)), shape=x.shape)
    out.has_sorted_indices = True
    return out
