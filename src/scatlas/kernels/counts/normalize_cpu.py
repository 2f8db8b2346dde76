"""Elementwise operations on one block: scaling of each cell, log(1 + x); both of selected genes.

A sparse result of the first two shares ``indices`` and ``indptr`` with the input, because a copy
would double the memory traffic: do not sort or compact it in place while the input is in use.
"""

from __future__ import annotations

import copy
import math
from functools import cache
from typing import Any

import numpy as np

from scatlas.arrays.array_types import Array, Block, Bools, Floats, Ints, is_sparse, row_offsets
from scatlas.kernels import CsrArrays, csr_arrays
from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.counts.select_cpu import index_dtype, insert_sorted

# log(2) in two parts, and the coefficients of log((1+s)/(1-s)) = 2s + s*R(s^2): fdlibm, e_log.c
# (Sun Microsystems 1993), error of the polynomial below 2^-58.45.
_LN2_HI = 6.93147180369123816490e-01
_LN2_LO = 1.90821492927058770002e-10
_R1 = 6.666666666666735130e-01
_R2 = 3.999999999940941908e-01
_R3 = 2.857142874366239149e-01
_R4 = 2.222219843214978396e-01
_R5 = 1.818357216161805012e-01
_R6 = 1.531383769920937332e-01
_R7 = 1.479819860511658591e-01
_ONE = 0x3FF0000000000000  # bits of 1.0
_SQRT_HALF = 0x3FE6A09E00000000  # bits of sqrt(1/2), cut to its high word
_MANTISSA = 0x000FFFFFFFFFFFFF
# log(1 + f) = 2s + s^3 * Q(s^2) with s = f / (2 + f), for sqrt(1/2) - 1 <= f < sqrt(2) - 1, Q
# through the Chebyshev points: within 2^-43 of the logarithm. Rounded to float32, all logarithms
# are right that are not within 2^-41 of the middle between two numbers.
_LN2 = 0.6931471805599453
_Q0, _Q1, _Q2 = 0.666666666673751, 0.39999998797329533, 0.28571754537558125
_Q3, _Q4 = 0.22191400725954422, 0.19362655741770396
# Bits of a float64 that float32 lacks, their middle, and what counts as near it.
_LOST_BITS, _MIDDLE, _NEAR = 2**29 - 1, 2**28, 2**11
# Bits of the least float32 value v, except 0, of which 1 + v is exact in float64, and of infinity.
_MIN_EXACT, _INFINITE = np.uint32(0x31000000), np.uint32(0x7F800000)
# Bits of a float32 that a value of 16 bits without sign lacks.
_SIGN_AND_LOW_HALF = np.uint32(0x8000FFFF)
_BATCH = 2048  # values per batch, a fraction of the L1 cache; one test finds special values


def with_data(x: Any, data: Array) -> Any:
    """The sparse block `x` with other values; unlike SciPy this copies, widens, checks no index."""
    block = copy.copy(x)
    block.data = data
    return block


def scaled_dtype(dtype: Any) -> np.dtype:
    """Type of normalised values: float64 for float64 counts, float32 for all others."""
    return np.dtype(np.float64 if np.dtype(dtype) == np.float64 else np.float32)


def logged_dtype(dtype: Any) -> np.dtype:
    """Type of log values, as in NumPy and scanpy: float32 for float32, float64 for all others."""
    return np.dtype(np.float32 if np.dtype(dtype) == np.float32 else np.float64)


@njit(nogil=True, cache=True)
def _scale_csr(data: Array, indptr: Ints, factors: Floats, out: Array) -> None:
    batch = np.empty(_BATCH, data.dtype)
    for i in range(factors.size):
        for start in range(indptr[i], indptr[i + 1], _BATCH):
            stop = min(start + _BATCH, indptr[i + 1])
            _scale_batch(data[start:stop], factors[i], batch, out[start:stop])


