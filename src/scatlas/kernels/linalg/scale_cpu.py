"""Centring, scaling and clipping of one row block."""

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
    n_rows, n_genes = x.shape
    low, high = (-np.inf, np.inf) if max_value is None else (-float(max_value), float(max_value))
    if mean is None:
        low = -np.inf
    if rows is None:
        rows = np.ones(n_rows, dtype=bool)
    if is_sparse(x):
        indptr = row_offsets(x)
        if mean is None:
            data = np.empty(x.data.shape, dtype=dtype)
            scale_csr_into(x, sd, max_value, rows, data)
            out = sparse.csr_matrix((n_rows, n_genes), dtype=dtype)
            # Copies of the index arrays, so that an edit in place does not change the source block.
            out.data, out.indices, out.indptr = data, x.indices.copy(), x.indptr.copy()
            return out
        dense = np.zeros((n_rows, n_genes), dtype=dtype)
        _scale_csr_to_dense(x.data, x.indices, indptr, mean, sd, low, high, rows, dense)
        return dense
    dense = np.empty((n_rows, n_genes), dtype=dtype)
    scale_dense_into(np.asarray(x), mean, sd, max_value, rows, dense)
    return dense


def scale_dense_into(
    x: Array,
    mean: Floats | None,
    sd: Floats,
    max_value: float | None,
    rows: Bools | None,
    out: Array,
) -> None:
    """Write the values that :func:`scale` gives a dense block to `out`, which may be `x`."""
    high = np.inf if max_value is None else float(max_value)
    low = -np.inf if mean is None else -high
    centre = np.zeros(x.shape[1]) if mean is None else mean
    rows = np.ones(x.shape[0], dtype=bool) if rows is None else rows
    _scale_dense(x, centre, sd, low, high, rows, out)


def scale_csr_into(
    x: SparseBlock, sd: Floats, max_value: float | None, rows: Bools | None, out: Array
) -> None:
    """Write the values that :func:`scale` gives CSR without centring to `out`, maybe ``x.data``."""
    if rows is None:
        rows = np.ones(x.shape[0], dtype=bool)
    high = np.inf if max_value is None else float(max_value)
    _scale_csr(x.data, x.indices, row_offsets(x), sd, high, rows, out)


def scale_csc_into(
    x: SparseBlock, sd: Floats, max_value: float | None, rows: Bools | None, out: Array
) -> None:
    """Write :func:`scale` of the values of CSC, without centring, to `out`, maybe ``x.data``."""
    high = np.inf if max_value is None else float(max_value)
    is_unscaled = False if rows is None else ~rows[x.indices[: out.size]]
    unscaled = np.flatnonzero(is_unscaled)
    kept = x.data[unscaled]
    _scale_csc(x.data, row_offsets(x), sd, high, out)
    out[unscaled] = kept


def scale_stored_values(
    x: SparseBlock, mean: Floats, sd: Floats, zeros: Floats, bounds: tuple[float, float]
) -> sparse.csr_matrix:
    """CSR with ``clip((v - mean) / sd) - zeros`` for each stored value v, float32, rounded once.
    Adding ``zeros``, the scaled value of 0, to all values of a gene gives the scaled matrix.
    """
    data = np.empty(x.data.shape, dtype=np.float32)
    low, high = map(float, bounds)
    _scale_stored_csr(x.data, x.indices, mean, sd, zeros, low, high, data)
    out = sparse.csr_matrix(x.shape, dtype=np.float32)
    out.data, out.indices, out.indptr = data, x.indices.copy(), x.indptr.copy()
    return out


# With NumPy's division (no exception on 0), without which LLVM cannot vectorise the loops.
@njit(nogil=True, cache=True, error_model="numpy")
def _scale_stored_csr(
    data: Array,
    indices: Array,
    mean: Floats,
    sd: Floats,
    zeros: Floats,
    low: float,
    high: float,
    out: Array,
) -> None:
    for at in range(data.size):
        gene = indices[at]
        v = (np.float64(data[at]) - mean[gene]) / sd[gene]
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
def _scale_csr(
    data: Array, indices: Array, indptr: Ints, sd: Floats, high: float, rows: Bools, out: Array
) -> None:
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
    data: Array,
    indices: Array,
    indptr: Ints,
    mean: Floats,
    sd: Floats,
    low: float,
    high: float,
    rows: Bools,
    out: Array,
) -> None:
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
