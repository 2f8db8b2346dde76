"""Totals and size factors of cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks, elements
from scatlas.errors import InputError
from scatlas.kernels.dispatch import kernels_for

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def size_factors(totals: ArrayLike, *, target_sum: float | None = None) -> tuple[np.ndarray, float]:
    """Size factor of each cell: its total over the target.

    Dividing a cell's counts by its size factor gives the cell the total `target_sum`.

    Parameters
    ----------
    totals
        Total of each cell [cells], finite and not negative.
    target_sum
        The common total; None for the median over the cells that are not empty. (scanpy 1.11
        leaves empty cells out of the median for a Dask or dense X, and counts them in for CSR.)

    Returns
    -------
    factors
        float64 [cells]; 0 for an empty cell.
    target_sum
        The target used.

    Raises
    ------
    InputError
        When a total is negative or not finite, when the target is not positive, or when no cell
        has counts and no target is given.
    """
    totals = np.asarray(totals)
    check_totals(totals)
    if target_sum is None:
        filled = totals[totals > 0]
        if filled.size == 0:
            msg = "no cell has counts, so there is no median to normalise to: give target_sum"
            raise InputError(msg)
        target_sum = float(np.median(filled))
    check_target(target_sum)
    return totals / np.float64(target_sum), float(target_sum)


def check_totals(totals: np.ndarray) -> None:
    """Raise an InputError where a total cannot be that of counts."""
    if totals.ndim != 1 or not (np.isfinite(totals).all() and (totals >= 0).all()):
        msg = "totals of cells must be one finite, non-negative number per cell: are these counts?"
        raise InputError(msg)


def check_target(target_sum: float) -> None:
    """Raise an InputError for a target sum that is not positive and finite."""
    if not 0 < target_sum < np.inf:
        msg = f"target_sum must be a positive number, not {target_sum}"
        raise InputError(msg)


@blocks.passes(1)
def cell_totals(x: Any, genes: np.ndarray | None = None) -> np.ndarray:
    """Total of each cell over some genes, in one pass.

    Parameters
    ----------
    x
        Counts [cells x genes], in memory or Dask.
    genes
        bool [genes]; None for all.

    Returns
    -------
    [cells], exact: int64 for integer counts, float64 for floating-point ones.
    """
    blocks.check_type(x)
    row_sums = kernels_for("counts.qc", x).row_sums
    if genes is None and blocks.is_dask(x):
        from scatlas.io.matrices.lazy import values_alone

        x = values_alone(x)
    parts = blocks.reduce(
        lambda block: [row_sums(block, genes)],
        lambda lists: [part for parts in lists for part in parts],
        elements.as_rows(x),
    )
    return np.concatenate(parts)


def reciprocal(factors: np.ndarray) -> np.ndarray:
    """1/factor, and 1 for the cells without counts: they stay as they are."""
    return 1.0 / np.where(factors == 0, 1.0, factors)
