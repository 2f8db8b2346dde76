"""Centring, scaling and clipping of one row block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray


def scale(
    x: NDArray | sparse.csr_matrix | sparse.csr_array,
    mean: NDArray[np.float64] | None,
    sd: NDArray[np.float64],
    max_value: float | None,
    rows: NDArray[np.bool_] | None = None,
    *,
    dtype: Any,
) -> NDArray | sparse.csr_matrix:
    """Return ``(x - mean) / sd`` as a new block, computed in float64 and rounded once.

    Parameters
    ----------
    x
        Block ``[n, n_genes]``, dense or CSR, of any real dtype and index width.
    mean
        float64 ``[n_genes]``; ``None`` leaves the data uncentred (CSR stays CSR), otherwise the
        result is dense.
    sd
        float64 ``[n_genes]``, without zeros.
    max_value
        Values above it are clipped to it; with `mean`, values below its negative too.
    rows
        Boolean ``[n]``: rows to scale. The others are copied as they are.
    dtype
        float32 or float64.
    """
    n_rows, n_genes = x.shape
    low, high = (-np.inf, np.inf) if max_value is None else (-float(max_value), float(max_value))
    if mean is None:
        low = -np.inf
    if rows is None:
        rows = np.ones(n_rows, dtype=bool)
    if sparse.issparse(x):
        indptr = x.indptr.astype(np.int64, copy=False)
        if mean is None:
            data = np.empty(x.data.shape, dtype=dtype)
            _scale_csr(x.data, x.indices, indptr, sd, high, rows, data)
            out = sparse.csr_matrix((n_rows, n_genes), dtype=dtype)
            # Index arrays of its own: a later in-place edit must not reach the source block.
            out.data, out.indices, out.indptr = data, x.indices.copy(), x.indptr.copy()
            return out
        dense = np.zeros((n_rows, n_genes), dtype=dtype)
        _scale_csr_to_dense(x.data, x.indices, indptr, mean, sd, low, high, rows, dense)
        return dense
    dense = np.empty((n_rows, n_genes), dtype=dtype)
    centre = np.zeros(n_genes) if mean is None else mean
    _scale_dense(np.asarray(x), centre, sd, low, high, rows, dense)
    return dense


def shift(
    x: sparse.csr_matrix | sparse.csr_array,
    mean: NDArray[np.float64],
    sd: NDArray[np.float64],
    zeros: NDArray[np.float64],
    bounds: tuple[float, float],
) -> sparse.csr_matrix:
    """Return the clipped ``(x - mean) / sd`` less ``zeros`` at the stored values, as new CSR.

    Parameters
    ----------
    x
        CSR block ``[n, n_genes]``, of any real dtype and index width.
    mean, sd, zeros
        float64 ``[n_genes]``; `zeros` is what a zero of the gene becomes.
    bounds
        Lowest and highest value after scaling.

    Returns
    -------
    float32, rounded once.
    """
    data = np.empty(x.data.shape, dtype=np.float32)
    low, high = map(float, bounds)
    _shift_csr(x.data, x.indices, mean, sd, zeros, low, high, data)
    out = sparse.csr_matrix(x.shape, dtype=np.float32)
    out.data, out.indices, out.indptr = data, x.indices.copy(), x.indptr.copy()
    return out


@njit(nogil=True, cache=True)
def _shift_csr(data, indices, mean, sd, zeros, low, high, out):
    for at in range(data.size):
        gene = indices[at]
        v = (np.float64(data[at]) - mean[gene]) / sd[gene]
        out[at] = _clip(v, low, high) - zeros[gene]


@njit(nogil=True, cache=True)
def _clip(v, low, high):
    # NaN passes, as both comparisons are false.
    if v > high:
        return high
    if v < low:
        return low
    return v


@njit(nogil=True, cache=True)
def _scale_csr(data, indices, indptr, sd, high, rows, out):
    for row in range(indptr.size - 1):
        for at in range(indptr[row], indptr[row + 1]):
            v = np.float64(data[at])
            if rows[row]:
                v = _clip(v / sd[indices[at]], -np.inf, high)
            out[at] = v


@njit(nogil=True, cache=True)
def _scale_csr_to_dense(data, indices, indptr, mean, sd, low, high, rows, out):
    for row in range(out.shape[0]):
        if rows[row]:
            for gene in range(out.shape[1]):
                out[row, gene] = _clip(-mean[gene] / sd[gene], low, high)
        for at in range(indptr[row], indptr[row + 1]):
            v = np.float64(data[at])
            gene = indices[at]
            if rows[row]:
                v = _clip((v - mean[gene]) / sd[gene], low, high)
            out[row, gene] = v


@njit(nogil=True, cache=True)
def _scale_dense(x, mean, sd, low, high, rows, out):
    for row in range(out.shape[0]):
        for gene in range(out.shape[1]):
            v = np.float64(x[row, gene])
            if rows[row]:
                v = _clip((v - mean[gene]) / sd[gene], low, high)
            out[row, gene] = v
