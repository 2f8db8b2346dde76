"""Sums of values and their squares without rounding, and so without errors to carry (Numba).

Each gene has four float64, neighbours in memory: the sum of its values, the number of values above
zero, and the sums of the high and low parts of the squares, split at a power of two, the grid, so
that no sum rounds (Rump, Ogita, Oishi, SIAM J. Sci. Comput. 31, 2008).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types
from numba.core.cgutils import ir
from numba.extending import intrinsic

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from scatlas.arrays.array_types import Array, Floats, Ints

_INFINITE = 0x7F800000  # bits of infinity in float32; those of NaN are larger
_BATCH = 1024


def n_exact(smallest: float, largest: float, n_rows: int) -> tuple[int, float]:
    """Number of values (n, at most `n_rows`) that can be summed exactly, and their grid.

    All values are at most `largest` (m) and are multiples of u, the unit in the last place of
    `smallest` in float32. n is chosen so that n * m / u <= 2**52, so the sum of n values is exact.
    Let 2**e, the grid, be the power of two above n * m**2. Adding and subtracting 2**e leaves the
    high part of a square: a multiple of 2**(e - 52), and n of them stay below 2**(e + 1). The low
    part is a multiple of u**2 of at most 2**(e - 53), and n of them stay at n * 2**(e - 53) <=
    n**2 * m**2 / 2**52 <= 2**52 * u**2. No sum of either part reaches 2**53 of its units, so
    float64 holds it exactly.
    """
    n = min(max(1, n_rows), int(2.0**52 * float(np.spacing(np.float32(smallest))) / largest))
    return n, 2.0 ** math.frexp(n * largest**2)[1]


def grid_of(values: Array, n_rows: int) -> float:
    """Grid with which the sums of `n_rows` of the float32 values are exact; 0 if none is."""
    if values.size == 0:
        return 1.0
    least, most = _bounds(values.reshape(-1).view(np.uint32))
    if least >= _INFINITE:  # all are zero
        return 1.0 if most == 0 else 0.0
    if most >= _INFINITE:
        return 0.0
    smallest, largest = np.array([least, most], np.uint32).view(np.float32).tolist()
    n, grid = n_exact(smallest, largest, n_rows)
    return grid if n >= n_rows else 0.0


@njit(nogil=True, cache=True)
def _bounds(bits: Array) -> tuple[Any, Any]:
    """Bits of the smallest magnitude above 0 and of the largest: magnitudes are in the order of
    their bits, and minima of integers are vectorised.
    """
    least, most = np.uint32(0xFFFFFFFF), np.uint32(0)
    for i in range(bits.size):
        magnitude = np.uint32(bits[i] & np.uint32(0x7FFFFFFF))
        most = max(most, magnitude)
        least = min(least, np.uint32(magnitude - np.uint32(1)))  # of 0 the largest number
    return np.int64(least) + 1, np.int64(most)


# Four sums are one vector for the processor. Numba disables LLVM's pass that would merge four
# additions, which take 1.5 times as long.
_FOUR = ir.VectorType(ir.DoubleType(), 4)


def _pointer_to_four(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), _FOUR.as_pointer())


@intrinsic
def add_four(typing_context: Any, sums: Any, at: Any, values: Any, first: Any) -> Any:  # noqa: ARG001
    """``sums[at : at + 4] += values[first : first + 4]`` as one vector addition."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, source = (
            _pointer_to_four(context, builder, signature.args[i], *arguments[i : i + 2])
            for i in (0, 2)
        )
        total = builder.fadd(builder.load(target, align=8), builder.load(source, align=8))
        builder.store(total, target, align=8)
        return context.get_dummy_value()

    return types.void(sums, at, values, first), generate


@intrinsic
def _add_numbers(
    typing_context: Any,  # noqa: ARG001
    sums: Any,
    at: Any,
    a: Any,
    b: Any,
    c: Any,
    d: Any,
) -> Any:
    """``sums[at : at + 4] += a, b, c, d`` as one vector addition."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target = _pointer_to_four(context, builder, signature.args[0], *arguments[:2])
        numbers = ir.Constant(_FOUR, ir.Undefined)
        for i, number in enumerate(arguments[2:]):
            numbers = builder.insert_element(numbers, number, ir.Constant(ir.IntType(32), i))
        builder.store(builder.fadd(builder.load(target, align=8), numbers), target, align=8)
        return context.get_dummy_value()

    return types.void(sums, at, a, b, c, d), generate


@njit(nogil=True, cache=True)
def add_rows(
    data: Array, indices: Array, indptr: Ints, offsets: Ints, grid: float, sums: Floats
) -> None:
    """Add the values of each row to the sums of its group, which begin at its offset (-1: none)."""
    four = np.uint64(4)
    for row in range(offsets.size):
        if offsets[row] < 0:
            continue
        # Subscripts are unsigned, because Numba tests signed ones for negative values.
        offset = np.uint64(offsets[row])
        for at in range(indptr[row], indptr[row + 1]):
            add_value(np.float64(data[at]), offset + four * np.uint64(indices[at]), grid, sums)


@njit(nogil=True, cache=True)
def add_value(v: float, target: Any, grid: float, sums: Floats) -> None:
    """Add one value to the four sums at `target`."""
    square = v * v
    high = (square + grid) - grid
    _add_numbers(sums, target, v, np.float64(v > 0.0), high, square - high)


@njit(nogil=True, cache=True)
def add_genes(data: Array, indptr: Ints, first: int, last: int, grid: float, sums: Floats) -> None:
    """Add the values of the genes `first` to `last` of a CSC matrix to ``sums[gene]``."""
    highs, lows = np.empty(_BATCH), np.empty(_BATCH)
    for gene in range(first, last):
        for start in range(indptr[gene], indptr[gene + 1], _BATCH):
            values = data[start : min(start + _BATCH, indptr[gene + 1])]
            number = 0
            for i in range(values.size):
                square = np.float64(values[i]) * np.float64(values[i])
                highs[i] = (square + grid) - grid
                number += values[i] > 0
            for i in range(values.size):
                lows[i] = np.float64(values[i]) * np.float64(values[i]) - highs[i]
            sums[gene, 0] += _total(values)
            sums[gene, 1] += number
            sums[gene, 2] += _total(highs[: values.size])
            sums[gene, 3] += _total(lows[: values.size])


@njit(nogil=True, cache=True, fastmath={"reassoc"})
def _total(values: Array) -> float:
    """Sum in any order, which the compiler vectorises; it is exact, and so always the same."""
    total = 0.0
    for i in range(values.size):
        total += np.float64(values[i])
    return total


@njit(nogil=True, cache=True)
def finish_sums(sums: Floats, expressed: Ints) -> None:
    """Convert sum, number of cells, and high and low sum of squares to the sums of `Moments`."""
    for gene in range(expressed.size):
        expressed[gene] = np.int64(sums[4 * gene + 1])
        high, low = sums[4 * gene + 2], sums[4 * gene + 3]
        squares = high + low
        part = squares - high
        sums[4 * gene + 1] = 0.0
        sums[4 * gene + 2] = squares
        sums[4 * gene + 3] = (high - (squares - part)) + (low - part)
