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

from scatlas.arrays.array_types import Block, Floats, is_sparse
from scatlas.kernels.counts.qc_cpu import is_integral
from scatlas.kernels.moments.moments_cpu import (
    Moments,
    _mean_var,
    add_pairs,
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
    groups, local = local_groups(codes, x.shape[0])
    sums = np.zeros((groups.size, x.shape[1], 4))
    n_above = np.zeros(sums.shape[:2], dtype=np.int64)
    values = x.data if is_sparse(x) else np.asarray(x)
    bounds = np.ascontiguousarray(bounds[groups], dtype=np.float64)
    add_pairs(x, values, local, bounds, sums, n_above)
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
