"""One row block with its genes centred, scaled and clipped, or less their linear regression.

The covariates (weights) are orthonormal over all cells, so the coefficient of a gene is the sum of
its values times the weights. Sums carry their rounding error (``moments.pairs_cpu``), and do not
depend on where blocks begin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import sparse

from scatlas.arrays.array_types import (
    Array,
    Block,
    Bools,
    Floats,
    Ints,
    SparseBlock,
    is_sparse,
    row_offsets,
)
from scatlas.kernels import CsrArrays, csr_arrays
from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.moments.pairs_cpu import pair_sum

if TYPE_CHECKING:
    from collections.abc import Sequence

_BATCH = 2048  # values per batch, a fraction of the L1 cache


def scale(
    x: Block,
    mean: Floats | None,
    sd: Floats,
    max_value: float | None,
    rows: Bools | None = None,
    *,
    dtype: Any,
) -> Array | sparse.csr_matrix:
    """Return ``(x - mean) / sd`` as a new block, computed in float64 and rounded once to `dtype`.

    Without a mean CSR stays CSR, else the result is dense. `sd` has no zeros. `max_value` is the
    upper bound, and with a mean its negative is the lower one. Other rows than `rows` are copied.
    """
    if not is_sparse(x):
        dense = np.empty(x.shape, dtype=dtype)
        scale_dense_into(np.asarray(x), mean, sd, max_value, rows, dense)
        return dense
    if mean is None:
        data = np.empty(x.data.shape, dtype=dtype)
        scale_csr_into(x, sd, max_value, rows, data)
        return _with_values(x, data)
    high, rows = _upper_bound(max_value), _or_all(rows, x.shape[0])
    dense = np.zeros(x.shape, dtype=dtype)
    _scale_csr_to_dense(csr_arrays(x), mean, sd, high, rows, dense)
    return dense


def _upper_bound(max_value: float | None) -> float:
    return np.inf if max_value is None else float(max_value)


def _or_all(rows: Bools | None, n_rows: int) -> Bools:
    return np.ones(n_rows, dtype=bool) if rows is None else rows


def _with_values(x: SparseBlock, data: Array) -> sparse.csr_matrix:
    """CSR with copies of the index arrays, so that an edit in place does not change `x`."""
    out = sparse.csr_matrix(x.shape, dtype=data.dtype)
    out.data, out.indices, out.indptr = data, x.indices.copy(), x.indptr.copy()
    return out


def scale_dense_into(
    x: Array,
    mean: Floats | None,
    sd: Floats,
    max_value: float | None,
    rows: Bools | None,
    out: Array,
) -> None:
    """Write the values that :func:`scale` gives a dense block to `out`, which may be `x`."""
    high = _upper_bound(max_value)
    low = -np.inf if mean is None else -high
    centre = np.zeros(x.shape[1]) if mean is None else mean
    _scale_dense(x, centre, sd, low, high, _or_all(rows, x.shape[0]), out)


def scale_csr_into(
    x: SparseBlock, sd: Floats, max_value: float | None, rows: Bools | None, out: Array
) -> None:
    """Write the values that :func:`scale` gives CSR without centring to `out`, maybe ``x.data``."""
    _scale_csr(csr_arrays(x), sd, _upper_bound(max_value), _or_all(rows, x.shape[0]), out)


def scale_csc_into(
    x: SparseBlock, sd: Floats, max_value: float | None, rows: Bools | None, out: Array
) -> None:
    """Write :func:`scale` of the values of CSC, without centring, to `out`, maybe ``x.data``."""
    is_unscaled = False if rows is None else ~rows[x.indices[: out.size]]
    unscaled = np.flatnonzero(is_unscaled)
    kept = x.data[unscaled]
    _scale_csc(x.data, row_offsets(x), sd, _upper_bound(max_value), out)
    out[unscaled] = kept


def scale_stored_values(
    x: SparseBlock, mean: Floats, sd: Floats, zeros: Floats, bounds: tuple[float, float]
) -> sparse.csr_matrix:
    """CSR with ``clip((v - mean) / sd) - zeros`` for each stored value v, float32, rounded once.
    Adding ``zeros``, the scaled value of 0, to all values of a gene gives the scaled matrix.
    """
    data = np.empty(x.data.shape, dtype=np.float32)
    low, high = map(float, bounds)
    _scale_stored_csr(csr_arrays(x), mean, sd, zeros, low, high, data)
    return _with_values(x, data)


# With NumPy's division (no exception on 0), without which LLVM cannot vectorise the loops.
@njit(nogil=True, cache=True, error_model="numpy")
def _scale_stored_csr(
    x: CsrArrays, mean: Floats, sd: Floats, zeros: Floats, low: float, high: float, out: Array
) -> None:
    for at in range(x.data.size):
        gene = x.indices[at]
        v = (np.float64(x.data[at]) - mean[gene]) / sd[gene]
        out[at] = _clip(v, low, high) - zeros[gene]


@njit(nogil=True, cache=True)
def _clip(v: float, low: float, high: float) -> float:
    # NaN is returned unchanged, as both comparisons are false.
    if v > high:
        return high
    if v < low:
        return low
    return v


@njit(nogil=True, cache=True)
def _copy_batch(values: Array, batch: Array) -> Array:
    """Copy of `values` in `batch`: loops are vectorised only if input and output do not overlap."""
    for i in range(values.size):
        batch[i] = values[i]
    return batch[: values.size]


@njit(nogil=True, cache=True, error_model="numpy")
def _scale_csr(x: CsrArrays, sd: Floats, high: float, rows: Bools, out: Array) -> None:
    data, indices, indptr = x
    for row in range(indptr.size - 1):
        if rows[row]:
            for at in range(indptr[row], indptr[row + 1]):
                out[at] = _clip(np.float64(data[at]) / sd[indices[at]], -np.inf, high)
        else:
            for at in range(indptr[row], indptr[row + 1]):
                out[at] = data[at]


@njit(nogil=True, cache=True, error_model="numpy")
def _scale_csc(data: Array, indptr: Ints, sd: Floats, high: float, out: Array) -> None:
    batch = np.empty(_BATCH, data.dtype)
    for gene in range(indptr.size - 1):
        for start in range(indptr[gene], indptr[gene + 1], _BATCH):
            stop = min(start + _BATCH, indptr[gene + 1])
            values = _copy_batch(data[start:stop], batch)
            scaled = out[start:stop]
            for at in range(values.size):
                scaled[at] = _clip(np.float64(values[at]) / sd[gene], -np.inf, high)


@njit(nogil=True, cache=True, error_model="numpy")
def _scale_csr_to_dense(
    x: CsrArrays, mean: Floats, sd: Floats, high: float, rows: Bools, out: Array
) -> None:
    data, indices, indptr = x
    for row in range(out.shape[0]):
        if rows[row]:
            for gene in range(out.shape[1]):
                out[row, gene] = _clip(-mean[gene] / sd[gene], -high, high)
        for at in range(indptr[row], indptr[row + 1]):
            v = np.float64(data[at])
            gene = indices[at]
            if rows[row]:
                v = _clip((v - mean[gene]) / sd[gene], -high, high)
            out[row, gene] = v


@njit(nogil=True, cache=True, error_model="numpy")
def _scale_dense(
    x: Array, mean: Floats, sd: Floats, low: float, high: float, rows: Bools, out: Array
) -> None:
    batch = np.empty(_BATCH, x.dtype)
    for row in range(out.shape[0]):
        if rows[row]:
            for start in range(0, out.shape[1], _BATCH):
                genes = slice(start, min(start + _BATCH, out.shape[1]))
                values = _copy_batch(x[row, genes], batch)
                means, sds, scaled = mean[genes], sd[genes], out[row, genes]
                for i in range(values.size):
                    scaled[i] = _clip((np.float64(values[i]) - means[i]) / sds[i], low, high)
        else:
            for gene in range(out.shape[1]):
                out[row, gene] = x[row, gene]


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
