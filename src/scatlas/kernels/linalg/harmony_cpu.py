"""Harmony of a block of cells: soft clusters, their sums over batches, and the correction (Numba).

Sums are of numbers rounded to a grid, so that float64 holds them exactly: no bit depends on the
order in which threads add. A grid is a power of two above the largest sum that can be; adding and
subtracting it leaves a multiple of 2**-53 of it (Rump, Ogita, Oishi: SIAM J. Sci. Comput. 31,
2008).
``codes`` number the combinations of batches that a cell has, one of each column, and ``levels``
[combinations, columns] the batches over all columns.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types
from numba.core.cgutils import ir
from numba.extending import intrinsic

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scatlas.arrays.array_types import Array, Float32Array, Floats, Ints

# Arrays of these kernels.
xp = np
# exp(r) - 1 - r over r**2 for |r| <= log(2) / 2, and log(2) in two parts, the first of few bits, so
# that its multiples are exact (Cephes, expf.c; S. L. Moshier).
_EXP = tuple(
    np.float32(c)
    for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1)
)
_C0, _C1, _C2, _C3, _C4 = _EXP
_HALF, _ONE, _SMALLEST_LOG = np.float32(5.0000001201e-1), np.float32(1.0), np.float32(-87.0)
_LOG2_HIGH, _LOG2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_LOG2_E, _ROUNDING = np.float32(1.44269504088896341), np.float32(1.5 * 2.0**23)
_NO_SIGN = np.int32(0x7FFFFFFF)
# Cells whose shares are converted to float64 at a time, to stay in the cache.
_CELLS_AT_ONCE = 128


def grid_of(largest: float, n: int) -> float:
    """Grid for sums of ``n`` numbers of at most this magnitude."""
    return 2.0 ** math.frexp(max(n * largest, 2.0**-500))[1]


@intrinsic
def _from_bits(typing_context: Any, bits: Any) -> Any:  # noqa: ARG001
    """The float32 of these bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@njit(nogil=True, cache=True)
def _exp(x: Any) -> Any:
    """``exp(x)`` for x of at most 0, to 1e-7 of it: the compiler makes no vectors of math.exp."""
    x = max(x, _SMALLEST_LOG)
    n = (x * _LOG2_E + _ROUNDING) - _ROUNDING
    r = (x - n * _LOG2_HIGH) - n * _LOG2_LOW
    y = ((((_C0 * r + _C1) * r + _C2) * r + _C3) * r + _C4) * r + _HALF
    y = (y * (r * r) + r) + _ONE
    return y * _from_bits((np.int32(n) + np.int32(127)) << np.int32(23))


@njit(nogil=True, cache=True)
def _largest(bits: Array) -> Any:
    """Largest of float32 numbers by their bits: maxima of integers are vectorised."""
    top = np.int32(-(2**31))
    for k in range(bits.size):
        b = bits[k]
        top = max(top, np.int32(b ^ ((b >> np.int32(31)) & _NO_SIGN)))
    return _from_bits(np.int32(top ^ ((top >> np.int32(31)) & _NO_SIGN)))


@njit(nogil=True, cache=True, fastmath={"reassoc"})
def _total(values: Float32Array) -> Any:
    """Sum in the order of the processor's vectors."""
    total = np.float32(0.0)
    for k in range(values.size):
        total += values[k]
    return total


def soft_clusters(
    logits: Float32Array, penalties: Float32Array, blocks: Array, codes: Array, levels: Ints
) -> float:
    """Replace rows by the softmax of them and the penalties [blocks, batches, clusters] of their
    block and batches; the sum of the logarithms of what they are divided by.
    """
    return float(_soft_clusters(logits, logits.view(np.int32), penalties, blocks, codes, levels))


@njit(nogil=True, cache=True)
def _soft_clusters(
    logits: Float32Array,
    bits: Array,
    penalties: Float32Array,
    blocks: Array,
    codes: Array,
    levels: Ints,
) -> float:
    n_clusters = logits.shape[1]
    logs = 0.0
    for i in range(logits.shape[0]):
        row = logits[i]
        for column in range(levels.shape[1]):
            penalty = penalties[blocks[i], levels[codes[i], column]]
            for k in range(n_clusters):
                row[k] += penalty[k]
        top = _largest(bits[i])
        for k in range(n_clusters):
            row[k] = _exp(row[k] - top)
        total = _total(row)
        factor = _ONE / total
        for k in range(n_clusters):
            row[k] *= factor
        logs += np.float64(top) + math.log(np.float64(total))
    return logs


@njit(nogil=True, cache=True)
def unit_rows(x: Float32Array) -> None:
    """Scale each row to length 1, in place; rows of zeros stay."""
    for i in range(x.shape[0]):
        row = x[i]
        square = 0.0
        for j in range(row.size):
            square += np.float64(row[j]) * np.float64(row[j])
        if square > 0.0:
            length = math.sqrt(square)
            for j in range(row.size):
                row[j] = np.float32(np.float64(row[j]) / length)


@njit(nogil=True, cache=True)
def add_shares(
    shares: Float32Array, codes: Array, levels: Ints, blocks: Array, grid: float, sums: Floats
) -> None:
    """Add each row to ``sums`` [blocks, batches, clusters] of its block and batches."""
    n_clusters = shares.shape[1]
    for i in range(shares.shape[0]):
        row = shares[i]
        for column in range(levels.shape[1]):
            total = sums[blocks[i], levels[codes[i], column]]
            for k in range(n_clusters):
                total[k] += (np.float64(row[k]) + grid) - grid


def runs_of(codes: Array) -> Iterator[tuple[int, Any]]:
    """Code and rows of all rows with it: a slice where they are neighbours, as cells of a plate."""
    order = np.argsort(codes, kind="stable")
    sorted_codes = codes[order]
    cuts = np.flatnonzero(np.diff(sorted_codes)) + 1
    for first, stop in pairwise([0, *cuts.tolist(), codes.size]):
        rows: Any = order[first:stop]
        if rows[-1] - rows[0] == rows.size - 1:
            rows = slice(int(rows[0]), int(rows[-1]) + 1)
        yield int(sorted_codes[first]), rows


def add_products(
    shares: Float32Array, z: Floats, codes: Array, grids: Floats, sums: Floats
) -> None:
    """Add ``shares[i, k] * z[i]`` to ``sums[codes[i], k]`` [combinations, clusters, columns of z],
    after a sum over the rows of a code.
    """
    for code, rows in runs_of(codes):
        own, own_z = shares[rows], z[rows]
        total = np.zeros(sums.shape[1:])
        for first in range(0, len(own), _CELLS_AT_ONCE):
            part = slice(first, first + _CELLS_AT_ONCE)
            total += own[part].T.astype(np.float64) @ own_z[part]
        total += grids
        total -= grids
        sums[code] += total


def subtract_terms(
    z: Float32Array, shares: Float32Array, codes: Array, terms: Float32Array
) -> None:
    """Subtract ``sum_k shares[i, k] * terms[codes[i], k]`` from each row of ``z``, in place."""
    for code, rows in runs_of(codes):
        z[rows] -= shares[rows] @ terms[code]
