"""Moments of counts as shares of their cell's total.

A normalised count is its share times the target sum. The moments of the shares therefore serve all
targets: a mean times the target, a variance times its square.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scatlas.kernels.moments.moments_cpu import Moments


class ShareMoments(NamedTuple):
    """Moments of the shares over the kept cells of a plate.

    Attributes
    ----------
    mean, var
        float64 ``[n_genes]``; the divisor of the variance is n - 1.
    expressed
        int64 ``[n_genes]``, cells with a count.
    """

    mean: NDArray[np.float64]
    var: NDArray[np.float64]
    expressed: NDArray[np.int64]


def rounded_moments(moments: Moments) -> ShareMoments:
    """Mean and variance of one group, from sums that carry their rounding error."""
    return ShareMoments(moments.mean[0], moments.var[0], moments.expressed[0])


def share_scales(
    totals: NDArray[np.int64], keep: NDArray[np.bool_], empty: float
) -> NDArray[np.float64]:
    """Scale of each cell for :func:`~scatlas.kernels.moments.count_moments_cpu.normalized_moments`.

    Parameters
    ----------
    totals
        int64 ``[n_cells]``, counts per cell.
    keep
        bool ``[n_cells]``, cells to take.
    empty
        Number that divides the counts of cells with the total 0 (they may have counts in genes that
        the total leaves out).

    Returns
    -------
    float64 ``[n_cells]``, one over the total; NaN for cells that are left out.
    """
    return np.where(keep, 1.0 / np.where(totals == 0, empty, totals), np.nan)
