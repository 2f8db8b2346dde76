"""Moments of the values above a bound per gene and group, of one block (Numba).

Clipping replaces a value above the bound by the bound. So the sums of clipped values follow from
the moments of all values, which an earlier pass has computed, and from the number, sum and sum of
squares of the values above the bound. For counts all of these are exact (see
:mod:`scatlas.kernels.moments.moments_cpu`), so no result depends on where blocks begin. Few values
are above a bound: a block costs one comparison per value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.arrays.array_types import Array, Block, Floats, Ints, is_sparse, row_offsets
from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.counts.qc_cpu import is_integral
from scatlas.kernels.moments.moments_cpu import (
    EXACT_SQUARES,
    Moments,
    _mean_var,
    add_value,
    group_sizes,
    local_groups,
    merge,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


def moments_above(x: Block, bounds: Floats, codes: NDArray[np.integer] | None = None) -> Moments:
    """Moments per group and gene of the values above their bounds ``[n_groups, n_genes]``.

    Bounds are not negative; above NaN there is no value. ``n_cells`` counts all cells of a group,
    ``expressed`` those above the bound.
    """
    n_rows, n_genes = x.shape
    groups, local = local_groups(codes, n_rows)
    sums = np.zeros((groups.size, n_genes, 4))
    n_above = np.zeros((groups.size, n_genes), dtype=np.int64)
    bounds = np.ascontiguousarray(bounds[groups], dtype=np.float64)
    if is_sparse(x):
        indptr = row_offsets(x)
        exact = x.data.dtype.char in EXACT_SQUARES
        _add_csr(x.data, x.indices, indptr, local, bounds, exact, sums, n_above)
    else:
        x = np.asarray(x)
        _add_dense(x, local, bounds, x.dtype.char in EXACT_SQUARES, sums, n_above)
    return Moments(groups, group_sizes(local, groups.size), sums, n_above)


def holds_counts(x: Block) -> bool:
    """Whether all values of a block are integers and none is negative."""
    values = x.data if is_sparse(x) else np.asarray(x)
    if values.dtype.kind in "ub" or values.size == 0:
        return True
    return bool(values.min() >= 0) and is_integral(values)


def clipped_squares(moments: Moments, above: Moments, bounds: Floats) -> Floats:
    """Sum over cells of ``(min(value, bound) - mean)**2``, with the mean of the unclipped values.

    The moments of cells not above the bound, zeros included, are those of all cells less those of
    the cells above it, for the same groups. For counts this subtraction is exact. No term is
    negative, so none cancels.
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


@njit(nogil=True, cache=True)
def _add_csr(
    data: Array,
    indices: Array,
    indptr: Ints,
    codes: Ints,
    bounds: Floats,
    exact: bool,
    sums: Floats,
    n_above: Ints,
) -> None:
    for row in range(indptr.size - 1):
        group = codes[row]
        if group < 0:
            continue
        bound = bounds[group]
        for at in range(indptr[row], indptr[row + 1]):
            v = np.float64(data[at])
            gene = np.uint64(indices[at])  # unsigned: Numba tests signed ones for negative values
            if v > bound[gene]:
                add_value(sums[group, gene], v, exact)
                n_above[group, gene] += 1


@njit(nogil=True, cache=True)
def _add_dense(
    x: Array, codes: Ints, bounds: Floats, exact: bool, sums: Floats, n_above: Ints
) -> None:
    for row in range(x.shape[0]):
        group = codes[row]
        if group < 0:
            continue
        bound = bounds[group]
        for gene in range(x.shape[1]):
            v = np.float64(x[row, gene])
            if v > bound[gene]:
                add_value(sums[group, gene], v, exact)
                n_above[group, gene] += 1