@njit(nogil=True, cache=True)
def _scale_batch(values: Array, factor: float, batch: Array, out: Array) -> None:
    # By way of a copy, because loops are vectorised only if input and output do not overlap.
    for j in range(values.size):
        batch[j] = values[j]
    for j in range(values.size):
        out[j] = np.float64(batch[j]) * factor


@njit(nogil=True, cache=True)
def scale_values_into(values: Array, cells: Array, factors: Floats, out: Array) -> None:
    """Write each value times the factor of its cell to `out`, which may be `values`."""
    for j in range(values.size):
        out[j] = np.float64(values[j]) * factors[cells[j]]


@njit(nogil=True, cache=True)
def _scale_dense(x: Array, factors: Floats, out: Array) -> None:
    batch = np.empty(_BATCH, x.dtype)
    for i in range(x.shape[0]):
        for start in range(0, x.shape[1], _BATCH):
            genes = slice(start, start + _BATCH)
            _scale_batch(x[i, genes], factors[i], batch, out[i, genes])


def scale_rows(x: Block, factors: Array) -> Block:
    """Multiply each cell, also of CSC, by its factor, and round it once to :func:`scaled_dtype`."""
    out = np.empty(x.data.shape if is_sparse(x) else x.shape, scaled_dtype(x.dtype))
    scale_rows_into(x, factors, out)
    return with_data(x, out) if is_sparse(x) else out


def scale_rows_into(x: Block, factors: Array, out: Array) -> None:
    """Write the values of :func:`scale_rows` to `out`, which may be `x` or its ``data``."""
    factors = np.ascontiguousarray(factors, dtype=np.float64)
    if factors.shape != x.shape[:1]:
        raise ValueError(f"{factors.size} factors for {x.shape[0]} cells")
    if not is_sparse(x):
        _scale_dense(x, factors, out)
    elif x.format == "csr":
        _scale_csr(x.data, row_offsets(x), factors, out)
    else:
        scale_values_into(x.data, x.indices, factors, out)


@njit(nogil=True, cache=True, error_model="numpy")
def _log1p(v: Any) -> float:
    """log(1 + v) of a finite float64 v above -1."""
    u = np.float64(1.0 + v)
    lost = (v - (u - 1.0)) / u  # rounding error of 1 + v, to first order in the log
    # u = 2^e * m with m in [sqrt(1/2), sqrt(2))
    b = u.view(np.int64) + (_ONE - _SQRT_HALF)
    e = np.float64((b >> 52) - 1023)
    f = np.int64((b & _MANTISSA) + _SQRT_HALF).view(np.float64) - 1.0
    s = f / (2.0 + f)
    z = s * s
    r = z * (_R1 + z * (_R2 + z * (_R3 + z * (_R4 + z * (_R5 + z * (_R6 + z * _R7))))))
    h = 0.5 * f * f
    y: float = e * _LN2_HI - ((h - (s * (h + r) + (e * _LN2_LO + lost))) - f)
    return y


# Contraction to fused operations changes the last bits of the logarithm, not the rounded result.
@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
def _fast_log1p(v: Any) -> float:
    """log(1 + v) of a finite float64 v >= 0 that float32 holds; right to 2^-42."""
    # u = 2^e * (1 + f)
    b = np.float64(1.0 + v).view(np.int64) + (_ONE - _SQRT_HALF)
    e = np.float64((b >> 52) - 1023)
    f = np.int64((b & _MANTISSA) + _SQRT_HALF).view(np.float64) - 1.0
    s = f / (2.0 + f)
    z = s * s
    q = (_Q0 + z * _Q1) + (z * z) * ((_Q2 + z * _Q3) + (z * z) * _Q4)
    y: float = (e * _LN2 + (s * z) * q) + 2.0 * s
    return y


@njit(nogil=True, cache=True)
def _past_middle(y: Any) -> Any:
    """0 if `y` is so near the middle of two float32 that it may be rounded to the wrong one."""
    return (np.float64(y).view(np.int64) - (_MIDDLE - _NEAR)) & (_LOST_BITS ^ (2 * _NEAR - 1))


