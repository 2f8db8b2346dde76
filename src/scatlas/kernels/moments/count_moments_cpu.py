"""Moments of normalised counts, straight from the counts of one row block, in one sweep (Numba).

Counts are whole numbers and most are small, so what a count of 1, 2, 3, ... adds to a gene is
worked out once for each cell. The sums are exact (see :func:`_exact_rows`): they depend neither on
the order of the cells nor on how these were cut into blocks.

References
----------
S. M. Rump, T. Ogita, S. Oishi, "Accurate floating-point summation part I", SIAM J. Sci. Comput. 31
(2008): numbers split at a common power of two, so that the sum of either part has no rounding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types
from numba.core.cgutils import ir
from numba.extending import intrinsic
from scipy import sparse

from scatlas.arrays import aligned
from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.counts.normalize_cpu import log1p, scale_rows
from scatlas.kernels.moments.moments_cpu import (
    Moments,
    expm1_of,
    fold,
    group_sizes,
    local_groups,
    moments,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

# What counts below this add to a gene is looked up; larger ones are few.
_SMALL = 32
# Cells looked up at once: 32 values each.
_ROWS = 4096
# The last whole numbers that int32 holds, and of those the last that is one of float32.
_LARGEST = 2**31 - 1
_LARGEST_FLOAT32 = 2**31 - 2**7
# Float32 holds every whole number up to this one.
_WHOLE_FLOAT32 = 2**24
# Exact sums of fewer cells would be folded so often that the general kernel is as quick.
_FEWEST_ROWS = 64


def normalized_moments(
    x: NDArray | sparse.csr_matrix | sparse.csr_array,
    scales: NDArray[np.float64],
    codes: NDArray[np.integer] | None = None,
    *,
    log: bool = False,
    expm1: bool = False,
) -> Moments:
    """Moments per gene of the normalised counts of a block, by group.

    The values are those of :func:`~scatlas.kernels.counts.normalize_cpu.scale_rows` and
    :func:`~scatlas.kernels.counts.normalize_cpu.log1p`: float32, but float64 for float64 counts.
    CSR blocks of whole counts are taken as they are. Dense blocks, and values that differ so much
    in size that the quick sums would round, are normalised first.

    Parameters
    ----------
    x
        Counts ``[n, n_genes]``, dense or CSR without duplicated entries, of any real dtype and
        index width.
    scales
        float64 ``[n]``, one over the size factor of each cell. NaN leaves the cell out.
    codes
        Group of each row, integer ``[n]``; rows with a negative code are left out. ``None``: one
        group, 0.
    log
        Take the moments of the natural logarithm of 1 + the normalised count.
    expm1
        Take those of ``expm1`` of that, as :func:`~scatlas.kernels.moments.moments_cpu.moments`
        does.

    Returns
    -------
    The moments of the groups that occur in the block (one row a group).
    """
    n_rows = x.shape[0]

    def transform(normalised: NDArray) -> NDArray:
        values = log1p(normalised) if log else normalised
        return expm1_of(values, None) if expm1 else values

    scales = np.ascontiguousarray(scales, dtype=np.float64)
    if scales.shape != (n_rows,):
        msg = f"{scales.size} scales for {n_rows} cells"
        raise ValueError(msg)
    kept = ~np.isnan(scales)
    if not kept.all():
        codes = np.where(kept, 0 if codes is None else codes, -1)
    if sparse.issparse(x):
        exact = _exact_rows(x.data, scales[kept], n_rows, transform)
        if exact[0] >= min(n_rows, _FEWEST_ROWS):
            return _of_counts(x, np.where(kept, scales, 0.0), codes, transform, exact)
    values = scale_rows(x, scales)
    return moments(log1p(values) if log else values, codes, expm1=expm1)


def moments_of_counts(
    x: NDArray | sparse.csr_matrix | sparse.csr_array,
    codes: NDArray[np.integer] | None = None,
) -> Moments:
    """As :func:`~scatlas.kernels.moments.moments_cpu.moments`, to the same bits; quicker for
    counts.

    Counts that float32 holds are normalised ones with a size factor of 1.
    """
    if sparse.issparse(x) and x.dtype.kind in "iub" and _fit_float32(x.data):
        return normalized_moments(x, np.ones(x.shape[0]), codes)
    return moments(x, codes)


def _fit_float32(integers: NDArray) -> bool:
    if integers.itemsize <= 2 or integers.size == 0:
        return True
    return bool(integers.max() <= _WHOLE_FLOAT32 and integers.min() >= -_WHOLE_FLOAT32)


def _exact_rows(
    counts: NDArray,
    scales: NDArray[np.float64],
    n_rows: int,
    transform: Callable[[NDArray], NDArray],
) -> tuple[int, float, int]:
    """How many cells (n) can be summed without rounding, and the power of two to split squares at.

    All values are multiples of u, the unit in the last place of the least that a count can become,
    and at most m. n is chosen so that n * m / u <= 2**52, below which n values add up exactly. Let
    2**e be the power of two above n * m**2. The part of a square that is left when 2**e has been
    added and subtracted is a multiple of 2**(e - 52), and n of them stay below 2**(e + 1). The rest
    is a multiple of u**2 of at most 2**(e - 53), and n of them stay at n * 2**(e - 53) <= n**2 *
    m**2 / 2**52 <= 2**52 * u**2. No sum of either part reaches 2**53 of its units, so that float64
    holds it exactly.

    Returns
    -------
    Also how many counts are not looked up. No cells where the counts are not whole and positive
    numbers of the size that counts have.
    """
    none = 0, 0.0, 0
    if counts.size == 0 or scales.size == 0:
        return max(1, n_rows), 1.0, counts.size
    if counts.dtype == np.float64:
        return none
    if counts.dtype == bool:
        counts = counts.view(np.uint8)
    floats = counts.dtype.kind == "f"
    most = _LARGEST_FLOAT32 if floats else min(_LARGEST, np.iinfo(counts.dtype).max)
    whole, highest, n_large = _survey(counts, counts.dtype.type(most))
    if not whole:
        return none
    with np.errstate(over="ignore"):
        bounds = np.array([scales.min(), highest * scales.max()]).astype(np.float32)
        # A little farther apart: NumPy's expm1 may be off by a unit or two in the last place.
        least, most = transform(bounds).astype(np.float64) * (1 - 2.0**-20, 1 + 2.0**-20)
    if not 0 < least < np.inf or not most < np.inf:
        return none
    most = max(most, least)
    n = min(max(1, n_rows), int(2.0**52 * float(np.spacing(np.float32(least))) / most))
    return n, 2.0 ** math.frexp(n * most**2)[1], n_large


@njit(nogil=True, cache=True)
def _survey(counts, most):
    """Whether all are whole numbers from 0 to `most`, of their own type; the largest; how many are
    not small.

    Without a branch, so that the compiler turns it into vector instructions.
    """
    wrong = False
    highest = np.int32(0)
    n_large = np.int64(0)
    for i in range(counts.size):  # not over the values themselves: that keeps them scalar
        value = counts[i]
        fits = (value >= 0) & (value <= most)
        # What does not fit, NaN too, is not converted: the result would be undefined.
        count = np.int32(value if fits else counts.dtype.type(0))
        wrong |= count != value
        highest = max(highest, count)
        n_large += count >= _SMALL
    return not wrong, highest, n_large


def _of_counts(
    x: sparse.csr_matrix | sparse.csr_array,
    scales: NDArray[np.float64],
    codes: NDArray[np.integer] | None,
    transform: Callable[[NDArray], NDArray],
    exact: tuple[int, float, int],
) -> Moments:
    n_rows, n_genes = x.shape
    n_exact, grid, n_large = exact
    groups, local = local_groups(codes, n_rows)
    offsets = np.where(local < 0, -1, 4 * n_genes * local)
    indptr = x.indptr.astype(np.int64, copy=False)
    large = tuple(np.empty(n_large, np.int64) for _ in range(3))
    parts = []
    for start in range(0, max(1, n_rows), n_exact):
        end = min(start + n_exact, n_rows)
        sums = aligned.zeros((groups.size, n_genes, 4))
        expressed = np.empty((groups.size, n_genes), dtype=np.int64)
        flat = sums.reshape(-1)
        for first in range(start, end, _ROWS):
            rows = slice(first, min(first + _ROWS, end))
            pointers = indptr[first : rows.stop + 1]
            _add_rows(x, pointers, offsets[rows], scales[rows], transform, grid, flat, large)
        _close(flat, expressed.reshape(-1))
        parts.append(Moments(groups, group_sizes(local[start:end], groups.size), sums, expressed))
    return fold(parts)


def _add_rows(
    x: sparse.csr_matrix | sparse.csr_array,
    pointers: NDArray[np.int64],
    offsets: NDArray[np.int64],
    scales: NDArray[np.float64],
    transform: Callable[[NDArray], NDArray],
    grid: float,
    sums: NDArray[np.float64],
    large: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
) -> None:
    """Add the rows that `pointers` mark, each to the group whose numbers begin at its offset."""
    with np.errstate(over="ignore"):  # by a count that the block has not
        lookup = transform(np.multiply.outer(scales, np.arange(_SMALL)).astype(np.float32))
    at, rows, places = large
    n = _add_small(x.data, x.indices, pointers, offsets, lookup, grid, sums, at, rows, places)
    values = (x.data[at[:n]] * scales[rows[:n]]).astype(np.float32)
    _add_large(transform(values), places[:n], grid, sums)


@intrinsic
def _add_four(typing_context: Any, sums: Any, at: Any, values: Any, first: Any) -> Any:  # noqa: ARG001
    """``sums[at : at + 4] += values[first : first + 4]`` as one vector addition.

    Numba leaves LLVM's pass that would join four additions switched off; they take 1.5x as long.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        four = ir.VectorType(ir.DoubleType(), 4)

        def pointer(i: int) -> Any:
            array = context.make_array(signature.args[i])(context, builder, arguments[i])
            address = builder.gep(array.data, [arguments[i + 1]])
            return builder.bitcast(address, four.as_pointer())

        target = pointer(0)
        total = builder.fadd(builder.load(target, align=8), builder.load(pointer(2), align=8))
        builder.store(total, target, align=8)
        return context.get_dummy_value()

    return types.void(sums, at, values, first), generate


