"""Per-gene sums, sums of squares and expressed cells of one row block (Numba).

Each sum is a pair of float64, the sum and its rounding error. So a gene with a mean of 1e6 and a
standard deviation of 1 keeps its variance, genes that hold the same values in different cells tie
exactly, and the result does not depend on where blocks begin, unlike that of the usual merge of
moments (Chan, Golub, LeVeque, Stanford STAN-CS-79-773, 1979).

Sparse float32 values are added without rounding (:mod:`scatlas.kernels.moments.exact_sums_cpu`), in
a third of the time of pairs. The bits are the same: pairs of such values do not round either.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.arrays.array_types import Array, Block, Floats, Ints, is_sparse, row_offsets
from scatlas.arrays.numpy_arrays import aligned_zeros
from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.moments.exact_sums_cpu import add_rows, finish_sums, grid_of
from scatlas.kernels.moments.group_sums_cpu import Sums, add
from scatlas.kernels.moments.pairs_cpu import (
    EXACT_SQUARES,
    gene_at,
    gene_rows,
    local_groups,
    means_and_deviations,
    pair_sum,
    row_of,
    square_error,
    stored_values,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True)
class Moments:
    """Mergeable moments of groups of cells."""

    groups: Ints  # sorted codes of the groups with cells
    n_cells: Ints  # cells per group
    sums: Floats  # [n_groups, n_genes, 4]: sum, its error, sum of squares, its error
    expressed: Ints  # [n_groups, n_genes], cells with a value above zero

    def select(self, groups: Any) -> Moments:
        """Moments of some groups, by positions or a mask."""
        arrays = (self.groups, self.n_cells, self.sums, self.expressed)
        return Moments(*(array[groups] for array in arrays))

    @cached_property
    def _mean_var(self) -> tuple[Floats, Floats]:
        return _mean_var(self.sums, self.n_cells)

    @property
    def mean(self) -> Floats:
        """Mean per group and gene, float64 ``[n_groups, n_genes]``."""
        return self._mean_var[0]

    @property
    def var(self) -> Floats:
        """Variance, divisor n - 1: 0 for one cell, as in scanpy, and for a constant gene."""
        return self._mean_var[1]


def moments(
    x: Block,
    codes: NDArray[np.integer] | None = None,
    *,
    expm1: bool = False,
    log_base: float | None = None,
) -> Moments:
    """Moments per gene of each group that occurs in a block; with `expm1` of ``expm1(x)``, or of
    ``expm1(x * log_base)``, in the precision of `x` as in scanpy, for integers in float64.
    """
    n_rows, n_genes = x.shape
    groups, local = local_groups(codes, n_rows)
    values = stored_values(x)
    if expm1:
        values = expm1_values(values, log_base)
    if not is_sparse(x):
        return _dense_moments(values, groups, local)
    sums = aligned_zeros((groups.size, n_genes, 4))
    expressed = np.zeros((groups.size, n_genes), dtype=np.int64)
    if grid := grid_of(values, n_rows) if values.dtype == np.float32 else 0.0:
        offsets = np.where(local < 0, -1, 4 * n_genes * local)
        add_rows(values, x.indices, row_offsets(x), offsets, grid, sums.reshape(-1))
        finish_sums(sums.reshape(-1), expressed.reshape(-1))
    else:
        exact = values.dtype.char in EXACT_SQUARES
        _add_pairs(values, *gene_rows(x), local, None, exact, sums, expressed)
    return Moments(groups, group_sizes(local, groups.size), sums, expressed)


def _dense_moments(x: Array, groups: Ints, local: Ints) -> Moments:
    """Moments of dense rows by the loops of group sums, which are vectorised: the same bits."""
    pairs = np.zeros((4, groups.size, x.shape[1]))
    expressed = np.zeros(pairs.shape[1:], dtype=np.int64)
    into = Sums(False, pairs[0], pairs[1], pairs[2], pairs[3], expressed)
    add(np.ascontiguousarray(x), local, into, positive=True)
    drop_infinite(*pairs[:2])
    drop_infinite(*pairs[2:])
    sizes = group_sizes(local, groups.size)
    return Moments(groups, sizes, np.moveaxis(pairs, 0, 2), expressed)


def drop_infinite(high: Floats, low: Floats) -> None:
    """Set sums that are not finite to NaN, in place, as in moments of sparse blocks."""
    bad = ~np.isfinite(high)
    with np.errstate(invalid="ignore"):
        high[bad] = low[bad] = high[bad] - high[bad]


def moments_above(x: Block, bounds: Floats, codes: NDArray[np.integer] | None = None) -> Moments:
    """Moments per group and gene of the values above their bounds ``[n_groups, n_genes]``, which
    are not negative, or NaN for no value; ``n_cells`` counts all cells of a group.
    """
    groups, local = local_groups(codes, x.shape[0])
    sums = np.zeros((groups.size, x.shape[1], 4))
    n_above = np.zeros(sums.shape[:2], dtype=np.int64)
    values = stored_values(x)
    bounds = np.ascontiguousarray(bounds[groups], dtype=np.float64)
    exact = values.dtype.char in EXACT_SQUARES
    _add_pairs(values, *gene_rows(x), local, bounds, exact, sums, n_above)
    return Moments(groups, group_sizes(local, groups.size), sums, n_above)


def clipped_squares(moments: Moments, above: Moments, bounds: Floats) -> Floats:
    """Sum over cells of ``(min(value, bound) - mean)**2``, with the mean of the unclipped values.

    The moments of cells not above the bound, zeros included, are those of all cells less those of
    the cells above it, which is exact for counts. No term is negative, so none cancels.
    """
    negated = Moments(above.groups, above.n_cells, -above.sums, above.expressed)
    sums = merge([moments, negated]).sums
    n_above = above.expressed
    n_below = moments.n_cells[:, None] - n_above
    mean, var = _mean_var(sums, n_below)
    below = (n_below - 1) * var + n_below * (mean - moments.mean) ** 2
    # Bounds of NaN or infinity have no cells above them: avoid 0 * NaN.
    distance = np.where(n_above > 0, bounds - moments.mean, 0.0)
    return below + n_above * distance**2


def group_sizes(local: Ints, n_groups: int) -> Ints:
    """Rows per group, int64 ``[n_groups]``; rows with a negative code are not counted."""
    return np.bincount(local[local >= 0], minlength=n_groups).astype(np.int64)


def merge_in_place(parts: Sequence[Moments]) -> Moments:
    """As :func:`merge`, but overwrites the arrays of the first part: no copy per block."""
    first, *others = parts
    for part in others:
        if not np.array_equal(first.groups, part.groups):
            first = merge([first, part])
            continue
        np.add(first.n_cells, part.n_cells, out=first.n_cells)
        np.add(first.expressed, part.expressed, out=first.expressed)
        _merge_sums(part.sums, np.arange(first.groups.size), first.sums)
    return first


def merge(parts: Sequence[Moments]) -> Moments:
    """Moments of the union of disjoint sets of cells (all of the same genes)."""
    groups = np.unique(np.concatenate([part.groups for part in parts]))
    n_genes = parts[0].expressed.shape[1]
    n_cells = np.zeros(groups.size, dtype=np.int64)
    sums = np.zeros((groups.size, n_genes, 4))
    expressed = np.zeros((groups.size, n_genes), dtype=np.int64)
    for part in parts:
        at = np.searchsorted(groups, part.groups)
        n_cells[at] += part.n_cells
        expressed[at] += part.expressed
        _merge_sums(part.sums, at, sums)
    return Moments(groups, n_cells, sums, expressed)


def expm1_values(values: Array, log_base: float | None) -> Array:
    """``expm1(values * log_base)`` in the precision of the values, in float64 for integers. -inf
    gives NaN: it is the logarithm of 0 and not of 1 + a count, and -1 would go unnoticed.
    """
    if not np.issubdtype(values.dtype, np.floating):
        values = values.astype(np.float64)
    # Overflow, from counts mistaken for logarithms, shows as an infinite mean.
    with np.errstate(over="ignore"):
        if log_base is None:
            out = np.expm1(values)
        else:
            # The product is computed in float64 and rounded once to the precision of the data.
            out = (values * np.float64(log_base)).astype(values.dtype, copy=False)
            np.expm1(out, out=out)
    no_count = values == -np.inf
    if no_count.any():
        out[no_count] = np.nan
    return out


@njit(nogil=True, cache=True)
def _add_pair(pair: Floats, at: int, value: float, error: float) -> None:
    """Add ``value + error`` to the sum at ``pair[at]`` and its error at ``pair[at + 1]``."""
    pair[at], pair[at + 1] = pair_sum(pair[at], pair[at + 1], value, error)


@njit(nogil=True, cache=True)
def add_value(sums: Floats, v: float, exact: bool) -> None:
    """Add a value to the four sums of its gene. `exact`: float64 holds its square exactly."""
    _add_pair(sums, 0, v, 0.0)
    square = v * v
    _add_pair(sums, 2, square, 0.0 if exact else square_error(v, square))


@njit(nogil=True, cache=True)
def _add_pairs(
    values: Array,
    indices: Array | None,
    indptr: Ints | None,
    codes: Ints,
    bounds: Floats | None,
    exact: bool,
    sums: Floats,
    expressed: Ints,
) -> None:
    for row in range(codes.size):
        group = codes[row]
        if group < 0:
            continue
        of_row, genes = row_of(values, indices, indptr, row)
        for k in range(of_row.size):
            v, gene = np.float64(of_row[k]), gene_at(genes, k)
            if _counts(v, bounds, group, gene):
                add_value(sums[group, gene], v, exact)
                if v > 0.0:
                    expressed[group, gene] += 1


@njit(nogil=True, cache=True)
def _counts(v: float, bounds: Floats | None, group: int, gene: Any) -> bool:
    return v != 0.0 if bounds is None else v > bounds[group, gene]


@njit(nogil=True, cache=True)
def _merge_sums(part: Floats, rows: Ints, sums: Floats) -> None:
    for group in range(part.shape[0]):
        for gene in range(part.shape[1]):
            pairs = sums[rows[group], gene]
            _add_pair(pairs, 0, part[group, gene, 0], part[group, gene, 1])
            _add_pair(pairs, 2, part[group, gene, 2], part[group, gene, 3])


def _mean_var(sums: Floats, n_cells: Ints) -> tuple[Floats, Floats]:
    """Mean and variance (divisor n - 1) from the sums of :class:`Moments`."""
    # NumPy and not Numba: this runs once per plate, and compiling would take longer than it.
    n = (n_cells if n_cells.ndim == 2 else n_cells[:, None]).astype(np.float64)
    with np.errstate(all="ignore"):
        mean, deviations = means_and_deviations(
            sums[..., 0], sums[..., 1], sums[..., 2], sums[..., 3], n
        )
        var = np.where(n > 1.0, deviations / (n - 1.0), 0.0)
    return mean, var
