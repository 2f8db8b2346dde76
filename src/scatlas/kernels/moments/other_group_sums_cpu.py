"""Sums over all groups but one, of the sums of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.kernels.moments.group_sums_cpu import Sums
from scatlas.kernels.moments.moments_cpu import pair_sum

if TYPE_CHECKING:
    from numpy.typing import NDArray


def other_group_sums(total: Sums) -> Sums:
    """What the groups beside it add up to, for each group.

    Integers are subtracted from the sum of all. Reals are not: what they would leave of a group
    much larger than the rest is its rounding. They are added up from both ends instead, with their
    errors, so that a gene which is constant in the rest has exactly its sums.

    Parameters
    ----------
    total
        Sums of each group, ``[n_groups, n_genes]``.

    Returns
    -------
    Sums of the same shape.
    """
    arrays = total.sums, total.squares, total.nonzero
    if total.whole:
        sums, squares, nonzero = (_whole(array) for array in arrays)
        return Sums(total.whole, sums, None, squares, None, nonzero)
    sums, errors = _pairs(total.sums, total.errors)
    squares, square_errors = _pairs(total.squares, total.square_errors)
    return Sums(total.whole, sums, errors, squares, square_errors, _whole(total.nonzero))


def _whole(array: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
    return None if array is None else array.sum(axis=0) - array


def _pairs(
    high: NDArray[np.float64] | None, low: NDArray[np.float64] | None
) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]:
    if high is None or low is None:
        return None, None
    others, other_errors = np.zeros(high.shape), np.zeros(low.shape)
    for order in (range(len(high)), reversed(range(len(high)))):
        so_far = np.zeros(high.shape[1]), np.zeros(high.shape[1])
        for group in order:
            pair = pair_sum(others[group], other_errors[group], *so_far)
            others[group], other_errors[group] = pair
            so_far = pair_sum(*so_far, high[group], low[group])
    return others, other_errors
