"""Elementwise steps of one block: scaling each cell, log(1 + x).

Both return a new block. The values are new, the structure of a sparse result (``indices``,
``indptr``) is the input's own: elementwise steps do not change it, and copying it would double
the memory traffic. Nobody may sort or compact such a result in place while the input is in use.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    Block = np.ndarray | sp.csr_matrix | sp.csr_array | sp.csc_matrix | sp.csc_array

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
_LANES = 1024  # values worked on at once: three buffers of this length stay in the L1 cache


def with_data(x: Any, data: np.ndarray) -> Any:
    """The sparse block `x` with other values and the very same structure.

    No index is copied, widened or checked, as SciPy's constructors would do.
    """
    block = copy.copy(x)
    block.data = data
    return block


def scaled_dtype(dtype: Any) -> np.dtype:
    """Type of normalised values: float64 stays, all else becomes float32."""
    return np.dtype(np.float64 if np.dtype(dtype) == np.float64 else np.float32)


def logged_dtype(dtype: Any) -> np.dtype:
    """Type of log values, as NumPy's and scanpy's: float32 stays, all else becomes float64."""
    return np.dtype(np.float32 if np.dtype(dtype) == np.float32 else np.float64)


@njit(nogil=True, cache=True)
def _scale_csr(data, indptr, factors, out):
    for i in range(factors.size):
        factor = factors[i]
        for j in range(indptr[i], indptr[i + 1]):
            out[j] = np.float64(data[j]) * factor


@njit(nogil=True, cache=True)
def _scale_csc(data, indices, factors, out):
    for j in range(data.size):
        out[j] = np.float64(data[j]) * factors[indices[j]]


@njit(nogil=True, cache=True)
def _scale_dense(x, factors, out):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = np.float64(x[i, j]) * factors[i]


def scale_rows(x: Block, factors: np.ndarray) -> Block:
    """Multiply each cell by its factor, in float64, rounded once.

    Parameters
    ----------
    x
        Block [cells x genes]: dense, CSR, or (in memory) CSC; any real dtype.
    factors
        float64 [cells].

    Returns
    -------
    A new block of the same kind; float64 for float64 values, otherwise float32.
    """
    factors = np.ascontiguousarray(factors, dtype=np.float64)
    if factors.shape != x.shape[:1]:
        msg = f"{factors.size} factors for {x.shape[0]} cells"
        raise ValueError(msg)
    if not sp.issparse(x):
        out = np.empty(x.shape, scaled_dtype(x.dtype))
        _scale_dense(x, factors, out)
        return out
    out = np.empty(x.data.shape, scaled_dtype(x.dtype))
    if x.format == "csr":
        # int64 pointers: a copy of one number a cell, for one compiled variant instead of two.
        _scale_csr(x.data, x.indptr.astype(np.int64, copy=False), factors, out)
    else:
        _scale_csc(x.data, x.indices, factors, out)
    return with_data(x, out)


# NumPy's division rules (no exception on 0): otherwise LLVM cannot vectorise the loops.
@njit(nogil=True, cache=True, error_model="numpy")
def _log1p_flat(x, log_base, out):
    one_plus = np.empty(_LANES, np.float64)
    bits = one_plus.view(np.int64)
    exponent = np.empty(_LANES, np.float64)
    lost = np.empty(_LANES, np.float64)
    natural = log_base == 1.0
    for start in range(0, x.size, _LANES):
        n = min(_LANES, x.size - start)
        odd = 0
        for i in range(n):
            v = np.float64(x[start + i])
            odd += not (-1.0 < v < np.inf)
            u = 1.0 + v
            one_plus[i] = u
            lost[i] = (v - (u - 1.0)) / u  # what rounding 1 + v dropped, to first order in log
        for i in range(n):  # u = 2^exponent * m with m in [sqrt(1/2), sqrt(2))
            b = bits[i] + (_ONE - _SQRT_HALF)
            exponent[i] = np.float64((b >> 52) - 1023)
            bits[i] = (b & _MANTISSA) + _SQRT_HALF
        for i in range(n):
            f = one_plus[i] - 1.0
            s = f / (2.0 + f)
            z = s * s
            r = z * (_R1 + z * (_R2 + z * (_R3 + z * (_R4 + z * (_R5 + z * (_R6 + z * _R7))))))
            h = 0.5 * f * f
            e = exponent[i]
            y = e * _LN2_HI - ((h - (s * (h + r) + (e * _LN2_LO + lost[i]))) - f)
            out[start + i] = y if natural else y / log_base
        if odd:  # -1, below -1, infinite or NaN
            for i in range(start, start + n):
                v = np.float64(x[i])
                if not (-1.0 < v < np.inf):
                    out[i] = math.log1p(v) / log_base if v >= -1.0 else np.nan


def log1p(x: Block, base: float | None = None) -> Block:
    """log(1 + x), in float64, rounded once; natural, or to `base`.

    The logarithm is fdlibm's (argument reduction and polynomial of ``e_log.c``, first-order
    correction of 1 + x as in ``s_log1p.c``), written so that the compiler vectorises it. Its bits
    do not depend on the processor or the C library, unlike NumPy's. Error below 1 ulp of float64;
    float32 results are the correctly rounded ones.

    Parameters
    ----------
    x
        Array of any shape, or a sparse block (CSR or CSC). Values below -1 give NaN.
    base
        Positive and not 1; natural logarithm when None.

    Returns
    -------
    A new block of the same kind; float32 for float32 values, otherwise float64.
    """
    log_base = 1.0 if base is None else math.log(base)
    values = x.data if sp.issparse(x) else np.ascontiguousarray(x)
    out = np.empty(values.shape, logged_dtype(values.dtype))
    _log1p_flat(values.reshape(-1), log_base, out.reshape(-1))
    return with_data(x, out) if sp.issparse(x) else out
