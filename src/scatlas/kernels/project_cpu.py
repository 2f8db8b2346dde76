"""Projection of one row block on components."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit
from scipy import sparse

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Dense rows worked on together: the components (n_genes x k, often more than a core's cache) are
# then read once for this many cells.
_TILE = 8


def project(
    x: NDArray | sparse.csr_matrix | sparse.csr_array,
    components: NDArray[np.float64],
    offset: NDArray[np.float64],
    *,
    dtype: Any = np.float32,
) -> NDArray:
    """Return ``x @ components - offset``, summed in float64 in the order of the genes.

    The order is fixed here and not left to BLAS, whose sums depend on its threads; a dense row and
    the same row in CSR with sorted indices give the same bits.

    Parameters
    ----------
    x
        Block ``[n, n_genes]``, dense or CSR, of any real dtype and index width.
    components
        float64 ``[n_genes, k]``.
    offset
        float64 ``[k]``, the projected mean (zeros without centring).
    dtype
        Type of the result, rounded once.

    Returns
    -------
    Dense ``[n, k]``.
    """
    components = np.ascontiguousarray(components, dtype=np.float64)
    out = np.empty((x.shape[0], components.shape[1]), dtype=dtype)
    if sparse.issparse(x):
        indptr = x.indptr.astype(np.int64, copy=False)
        _project_csr(x.data, x.indices, indptr, components, offset, out)
    else:
        _project_dense(np.asarray(x), components, offset, out)
    return out


@njit(nogil=True, cache=True)
def _project_csr(data, indices, indptr, components, offset, out):
    total = np.empty(offset.size)
    for row in range(out.shape[0]):
        total[:] = 0.0
        for at in range(indptr[row], indptr[row + 1]):
            v = np.float64(data[at])
            loadings = components[indices[at]]
            for k in range(total.size):
                total[k] += v * loadings[k]
        for k in range(total.size):
            out[row, k] = total[k] - offset[k]


@njit(nogil=True, cache=True)
def _project_dense(x, components, offset, out):
    total = np.empty((_TILE, offset.size))
    for start in range(0, out.shape[0], _TILE):
        stop = min(start + _TILE, out.shape[0])
        total[:] = 0.0
        for gene in range(x.shape[1]):
            loadings = components[gene]
            for row in range(start, stop):
                v = np.float64(x[row, gene])
                if v != 0.0:
                    sums = total[row - start]
                    for k in range(sums.size):
                        sums[k] += v * loadings[k]
        for row in range(start, stop):
            for k in range(offset.size):
                out[row, k] = total[row - start, k] - offset[k]