@njit(nogil=True, cache=True)
def _add_small(data, indices, indptr, offsets, lookup, grid, sums, large, rows, places):
    # Unsigned subscripts: Numba tests signed ones for being negative.
    four = np.uint64(4)
    parts = np.zeros(4 * _SMALL)
    n = 0
    for row in range(offsets.size):
        if offsets[row] < 0:
            continue
        offset = np.uint64(offsets[row])
        for count in range(1, _SMALL):
            v = np.float64(lookup[row, count])
            square = v * v
            high = (square + grid) - grid
            parts[4 * count] = v
            parts[4 * count + 1] = 1.0
            parts[4 * count + 2] = high
            parts[4 * count + 3] = square - high
        for at in range(indptr[row], indptr[row + 1]):
            count = data[at]
            place = offset + four * np.uint64(indices[at])
            if count < _SMALL:
                _add_four(sums, place, parts, 4 * np.int64(count))
            else:
                large[n], rows[n], places[n] = at, row, place
                n += 1
    return n


@njit(nogil=True, cache=True)
def _add_large(values, places, grid, sums):
    for k in range(values.size):
        v = np.float64(values[k])
        square = v * v
        high = (square + grid) - grid
        place = places[k]
        sums[place] += v
        sums[place + 1] += 1.0
        sums[place + 2] += high
        sums[place + 3] += square - high


@njit(nogil=True, cache=True)
def _close(sums, expressed):
    """From sum, cells, and sum of squares in two parts to what :class:`Moments` holds."""
    for gene in range(expressed.size):
        expressed[gene] = np.int64(sums[4 * gene + 1])
        high, low = sums[4 * gene + 2], sums[4 * gene + 3]
        squares = high + low
        part = squares - high
        sums[4 * gene + 1] = 0.0
        sums[4 * gene + 2] = squares
        sums[4 * gene + 3] = (high - (squares - part)) + (low - part)
