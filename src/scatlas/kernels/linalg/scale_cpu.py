"""One row block with its genes centred, scaled and clipped."""

from __future__ import annotations

from typing import Any

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
