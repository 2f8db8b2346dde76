"""Linear regression of all genes on a few numbers of each cell: sums of one row block, and what is
left of its values (Numba).

The numbers that genes are regressed on (weights) are orthonormal over all cells, so that the
coefficient of a gene is the sum of its values times the weights. The products are rounded to
float64; their sums carry their error, as in :mod:`scatlas.kernels.moments.moments_cpu`, and do not
depend on how the cells were cut into blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.moments.moments_cpu import pair_sum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def weighted_sums(
    x: NDArray | sparse.csr_matrix | sparse.csr_array, weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Sums over the rows of a block of each value times the weights of its row.

    Parameters
    ----------
    x
        Block ``[n, n_genes]``, dense or CSR, of any real dtype and index width.
    weights
        float64 ``[n, n_weights]``.

    Returns
    -------
    float64 ``[2, n_weights, n_genes]``: the sums, and what rounding has left out of them.
    """
    sums = np.zeros((x.shape[1], weights.shape[1], 2))
    weights = np.ascontiguousarray(weights, dtype=np.float64)
    if sparse.issparse(x):
        indptr = x.indptr.astype(np.int64, copy=False)
        _add_csr(x.data, x.indices, indptr, weights, sums)
    else:
        _add_dense(np.asarray(x), weights, sums)
    return sums.transpose(2, 1, 0).copy()


def fold(parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Sums of :func:`weighted_sums` over the rows of all blocks."""
    total = parts[0]
    for part in parts[1:]:
        with np.errstate(all="ignore"):
            total = np.stack(pair_sum(*total, *part))
    return total


def residuals(
    x: NDArray | sparse.csr_matrix | sparse.csr_array,
    codes: NDArray[np.int64],
    base: NDArray[np.float64],
    weights: NDArray[np.float64],
    slopes: NDArray[np.float64],
    *,
    dtype: Any,
) -> NDArray:
    """Return ``x - (base[codes] + weights @ slopes)``, computed in float64 and rounded once.

    Parameters
    ----------
    x
        Block ``[n, n_genes]``, dense or CSR without duplicated entries, of any real dtype and index
        width.
    codes
        Group of each row, int64 ``[n]``.
    base
        float64 ``[n_groups, n_genes]``.
    weights
        float64 ``[n, n_weights]``.
    slopes
        float64 ``[n_weights, n_genes]``.
    dtype
        float32 or float64.

    Returns
    -------
    Dense ``[n, n_genes]``.
    """
    out = np.empty(x.shape, dtype=dtype)
    fit = (
        np.ascontiguousarray(codes, dtype=np.int64),
        np.ascontiguousarray(base, dtype=np.float64),
        np.ascontiguousarray(weights, dtype=np.float64),
        np.ascontiguousarray(slopes, dtype=np.float64),
    )
    if sparse.issparse(x):
        indptr = x.indptr.astype(np.int64, copy=False)
        _residuals_csr(x.data, x.indices, indptr, *fit, out)
    else:
        _residuals_dense(np.asarray(x), *fit, out)
    return out


@njit(nogil=True, cache=True)
def _add_value(v, of_row, sums):
    for k in range(of_row.size):
        sums[k, 0], sums[k, 1] = pair_sum(sums[k, 0], sums[k, 1], v * of_row[k], 0.0)


@njit(nogil=True, cache=True)
def _add_csr(data, indices, indptr, weights, sums):
    for row in range(indptr.size - 1):
        for at in range(indptr[row], indptr[row + 1]):
            _add_value(np.float64(data[at]), weights[row], sums[indices[at]])


@njit(nogil=True, cache=True)
def _add_dense(x, weights, sums):
    for row in range(x.shape[0]):
        for gene in range(x.shape[1]):
            v = np.float64(x[row, gene])
            if v != 0.0:
                _add_value(v, weights[row], sums[gene])


@njit(nogil=True, cache=True)
def _fit(base, weights, slopes, out):
    for gene in range(out.size):
        out[gene] = base[gene]
    for k in range(weights.size):
        for gene in range(out.size):
            out[gene] += weights[k] * slopes[k, gene]


@njit(nogil=True, cache=True)
def _residuals_csr(data, indices, indptr, codes, base, weights, slopes, out):
    fitted = np.empty(out.shape[1])
    for row in range(out.shape[0]):
        _fit(base[codes[row]], weights[row], slopes, fitted)
        for gene in range(out.shape[1]):
            out[row, gene] = 0.0 - fitted[gene]
        for at in range(indptr[row], indptr[row + 1]):
            gene = indices[at]
            out[row, gene] = np.float64(data[at]) - fitted[gene]


@njit(nogil=True, cache=True)
def _residuals_dense(x, codes, base, weights, slopes, out):
    fitted = np.empty(out.shape[1])
    for row in range(out.shape[0]):
        _fit(base[codes[row]], weights[row], slopes, fitted)
        for gene in range(out.shape[1]):
            out[row, gene] = np.float64(x[row, gene]) - fitted[gene]
