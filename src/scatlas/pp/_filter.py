"""Filters of cells and genes by their counts."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from scatlas import blocks, elements
from scatlas.errors import InputError
from scatlas.kernels import kernels_for

if TYPE_CHECKING:
    from anndata import AnnData

log = logging.getLogger(__name__)


@blocks.passes(1)
def filter_cells(
    data: AnnData | Any,
    *,
    min_counts: int | None = None,
    min_genes: int | None = None,
    max_counts: int | None = None,
    max_genes: int | None = None,
    inplace: bool = True,
    copy: bool = False,
) -> AnnData | tuple[np.ndarray, np.ndarray] | None:
    """Keep the cells within a bound on their total counts or number of genes.

    As :func:`scanpy.pp.filter_cells`; exactly one bound per call. Rows of a Dask X are
    selected lazily within each block. Totals are exact: int64 for an integer X, float64
    for a floating-point one (scanpy: the type of X).

    Parameters
    ----------
    data
        AnnData, or a matrix [cells x genes] in memory or Dask.
    min_counts, max_counts
        Inclusive bounds on the total counts of a cell.
    min_genes, max_genes
        Inclusive bounds on the number of genes above zero.
    inplace
        Drop the other cells from the AnnData and write the numbers into it.
    copy
        Change a copy and return it.

    Returns
    -------
    None when in place, the new AnnData when `copy`. Adds ``obs['n_counts']`` or
    ``obs['n_genes']``. When not `inplace`, or for a matrix, two arrays:

    `cells_subset` : bool [cells]
        True for cells that are kept.
    `number_per_cell` : int64 or float64 [cells]
        The total or the number of genes.

    Raises
    ------
    InputError
        When not exactly one bound is given, or when totals of integers may not fit 64 bits.
    """
    return _filter(
        data,
        axis="obs",
        item="genes",
        counts=(min_counts, max_counts),
        items=(min_genes, max_genes),
        inplace=inplace,
        copy=copy,
    )


@blocks.passes(1)
def filter_genes(
    data: AnnData | Any,
    *,
    min_counts: int | None = None,
    min_cells: int | None = None,
    max_counts: int | None = None,
    max_cells: int | None = None,
    inplace: bool = True,
    copy: bool = False,
) -> AnnData | tuple[np.ndarray, np.ndarray] | None:
    """Keep the genes within a bound on their total counts or number of cells.

    As :func:`scanpy.pp.filter_genes`; exactly one bound per call. Totals are exact: int64 for an
    integer X, float64 for a floating-point one (scanpy: the type of X).

    Parameters
    ----------
    data
        AnnData, or a matrix [cells x genes] in memory or Dask.
    min_counts, max_counts
        Inclusive bounds on the total counts of a gene.
    min_cells, max_cells
        Inclusive bounds on the number of cells in which the gene is above zero.
    inplace
        Drop the other genes from the AnnData and write the numbers into it.
    copy
        Change a copy and return it.

    Returns
    -------
    None when in place, the new AnnData when `copy`. Adds ``var['n_counts']`` or
    ``var['n_cells']``. When not `inplace`, or for a matrix, two arrays:

    `gene_subset` : bool [genes]
        True for genes that are kept.
    `number_per_gene` : int64 or float64 [genes]
        The total or the number of cells.

    Raises
    ------
    InputError
        When not exactly one bound is given, or when totals of integers may not fit 64 bits.
    """
    return _filter(
        data,
        axis="var",
        item="cells",
        counts=(min_counts, max_counts),
        items=(min_cells, max_cells),
        inplace=inplace,
        copy=copy,
    )


def _filter(
    data: AnnData | Any,
    *,
    axis: Literal["obs", "var"],
    item: str,
    counts: tuple[int | None, int | None],
    items: tuple[int | None, int | None],
    inplace: bool,
    copy: bool,
) -> AnnData | tuple[np.ndarray, np.ndarray] | None:
    from anndata import AnnData

    if sum(bound is not None for bound in (*counts, *items)) != 1:
        msg = f"give exactly one of min_counts, max_counts, min_{item} and max_{item} per call"
        raise InputError(msg)
    by_counts = items == (None, None)
    low, high = counts if by_counts else items
    is_anndata = isinstance(data, AnnData)
    x = elements.get_matrix(data) if is_anndata else blocks.sum_repeats(data)
    number = _counts_or_numbers(x, axis, by_counts=by_counts)
    keep = number >= low if low is not None else number <= high
    log.info("keeping %d of %d %s", keep.sum(), keep.size, "cells" if axis == "obs" else "genes")
    if not is_anndata or not inplace:
        return keep, number
    column = "n_counts" if by_counts else f"n_{item}"
    if copy:
        kept = elements.subset_copy(data, keep, axis)
    else:
        kept = data
        elements.subset(kept, keep, axis)
    getattr(kept, axis)[column] = number[keep]
    return kept if copy else None


def _counts_or_numbers(x: Any, axis: str, *, by_counts: bool) -> np.ndarray:
    """Total counts, or number of values above zero, of each cell or gene."""
    from scatlas.kernels.counts.qc_cpu import add_gene_sums, round_gene_sums
    from scatlas.kernels.moments.group_sums_cpu import check_range
    from scatlas.matrix.sums_by_gene import exact_totals, is_by_gene, numbers_above_zero

    if hasattr(x, "dtype"):
        blocks.check_type(x)
    if by_counts:
        by_gene = exact_totals(x, x.shape[1 if axis == "obs" else 0])
    else:
        by_gene = numbers_above_zero(x) if is_by_gene(x) else None
    if by_gene is not None:
        return by_gene[0 if axis == "obs" else 1]
    x = elements.as_rows(x)
    blocks.check_type(x)
    kernels = kernels_for("counts.qc", x)
    if axis == "obs":
        cell_numbers = kernels.row_sums if by_counts else kernels.row_positive
        return np.concatenate(list(blocks.stream(x, cell_numbers)))

    def gene_numbers(block: blocks.Block) -> np.ndarray:
        if not by_counts:
            return kernels.gene_positive(block)
        check_range(block, x.shape[0])
        return kernels.gene_totals(block)

    return round_gene_sums(blocks.reduce(gene_numbers, add_gene_sums, x))
