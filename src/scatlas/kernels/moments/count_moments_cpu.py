"""Moments of normalised counts, computed from the raw counts of one block in one sweep (Numba).

The terms of small counts are computed once per cell and looked up. The sums are exact (see
:func:`_exact_rows`), so they depend neither on the order of the cells nor on blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.arrays.array_types import (
    Array,
    Block,
    Floats,
    Ints,
    SparseBlock,
    is_sparse,
    row_offsets,
)
from scatlas.arrays.numpy_arrays import aligned_zeros
from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.counts.normalize_cpu import log1p, scale_rows
from scatlas.kernels.moments.exact_sums_cpu import add_four, add_value, finish_sums, n_exact
from scatlas.kernels.moments.group_sums_cpu import Sums, add
from scatlas.kernels.moments.moments_cpu import (
    Moments,
    drop_infinite,
    expm1_values,
    group_sizes,
    merge_in_place,
    moments,
)
from scatlas.kernels.moments.pairs_cpu import local_groups

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

# Counts below this are looked up; larger counts are few.
_N_LOOKUP = 32
# Cells per look-up table, which has _N_LOOKUP values per cell.
_ROWS_PER_LOOKUP = 4096
# Largest int32, and largest int32 that float32 represents exactly.
_LARGEST_INT32 = 2**31 - 1
_LARGEST_FLOAT32 = 2**31 - 2**7
# Float32 represents every integer up to this one.
_EXACT_FLOAT32 = 2**24
# If fewer cells than this can be summed exactly, merging costs as much as the general kernel saves.
_MIN_EXACT_ROWS = 64


def normalized_moments(
    x: Block,
    scales: Floats,
    codes: NDArray[np.integer] | None = None,
    *,
    log: bool = False,
    expm1: bool = False,
) -> Moments:
    """Moments per group and gene of normalised counts; with `log` of log(1 + x), with `expm1` of
    ``expm1`` of these. `scales` are one over the size factor of each cell; NaN leaves the cell out.

    The values are those of ``scale_rows`` and ``log1p``. CSR blocks of counts are not normalised
    first, unless the fast sums would round.
    """
    n_rows = x.shape[0]

    def transform(normalised: Array) -> Array:
        values = np.asarray(log1p(normalised)) if log else normalised
        return expm1_values(values, None) if expm1 else values

    scales = np.ascontiguousarray(scales, dtype=np.float64)
    if scales.shape != (n_rows,):
        raise ValueError(f"{scales.size} scales for {n_rows} cells")
    kept = ~np.isnan(scales)
    if not kept.all():
        codes = np.where(kept, 0 if codes is None else codes, -1)
    if is_sparse(x):
        exact = _exact_rows(x.data, scales[kept], n_rows, transform)
        if exact[0] >= min(n_rows, _MIN_EXACT_ROWS):
            return _moments_from_counts(x, np.where(kept, scales, 0.0), codes, transform, exact)
    values = scale_rows(x, scales)
    return moments(log1p(values) if log else values, codes, expm1=expm1)


def moments_of_counts(x: Block, codes: NDArray[np.integer] | None = None) -> Moments:
    """As :func:`~.moments_cpu.moments`: the same bits, faster for counts. Counts that float32
    represents exactly are normalised counts with a size factor of 1.
    """
    if is_sparse(x) and x.dtype.kind in "iub" and _are_exact_in_float32(x.data):
        return normalized_moments(x, np.ones(x.shape[0]), codes)
    return moments(x, codes)


def gene_sum_pairs(x: Block) -> Floats:
    """Sum of each gene and its rounding error ``[2, n_genes]``, with the bits of
    :func:`moments_of_counts`: dense blocks take half of the time, because sums alone are added to.
    """
    if is_sparse(x):
        return np.ascontiguousarray(moments_of_counts(x).sums[0, :, :2].T)
    pair = np.zeros((2, 1, x.shape[1]))
    into = Sums(False, pair[0], pair[1], None, None, None)
    add(np.ascontiguousarray(x), np.zeros(x.shape[0], np.int64), into)
    drop_infinite(*pair)
    return pair[:, 0]


def _are_exact_in_float32(integers: Array) -> bool:
    if integers.itemsize <= 2 or integers.size == 0:
        return True
    return bool(integers.max() <= _EXACT_FLOAT32 and integers.min() >= -_EXACT_FLOAT32)


def _exact_rows(
    counts: Array, scales: Floats, n_rows: int, transform: Callable[[Array], Array]
) -> tuple[int, float, int]:
    """Number of cells that can be summed exactly, 0 if the values are not counts; the grid of their
    squares (:func:`n_exact`); and the number of counts of at least ``_N_LOOKUP``.
    """
    no_counts = 0, 0.0, 0
    if counts.size == 0 or scales.size == 0:
        return max(1, n_rows), 1.0, counts.size
    if counts.dtype == np.float64:
        return no_counts
    if counts.dtype == bool:
        counts = counts.view(np.uint8)
    floats = counts.dtype.kind == "f"
    limit = _LARGEST_FLOAT32 if floats else min(_LARGEST_INT32, np.iinfo(counts.dtype).max)
    are_counts, highest, n_large = _inspect_counts(counts, counts.dtype.type(limit))
    if not are_counts:
        return no_counts
    with np.errstate(over="ignore"):
        bounds = np.array([scales.min(), highest * scales.max()]).astype(np.float32)
        # With a margin, as NumPy's expm1 may be off by a few units in the last place.
        smallest, largest = transform(bounds).astype(np.float64) * (1 - 2.0**-20, 1 + 2.0**-20)
    if not 0 < smallest < np.inf or not largest < np.inf:
        return no_counts
    largest = max(largest, smallest)
    return *n_exact(smallest, largest, n_rows), n_large


@njit(nogil=True, cache=True)
def _inspect_counts(counts: Array, limit: Any) -> tuple[bool, np.int32, np.int64]:
    """Whether all are integers from 0 to `limit`; the largest; number of at least ``_N_LOOKUP``.
    There is no branch, so that the compiler vectorises it.
    """
    wrong = False
    highest = np.int32(0)
    n_large = np.int64(0)
    for i in range(counts.size):  # a loop over the values themselves would not be vectorised
        value = counts[i]
        fits = (value >= 0) & (value <= limit)
        # Replace a value that does not fit, or NaN: its conversion would be undefined.
        count = np.int32(value if fits else counts.dtype.type(0))
        wrong |= count != value
        highest = max(highest, count)
        n_large += count >= _N_LOOKUP
    return not wrong, highest, n_large


def _moments_from_counts(
    x: SparseBlock,
    scales: Floats,
    codes: NDArray[np.integer] | None,
    transform: Callable[[Array], Array],
    exact: tuple[int, float, int],
) -> Moments:
    n_rows, n_genes = x.shape
    n_exact, grid, n_large = exact
    groups, local = local_groups(codes, n_rows)
    offsets = np.where(local < 0, -1, 4 * n_genes * local)
    indptr = row_offsets(x)
    large = np.empty(n_large, np.int64), np.empty(n_large, np.int64), np.empty(n_large, np.int64)
    parts = []
    for start in range(0, max(1, n_rows), n_exact):
        end = min(start + n_exact, n_rows)
        sums = aligned_zeros((groups.size, n_genes, 4))
        expressed = np.empty((groups.size, n_genes), dtype=np.int64)
        flat = sums.reshape(-1)
        for first in range(start, end, _ROWS_PER_LOOKUP):
            rows = slice(first, min(first + _ROWS_PER_LOOKUP, end))
            pointers = indptr[first : rows.stop + 1]
            _add_rows(x, pointers, offsets[rows], scales[rows], transform, grid, flat, large)
        finish_sums(flat, expressed.reshape(-1))
        parts.append(Moments(groups, group_sizes(local[start:end], groups.size), sums, expressed))
    return merge_in_place(parts)


def _add_rows(
    x: SparseBlock,
    pointers: Ints,
    offsets: Ints,
    scales: Floats,
    transform: Callable[[Array], Array],
    grid: float,
    sums: Floats,
    large: tuple[Ints, Ints, Ints],
) -> None:
    """Add the rows between `pointers`, each to the sums of its group, which begin at its offset."""
    with np.errstate(over="ignore"):  # of counts that do not occur
        lookup = transform(np.multiply.outer(scales, np.arange(_N_LOOKUP)).astype(np.float32))
    positions, rows, targets = large
    # Group after group, so that the sums of a group stay in the cache.
    order = np.argsort(offsets, kind="stable")[np.count_nonzero(offsets < 0) :]
    n = _add_small(x.data, x.indices, pointers, offsets, order, lookup, grid, sums, *large)
    values = (x.data[positions[:n]] * scales[rows[:n]]).astype(np.float32)
    _add_large(transform(values), targets[:n], grid, sums)


@njit(nogil=True, cache=True)
def _add_small(
    data: Array,
    indices: Array,
    indptr: Ints,
    offsets: Ints,
    order: Ints,
    lookup: Floats,
    grid: float,
    sums: Floats,
    positions: Ints,
    rows: Ints,
    targets: Ints,
) -> int:
    # Subscripts are unsigned, because Numba tests signed ones for negative values.
    four = np.uint64(4)
    parts = np.zeros(4 * _N_LOOKUP)
    n = 0
    for row in order:
        offset = np.uint64(offsets[row])
        for count in range(1, _N_LOOKUP):
            v = np.float64(lookup[row, count])
            square = v * v
            high = (square + grid) - grid
            parts[4 * count] = v
            parts[4 * count + 1] = 1.0
            parts[4 * count + 2] = high
            parts[4 * count + 3] = square - high
        for at in range(indptr[row], indptr[row + 1]):
            count = data[at]
            target = offset + four * np.uint64(indices[at])
            if count < _N_LOOKUP:
                add_four(sums, target, parts, 4 * np.int64(count))
            else:
                positions[n], rows[n], targets[n] = at, row, target
                n += 1
    return n


@njit(nogil=True, cache=True)
def _add_large(values: Array, targets: Ints, grid: float, sums: Floats) -> None:
    for k in range(values.size):
        add_value(np.float64(values[k]), np.uint64(targets[k]), grid, sums)