@njit(nogil=True, cache=True, error_model="numpy")
def _log1p_float32(x: Array, table: Array, out: Array) -> None:
    """:func:`_log1p_flat` of float32 values: the same bits, in less time. `table` is
    :func:`_logs_of_short_values`, which has all values of most batches of counts.
    """
    batch, all_bits = np.empty(_BATCH, np.float32), x.view(np.uint32)
    batch_bits = batch.view(np.uint32)
    for start in range(0, x.size, _BATCH):
        logs, bits = out[start : start + _BATCH], all_bits[start : start + _BATCH]
        # A copy by a loop, which is vectorised: the copy of a slice is not.
        either, least, most = np.uint32(0), np.uint32(0xFFFFFFFF), np.uint32(0)
        for i in range(bits.size):
            batch_bits[i] = bits[i]
            either |= bits[i]
            least = min(least, np.uint32(bits[i] - np.uint32(1)))  # of 0 the largest number
            most = max(most, bits[i])  # with a sign larger than infinity
        if either & _SIGN_AND_LOW_HALF == 0:
            for i in range(logs.size):
                logs[i] = table[batch_bits[i] >> np.uint32(16)]
            continue
        if most >= _INFINITE or least < _MIN_EXACT - np.uint32(1):
            _log1p_batch(batch[: logs.size], 1.0, logs)
            continue
        nearest = np.int64(_LOST_BITS)
        for i in range(logs.size):
            y = _fast_log1p(np.float64(batch[i]))
            nearest = min(nearest, _past_middle(y))
            logs[i] = y
        if nearest == 0:
            for i in range(logs.size):
                v = np.float64(batch[i])
                if _past_middle(_fast_log1p(v)) == 0:
                    logs[i] = _log1p(v)


@cache
def _logs_of_short_values() -> Array:
    """Logarithms, float32, of the float32 values that need 16 bits and no sign, by these bits: of
    the integers up to 256 and of many above.
    """
    values = (np.arange(2**15, dtype=np.uint32) << np.uint32(16)).view(np.float32)
    logs = np.empty_like(values)
    _log1p_flat(values, 1.0, logs)
    logs.flags.writeable = False  # threads share it
    return logs


@njit(nogil=True, cache=True)
def _special_log1p(v: float) -> float:
    """log(1 + v) of -1, of values below it, of an infinite one and of NaN."""
    return math.log1p(v) if v >= -1.0 else np.nan


# With NumPy's division (no exception on 0), without which LLVM cannot vectorise the loops.
@njit(nogil=True, cache=True, error_model="numpy")
def _log1p_flat(x: Array, log_base: float, out: Array) -> None:
    batch = np.empty(_BATCH, x.dtype)
    for start in range(0, x.size, _BATCH):
        logs, values = out[start : start + _BATCH], x[start : start + _BATCH]
        # A copy, because loops are vectorised only if input and output do not overlap. By a loop,
        # because the copy of a slice is not vectorised.
        for i in range(values.size):
            batch[i] = values[i]
        _log1p_batch(batch[: logs.size], log_base, logs)


@njit(nogil=True, cache=True, error_model="numpy")
def _log1p_batch(values: Array, log_base: float, logs: Array) -> None:
    special = False
    if log_base == 1.0:  # a separate loop, because a division takes a third of its time
        for i in range(values.size):
            v = np.float64(values[i])
            special |= not (-1.0 < v < np.inf)
            logs[i] = _log1p(v)
    else:
        for i in range(values.size):
            v = np.float64(values[i])
            special |= not (-1.0 < v < np.inf)
            logs[i] = _log1p(v) / log_base
    if special:  # -1, below -1, infinite or NaN
        for i in range(values.size):
            v = np.float64(values[i])
            if not (-1.0 < v < np.inf):
                logs[i] = _special_log1p(v) / log_base


