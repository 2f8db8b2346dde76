"""Totals and size factors of cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks, elements
from scatlas.arrays.kinds import is_dask
from scatlas.errors import InputError
from scatlas.kernels import kernels_for

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike, NDArray


def size_factors(
    totals: ArrayLike, *, target_sum: float | None = None
) -> tuple[NDArray[np.float64], float]:
    """Size factor of each cell: its total over the target.

    Dividing a cell's counts by its size factor gives the cell the total `target_sum`.

    Parameters
    ----------
    totals
        Total of each cell [cells], finite and not negative.
    target_sum
        The common total; None for the median over the cells that are not empty. (The median of
        scanpy 1.11 excludes empty cells if X is dense or Dask, and includes them if X is CSR.)

    Returns
    -------
    factors
        float64 [cells]; 0 for an empty cell.
    target_sum
        The target used.

    Raises
    ------
    InputError
        A total is negative or not finite, the target is not positive, or no cell has counts and no
        target is given.
    """
    totals = np.asarray(totals)
    check_totals(totals)
    if target_sum is None:
        positive = totals[totals > 0]
        if positive.size == 0:
            msg = "no cell has counts, so there is no median to normalise to: give target_sum"
            raise InputError(msg)
        target_sum = float(np.median(positive))
    check_target(target_sum)
    return totals / np.float64(target_sum), float(target_sum)


def check_totals(totals: NDArray[Any]) -> None:
    """Refuse totals that cannot be those of counts."""
    if totals.ndim != 1 or not (np.isfinite(totals).all() and (totals >= 0).all()):
        msg = "totals of cells must be one finite, non-negative number per cell: are these counts?"
        raise InputError(msg)


def check_target(target_sum: float) -> None:
    """Refuse a target sum that is not positive and finite."""
    if not 0 < target_sum < np.inf:
        raise InputError(f"target_sum must be a positive number, not {target_sum}")


@blocks.passes(1)
def cell_totals(x: Any, genes: NDArray[np.bool_] | None = None) -> NDArray[Any]:
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
    from scatlas.matrix.sums_by_gene import exact_totals

    blocks.check_type(x)
    if genes is None and (by_gene := exact_totals(x, x.shape[1])) is not None:
        return by_gene[0]
    row_sums = kernels_for("counts.qc", x).row_sums
    if genes is None and is_dask(x):
        from scatlas.io.matrices.lazy import values_alone

        x = values_alone(x)
    parts = blocks.reduce(
        lambda block: [row_sums(block, genes)], blocks.join_lists, elements.as_rows(x)
    )
    return np.concatenate(parts)


def reciprocal(factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 / factor, and 1 for empty cells (factor 0), whose counts stay as they are."""
    return 1.0 / np.where(factors == 0, 1.0, factors)


def size_factors_by_row(cells: pd.DataFrame, n_cells: int) -> NDArray[np.float64]:
    """Size factors of all cells of a plate, from the table of cells kept; NaN for cells removed."""
    factors = np.full(n_cells, np.nan)
    factors[cells["row"]] = cells["size_factor"]
    return factors
