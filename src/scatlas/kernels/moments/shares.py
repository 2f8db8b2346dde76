"""Moments of counts as shares of their cell's total, which serve all target sums: a mean times the
target, a variance times its square.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scatlas.kernels.moments.moments_cpu import Moments


class ShareMoments(NamedTuple):
    """Moments of the shares over the kept cells of a plate; the variance's divisor is n - 1."""

    mean: NDArray[np.float64]
    var: NDArray[np.float64]
    expressed: NDArray[np.int64]  # cells with a count


def rounded_moments(moments: Moments) -> ShareMoments:
    """Mean and variance of one group, from sums that carry their rounding error."""
    return ShareMoments(moments.mean[0], moments.var[0], moments.expressed[0])


def share_scales(
    totals: NDArray[np.int64], keep: NDArray[np.bool_], empty: float
) -> NDArray[np.float64]:
    """One over the total of each cell, over `empty` where that is 0 (a cell may have counts in
    genes that the total leaves out), and NaN for cells that are not kept.
    """
    return np.where(keep, 1.0 / np.where(totals == 0, empty, totals), np.nan)
