"""Arithmetic of pairs, a sum and its rounding error in float64, and the rows of a block (Numba).

D. E. Knuth, The Art of Computer Programming 2, section 4.2.2: the error of a sum. T. J. Dekker,
Numer. Math. 18 (1971): the error of a product, and the addition of pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types
from numba.extending import overload, register_jitable

from scatlas.arrays.array_types import Array, Block, Ints, is_sparse, row_offsets
from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Types (NumPy codes) whose squares float64 holds exactly: they have at most 53 significant bits.
EXACT_SQUARES = frozenset("?bBhHef")

# A gene is constant if its sum of squared deviations is below n * CONSTANT times its sum of
# squares: that much is rounding of the pairs. (Float32 values that differ leave at least 2**-48 /
# n.)
CONSTANT = 2.0**-102


def local_groups(codes: NDArray[np.integer] | None, n_rows: int) -> tuple[Ints, Ints]:
    """Sorted groups that occur in a block, and the index of each row's group (-1: left out)."""
    if codes is None:
        return np.zeros(1, dtype=np.int64), np.zeros(n_rows, dtype=np.int64)
    groups = np.unique(codes[codes >= 0]).astype(np.int64)
    return groups, np.where(codes >= 0, np.searchsorted(groups, codes), -1).astype(np.int64)


def stored_values(x: Block) -> Array:
    """Values that a block stores, or all of a dense block."""
    return x.data if is_sparse(x) else np.asarray(x)


def gene_rows(x: Block) -> tuple[Array | None, Ints | None]:
    """Genes of the stored values of a block and offsets of its rows; None for a dense block."""
    return (x.indices, row_offsets(x)) if is_sparse(x) else (None, None)


def _dense_row(values: Array, _indices: None, _indptr: None, row: int) -> tuple[Array, None]:
    return values[row], None


def _sparse_row(values: Array, indices: Array, indptr: Ints, row: int) -> tuple[Array, Array]:
    part = slice(indptr[row], indptr[row + 1])
    return values[part], indices[part]


def row_of(values: Any, indices: Any, indptr: Any, row: Any) -> Any:
    """Values of a row and their genes (None: all): one loop for dense and sparse blocks."""
    return (_dense_row if indices is None else _sparse_row)(values, indices, indptr, row)


@overload(row_of, strict=False)
def _compiled_row_of(_values: Any, indices: Any, _indptr: Any, _row: Any) -> Any:
    return _dense_row if isinstance(indices, types.NoneType) else _sparse_row


@njit(nogil=True, cache=True)
def gene_at(genes: Array | None, k: int) -> Any:
    """Gene of value `k` of a row; unsigned, because Numba tests signed ones for negative values."""
    return np.uint64(k) if genes is None else np.uint64(genes[k])


@njit(nogil=True, cache=True)
def square_error(v: float, square: float) -> float:
    """Return ``v * v - square`` exactly (Dekker)."""
    c = 134217729.0 * v  # 2**27 + 1
    high = c - (c - v)
    low = v - high
    return ((high * high - square) + 2.0 * high * low) + low * low


# The following functions take numbers, NumPy arrays or CuPy arrays; compiled code calls them too.


@register_jitable
def pair_sum(high: Any, low: Any, value: Any, error: Any) -> tuple[Any, Any]:
    """Sum of the pairs ``high + low`` and ``value + error``, as such a pair (Knuth, Dekker)."""
    new = high + value
    part = new - high
    rest = low + (((high - (new - part)) + (value - part)) + error)
    # Normalise the pair each time: an error that grows with n would itself be rounded.
    total = new + rest
    return total, rest - (total - new)


def means_and_deviations(
    total: Any, total_low: Any, squares: Any, squares_low: Any, n: Any
) -> tuple[Any, Any]:
    """Means and sums of squared deviations from them, from sums that are pairs; of any shape.
    Deviations are exactly zero where all values are the same (see ``CONSTANT``).
    """
    deviations = squared_deviations(total, total_low, squares, squares_low, n)
    return total / n, np.where(deviations <= n * CONSTANT * squares, 0.0, deviations)


@register_jitable
def squared_deviations(total: Any, total_low: Any, squares: Any, squares_low: Any, n: Any) -> Any:
    """Sums of squared deviations; for constant values a rounding error remains."""
    # total**2 / n as a pair: the quotient and its rounding error.
    product = total * total
    product_low = product_error(total, total, product) + 2.0 * total * total_low
    quotient = product / n
    back = quotient * n
    rest = (product - back) - product_error(quotient, n, back)
    quotient_low = (rest + product_low) / n
    return (squares - quotient) + (squares_low - quotient_low)


@register_jitable
def product_error(a: Any, b: Any, product: Any) -> Any:
    """Return ``a * b - product`` exactly (Dekker)."""
    c = 134217729.0 * a
    a_high = c - (c - a)
    a_low = a - a_high
    c = 134217729.0 * b
    b_high = c - (c - b)
    b_low = b - b_high
    return ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
