"""Sums over all cells outside each group, from the sums per group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.kernels.moments.group_sums_cpu import Sums
from scatlas.kernels.moments.moments_cpu import pair_sum

if TYPE_CHECKING:
    from scatlas.arrays.array_types import Floats, Ints


def other_group_sums(total: Sums) -> Sums:
    """Sums over all other groups, for each group.

    Integers are the total less the group. Floats are not subtracted: if one group dominates, the
    difference is mostly rounding error. They are summed from the first and from the last group
    instead, with their errors, so that the sums of a gene that is constant outside a group are
    exact.
    """
    nonzero = _others_of_integers(total.nonzero)
    if total.whole:
        sums, squares = _others_of_integers(total.sums), _others_of_integers(total.squares)
        return Sums(total.whole, sums, None, squares, None, nonzero)
    pairs = _others_of_pairs(total.sums, total.errors)
    square_pairs = _others_of_pairs(total.squares, total.square_errors)
    return Sums(total.whole, *pairs, *square_pairs, nonzero)


def _others_of_integers(array: Ints | None) -> Ints | None:
    return None if array is None else array.sum(axis=0) - array


def _others_of_pairs(
    high: Floats | None, low: Floats | None
) -> tuple[Floats | None, Floats | None]:
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
