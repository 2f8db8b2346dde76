"""Values that a sparse matrix stores in parts: the same gene twice in a cell, say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.arrays.array_types import row_offsets
from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from scatlas.arrays.array_types import Array, Ints, SparseBlock


@njit(nogil=True, cache=True)
def _any_repeat(indices: Array, indptr: Ints, n_minor: int) -> bool:
    """Whether a line holds an index twice; the vectorised loop alone runs if all are ascending."""
    seen_in = np.empty(0, np.int64)
    for line in range(indptr.size - 1):
        here = indices[indptr[line] : indptr[line + 1]]
        falls = False
        for i in range(1, here.size):
            falls |= here[i] <= here[i - 1]
        if not falls:
            continue
        if seen_in.size == 0:
            seen_in = np.full(n_minor, -1, np.int64)
        for i in range(here.size):
            at = np.int64(here[i])
            if 0 <= at < n_minor:
                if seen_in[at] == line:
                    return True
                seen_in[at] = line
    return False


def has_repeats(x: SparseBlock) -> bool:
    """Whether a row of CSR (a column of CSC) stores an index twice, whatever SciPy's flags say."""
    return bool(_any_repeat(x.indices, row_offsets(x), x.shape[x.format == "csr"]))


def sum_repeats(x: SparseBlock) -> SparseBlock:
    """Copy of CSR or CSC in which each index of a line is stored once, with the sum of its parts.

    They are added in the order and the type in which they are stored, as by SciPy's ``toarray``: to
    the same bits in CSR and CSC.
    """
    # Transposed twice, because SciPy's sort changes the order of equal indices.
    whole: Any = x.tocsc().tocsr() if x.format == "csr" else x.tocsr().tocsc()  # type: ignore[attr-defined]
    whole.sum_duplicates()
    return whole