def log1p(x: Block, base: float | None = None) -> Block:
    """log(1 + x), natural or to `base`, in float64, rounded once to :func:`logged_dtype`.

    The logarithm is that of fdlibm (``e_log.c``, with the correction of ``s_log1p.c``), so that,
    unlike NumPy's, its bits depend neither on the processor nor on the C library. The error is
    below 1 ulp of float64; float32 results are correctly rounded. Values below -1 give NaN. Dense
    arrays may have any shape, and sparse ones may be CSC.
    """
    values = x.data if is_sparse(x) else np.ascontiguousarray(x)
    out = np.empty(values.shape, logged_dtype(values.dtype))
    log1p_into(values.reshape(-1), out.reshape(-1), base)
    return with_data(x, out) if is_sparse(x) else out


def log1p_into(values: Array, out: Array, base: float | None = None) -> None:
    """Write :func:`log1p` of the contiguous 1-D `values` to `out`, which may be the same array."""
    if base is None and values.dtype == out.dtype == np.float32:
        _log1p_float32(values, _logs_of_short_values(), out)
    else:
        _log1p_flat(values, 1.0 if base is None else math.log(base), out)


def select_and_log_normalize(x: Block, scales: Array, new_column: Array) -> Block:
    """log(1 + normalised count) of the selected genes of the kept cells, with the bits of
    ``select_genes``, :func:`scale_rows` and :func:`log1p` one after another.

    `scales` are one over the size factor of each cell, NaN leaves it out. Indices of a sparse
    result are sorted within each cell; they and its indptr are int32 if that is wide enough.
    """
    if scales.shape != x.shape[:1] or new_column.shape != x.shape[1:]:
        msg = f"{scales.size} scales and {new_column.size} genes for a block of {x.shape}"
        raise ValueError(msg)
    kept = ~np.isnan(scales)
    is_selected = new_column >= 0
    shape = int(np.count_nonzero(kept)), int(np.count_nonzero(is_selected))
    if not is_sparse(x):
        index = np.empty(shape[1], np.int64)
        index[new_column[is_selected]] = np.flatnonzero(is_selected)
        return log1p(scale_rows(np.asarray(x)[np.ix_(kept, index)], scales[kept]))
    rows = csr_arrays(x)
    lengths = np.diff(rows.indptr)
    # Long enough for all values of the kept cells. The system makes only pages that are written.
    max_values = int(lengths[kept].sum())
    data = np.empty(max_values, scaled_dtype(x.dtype))
    indices: Array = np.empty(max_values, index_dtype(max_values, shape[1]))
    indptr = np.zeros(shape[0] + 1, indices.dtype)
    positions = np.empty(lengths.max(initial=0) + 1, np.int64)
    selected = CsrArrays(data, indices, indptr)
    _select_and_scale(rows, scales, is_selected, new_column, positions, selected)
    n = int(indptr[-1])
    return type(x)((log1p(data[:n]), indices[:n].copy(), indptr), shape=shape)


@njit(nogil=True, cache=True)
def _select_and_scale(
    rows: CsrArrays,
    scales: Floats,
    is_selected: Bools,
    new_column: Ints,
    positions: Array,
    out: CsrArrays,
) -> None:
    k = np.int64(0)  # of a literal 0 the type is another: it would compile the callee twice more
    kept = 0
    for row in range(scales.size):
        scale = scales[row]
        if np.isnan(scale):
            continue
        # Positions of the selected values, without a branch that would be mispredicted. Subscripts
        # are unsigned, because Numba tests signed ones for negative values.
        n = np.uint64(0)
        for at in range(rows.indptr[row], rows.indptr[row + 1]):
            positions[n] = at
            n += np.uint64(is_selected[np.uint64(rows.indices[at])])
        start = k
        for i in range(np.int64(n)):
            gene = new_column[rows.indices[positions[i]]]
            value = np.float64(rows.data[positions[i]]) * scale
            insert_sorted(gene, value, start, k, out.data, out.indices)
            k += 1
        kept += 1
        out.indptr[kept] = k
