"""Linear regression of all genes on covariates of the cells: sums and residuals of a block (Numba).

The covariates (weights) are orthonormal over all cells, so the coefficient of a gene is the sum of
its values times the weights. Sums carry their rounding error (``moments.pairs_cpu``), and do not
depend on where blocks begin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scatlas.arrays.array_types import Array, Block, Floats, Ints, is_sparse
from scatlas.kernels import CsrArrays, csr_arrays
from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.moments.pairs_cpu import pair_sum

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Fit(NamedTuple):
    """What is subtracted from a row: the base of its code, and its weights times the slopes."""

    codes: Ints
    base: Floats
    weights: Floats
    slopes: Floats


def weighted_sums(x: Block, weights: Floats) -> Floats:
    """Sums of value times weight ``[n, n_weights]``, and errors: ``[2, n_weights, n_genes]``."""
    weights = np.ascontiguousarray(weights, dtype=np.float64)
    if not is_sparse(x):
        sums = np.zeros((2, weights.shape[1], x.shape[1]))
        _add_dense(np.ascontiguousarray(x), weights, *sums)
        return sums
    sums = np.zeros((x.shape[1], weights.shape[1], 2))
    _add_csr(csr_arrays(x), weights, sums)
    return sums.transpose(2, 1, 0).copy()


def merge(parts: Sequence[Floats]) -> Floats:
    """Sums of :func:`weighted_sums` over the rows of all blocks."""
    total = parts[0]
    for part in parts[1:]:
        with np.errstate(all="ignore"):
            total = np.stack(pair_sum(*total, *part))
    return total


def residuals(
    x: Block, codes: Ints, base: Floats, weights: Floats, slopes: Floats, *, dtype: Any
) -> Array:
    """``x - (base[codes] + weights @ slopes)``, computed in float64 and rounded once to `dtype`."""
    out = np.empty(x.shape, dtype=dtype)
    fit = _Fit(
        np.ascontiguousarray(codes, dtype=np.int64),
        np.ascontiguousarray(base, dtype=np.float64),
        np.ascontiguousarray(weights, dtype=np.float64),
        np.ascontiguousarray(slopes, dtype=np.float64),
    )
    if is_sparse(x):
        _residuals_csr(csr_arrays(x), fit, out)
    else:
        _residuals_dense(np.asarray(x), fit, out)
    return out


@njit(nogil=True, cache=True)
def _add_csr(rows: CsrArrays, weights: Floats, sums: Floats) -> None:
    data, indices, indptr = rows
    # Subscripts of the whole array: a view of each gene's sums takes six times as long.
    for row in range(indptr.size - 1):
        for at in range(indptr[row], indptr[row + 1]):
            v, gene = np.float64(data[at]), np.uint64(indices[at])
            for k in range(weights.shape[1]):
                high, low = sums[gene, k, 0], sums[gene, k, 1]
                product = v * weights[row, k]
                sums[gene, k, 0], sums[gene, k, 1] = pair_sum(high, low, product, 0.0)


@njit(nogil=True, cache=True)
def _add_dense(x: Array, weights: Floats, sums: Floats, errors: Floats) -> None:
    # Gene by gene in the inner loop, which the compiler vectorises; adding 0 changes no pair.
    for row in range(x.shape[0]):
        values = x[row]
        for k in range(weights.shape[1]):
            weight, high, low = weights[row, k], sums[k], errors[k]
            for gene in range(values.size):
                v = np.float64(values[gene]) * weight
                high[gene], low[gene] = pair_sum(high[gene], low[gene], v, 0.0)


@njit(nogil=True, cache=True)
def _fit_row(fit: _Fit, row: int, out: Array) -> None:
    base, weights = fit.base[fit.codes[row]], fit.weights[row]
    for gene in range(out.size):
        out[gene] = base[gene]
    for k in range(weights.size):
        for gene in range(out.size):
            out[gene] += weights[k] * fit.slopes[k, gene]


@njit(nogil=True, cache=True)
def _residuals_csr(rows: CsrArrays, fit: _Fit, out: Array) -> None:
    data, indices, indptr = rows
    fitted = np.empty(out.shape[1])
    for row in range(out.shape[0]):
        _fit_row(fit, row, fitted)
        for gene in range(out.shape[1]):
            out[row, gene] = 0.0 - fitted[gene]
        for at in range(indptr[row], indptr[row + 1]):
            gene = indices[at]
            out[row, gene] = np.float64(data[at]) - fitted[gene]


@njit(nogil=True, cache=True)
def _residuals_dense(x: Array, fit: _Fit, out: Array) -> None:
    fitted = np.empty(out.shape[1])
    for row in range(out.shape[0]):
        _fit_row(fit, row, fitted)
        for gene in range(out.shape[1]):
            out[row, gene] = np.float64(x[row, gene]) - fitted[gene]
