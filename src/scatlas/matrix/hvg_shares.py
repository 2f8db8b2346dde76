"""Highly variable genes (flavor seurat) from the moments of counts as shares of their cell's total.

The moments do not depend on the target sum, so `load` can take them before the target is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas.errors import InputError
from scatlas.kernels import kernels_for
from scatlas.kernels.moments.shares import rounded_moments, share_scales
from scatlas.matrix.gene_moments import normalized_moments
from scatlas.matrix.hvg_dispersion import dispersion_table, ranked_genes

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from scatlas.kernels.moments.shares import ShareMoments


def target_of(totals: NDArray[np.int64], factors: NDArray[np.float64]) -> float:
    """Target sum of size factors up to the last bit, from the totals; 1 if all cells are empty."""
    if not totals.any():
        return 1.0
    largest = int(np.argmax(totals))
    return float(totals[largest] / factors[largest])


def share_moments(
    x: Any, rows: NDArray[np.int64], totals: NDArray[np.int64], target_sum: float
) -> ShareMoments:
    """Moments per gene of counts as shares of their cell's total, in one pass, with the bits that
    ``load_plate`` writes.

    ``totals`` are those of the cells ``rows``. ``target_sum`` divides the counts of cells with the
    total 0, so that these stay as they are after :func:`hvg_of_share_moments` has applied it.
    """
    of_all, keep = np.zeros(x.shape[0], np.int64), np.zeros(x.shape[0], bool)
    of_all[rows], keep[rows] = totals, True
    scales = share_scales(of_all, keep, target_sum)
    return rounded_moments(normalized_moments(x, scales, log=False))


@blocks.passes(1)
def totals_and_share_moments(x: Any, keep: NDArray[np.bool_]) -> tuple[NDArray[Any], ShareMoments]:
    """Total of each cell, and moments per gene of the counts of some cells as shares of it.

    Neither needs the target sum, which follows from the totals. So size factors and highly variable
    genes of a plate cost a single pass.

    Parameters
    ----------
    x
        Counts ``[n_cells, n_genes]``, in memory or Dask.
    keep
        bool ``[n_cells]``, cells to take moments of; at least one.

    Returns
    -------
    totals
        ``[n_cells]``, those of :func:`scatlas.matrix.size_factors.cell_totals`.
    moments
        Those of :func:`share_moments`.

    Raises
    ------
    InputError
        No cell is kept.
    """
    from scatlas.kernels.moments import moments_cpu

    if not keep.any():
        raise InputError("keep is False for every cell, so that none is left")
    kernels = kernels_for("moments.count_moments", x)
    row_sums = kernels_for("counts.qc", x).row_sums

    def of_block(block: blocks.Block, keep: NDArray[np.bool_]) -> tuple[list[Any], list[Any]]:
        totals = row_sums(block)
        # Empty cells have no values: their scale only has to be in the range of the others.
        scales = share_scales(totals, keep, float(totals.max(initial=1)))
        return [totals], [kernels.normalized_moments(block, scales)]

    def combine(parts: list[tuple[list[Any], list[Any]]]) -> tuple[list[Any], list[Any]]:
        totals, moments = map(blocks.join_lists, zip(*parts, strict=True))
        return totals, [moments_cpu.merge_in_place(moments)]

    totals, (moments,) = blocks.reduce(of_block, combine, x, keep)
    return np.concatenate(totals), rounded_moments(moments)


def hvg_of_share_moments(
    moments: ShareMoments,
    names: pd.Index,
    target_sum: float,
    *,
    n_top_genes: int | None = None,
    n_bins: int = 20,
    min_cells: int | None = None,
    genes: NDArray[np.bool_] | None = None,
) -> pd.DataFrame:
    """Table of :func:`~scatlas.matrix.hvg.hvg_of_counts`, flavor seurat, from moments of shares.

    Its means and dispersions differ from those of `hvg_of_counts` by the rounding of single values
    to float32, 6e-8 relative at most before they average out.

    Parameters
    ----------
    moments
        Those of :func:`share_moments`.
    names
        Genes.
    target_sum
        Total to which the cells are normalised.
    n_top_genes, n_bins, min_cells, genes
        As in `hvg_of_counts`.

    Raises
    ------
    InputError
        There are no genes, or fewer than `min_cells` express each.
    """
    if not names.size:
        raise InputError("the array has no genes, of which some could be highly variable")
    return dispersion_table(
        moments.mean * target_sum,
        moments.var * target_sum**2,
        n_bins=n_bins,
        n_top_genes=n_top_genes,
        ranked=ranked_genes(moments.expressed, min_cells, genes),
        index=names,
    )
