"""Scales that turn counts into shares of their cell's total.

A normalised count is its share times the target sum. The moments of the shares therefore serve all
targets: a mean times the target, a variance times its square.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
