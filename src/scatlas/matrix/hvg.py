"""Highly variable genes from counts, without an AnnData: flavours that rank counts take two passes,
whatever the number of batches.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas.errors import InputError
from scatlas.kernels import kernels_for
from scatlas.matrix import hvg_dispersion, hvg_pearson, hvg_v3
from scatlas.matrix.gene_moments import check_finite_moments, normalized_moments
from scatlas.matrix.hvg_dispersion import moments_table, ranked_genes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from numpy.typing import ArrayLike, NDArray

    from scatlas.kernels.moments.moments_cpu import Moments

    _BlockResult = tuple[Moments, list[NDArray[Any]], bool]

FLAVORS = (*hvg_dispersion.FLAVORS, *hvg_v3.FLAVORS, hvg_pearson.FLAVOR)


def hvg_of_counts(
    x: Any,
    names: pd.Index,
    size_factors: ArrayLike,
    *,
    flavor: str = "seurat",
    n_top_genes: int | None = None,
    n_bins: int = 20,
    min_cells: int | None = None,
    genes: NDArray[np.bool_] | None = None,
) -> pd.DataFrame:
    """Table of :func:`highly_variable_genes` for counts without an AnnData.

    The cell names of an AnnData take sixty bytes per cell, more than the pass itself.

    Parameters
    ----------
    x
        Counts ``[n_cells, n_genes]``, in memory or Dask.
    names
        Genes.
    size_factors
        One number per cell; NaN leaves the cell out.
    flavor, n_top_genes, n_bins, min_cells
        As in :func:`highly_variable_genes`.
    genes
        Boolean ``[n_genes]``, genes to rank; the others are left out, as those below `min_cells`.
        None for all.

    Raises
    ------
    InputError
        As :func:`highly_variable_genes` with size factors.
    """
    from scatlas.elements import check_array
    from scatlas.matrix.select_normalize import scales_from_size_factors

    check_flavor(flavor)
    x = check_array(x, "the array")
    if x.shape[1] == 0:
        raise InputError("the array has no genes, of which some could be highly variable")
    scales = scales_from_size_factors(size_factors, x.shape[0])
    cell_mask = ~np.isnan(scales)
    check_cells(cell_mask, None, 0)
    if flavor not in hvg_dispersion.FLAVORS:
        return count_table(
            x,
            names,
            None,
            None,
            flavor=flavor,
            cell_mask=cell_mask,
            n_top_genes=n_top_genes,
            min_cells=min_cells,
            genes=genes,
        )
    moments = normalized_count_moments(x, names, scales, flavor, None)
    return moments_table(
        moments,
        names,
        batches=None,
        flavor=flavor,
        n_bins=n_bins,
        n_top_genes=n_top_genes,
        min_cells=min_cells,
        genes=genes,
    )


def normalized_count_moments(
    x: Any,
    names: pd.Index,
    scales: NDArray[np.float64],
    flavor: str,
    codes: NDArray[np.int64] | None,
) -> Moments:
    """Moments of normalised counts; refuse moments that cannot be those of counts."""
    moments = normalized_moments(x, scales, codes, log=flavor == "cell_ranger")
    expected = "counts where size_factors are given"
    check_finite_moments(moments, names, expected)
    negative = (moments.mean < 0).any(axis=0)
    if negative.any():
        gene = names[int(np.argmax(negative))]
        msg = f"gene {gene!r} has a mean below 0: highly_variable_genes expects {expected}"
        raise InputError(msg)
    return moments


def check_cells(
    cell_mask: NDArray[np.bool_], codes: NDArray[np.int64] | None, n_batches: int
) -> None:
    """Refuse size factors that leave out every cell, or every cell of all batches."""
    if not cell_mask.any():
        raise InputError("size_factors are NaN for every cell, so that none is left")
    if codes is not None and not (codes[cell_mask] < n_batches).any():
        raise InputError("size_factors leave no cell that belongs to a batch (batch_key)")


def check_flavor(flavor: str) -> None:
    """Refuse an unknown flavor."""
    if flavor not in FLAVORS:
        raise InputError(f"flavor={flavor!r} is not supported: choose one of {', '.join(FLAVORS)}")


def count_table(
    x: Any,
    names: pd.Index,
    codes: NDArray[np.int64] | None,
    batches: list[Any] | None,
    *,
    flavor: str,
    cell_mask: NDArray[np.bool_] | None = None,
    n_top_genes: int | None = None,
    span: float = 0.3,
    theta: float = 100,
    clip: float | None = None,
    check_values: bool = True,
    min_cells: int | None = None,
    genes: NDArray[np.bool_] | None = None,
) -> pd.DataFrame:
    """Table of :func:`highly_variable_genes` for the flavours that rank counts.

    ``codes`` has each cell's batch; ``len(batches)`` is none, and affects ``means`` and
    ``variances``. ``genes`` is as in :func:`scatlas.matrix.hvg_dispersion.ranked_genes`.
    """
    pearson = flavor == hvg_pearson.FLAVOR
    if pearson:
        n_top_genes = hvg_pearson.check_options(n_top_genes, theta, clip)
    else:
        n_top_genes = hvg_v3.check_options(n_top_genes, span)
    if cell_mask is not None and not cell_mask.all():
        codes = np.where(cell_mask, 0 if codes is None else codes, -1)
    moments, totals, are_counts = _moments_of_counts(x, codes, check_values, with_totals=pearson)
    if not are_counts:
        msg = f"`{flavor=!r}` expects raw count data, but non-integers were found."
        warnings.warn(msg, stacklevel=4)
    check_finite_moments(moments, names, f"counts for flavor={flavor!r}")
    total = _pool_groups(moments)
    ranked = ranked_genes(total.expressed[0], min_cells, genes)
    moments = moments.select(moments.groups < (1 if batches is None else len(batches)))
    if pearson:
        norm = hvg_pearson.residual_variances(x, moments, totals, codes, batches, theta, clip)
    else:
        norm = hvg_v3.normalized_variances(x, moments, ranked, codes, batches, span, flavor)
    norm[:, ~ranked] = np.nan
    return _rank_table(
        total, names, norm, ranked, n_top_genes, flavor, by_batch=batches is not None
    )


def _rank_table(
    total: Moments,
    names: pd.Index,
    norm: NDArray[np.float64],
    ranked: NDArray[np.bool_],
    n_top_genes: int,
    flavor: str,
    *,
    by_batch: bool,
) -> pd.DataFrame:
    """Table of the genes, columns in the order of scanpy's; `norm` is ``[n_batches, n_genes]``."""
    import pandas as pd

    rank, n_batches = _median_rank(norm, ranked, n_top_genes)
    columns: dict[str, pd.Index | NDArray[np.generic]] = {
        "means": total.mean[0],
        "variances": total.var[0],
    }
    ranks, counts = {"highly_variable_rank": rank}, {"highly_variable_nbatches": n_batches}
    if flavor == hvg_pearson.FLAVOR:
        counts["highly_variable_intersection"] = n_batches == len(norm)
        columns |= {"residual_variances": norm.mean(axis=0)} | ranks | (counts if by_batch else {})
    else:
        columns |= {"gene_name": names} | (counts if by_batch else {}) | ranks
        columns["variances_norm"] = norm.mean(axis=0)
    by_rank, by_batches = np.where(np.isnan(rank), np.inf, rank), -n_batches
    keys = (by_batches, by_rank) if flavor == "seurat_v3" else (by_rank, by_batches)
    columns["highly_variable"] = _select_top(keys, ranked, n_top_genes)
    return pd.DataFrame(columns, index=names)


def _moments_of_counts(
    x: Any, codes: NDArray[np.int64] | None, check: bool, *, with_totals: bool
) -> tuple[Moments, NDArray[np.float64], bool]:
    """Moments per group, total per cell, whether all values are counts (if checked)."""
    from scatlas.kernels.moments import moments_cpu

    count_kernels = kernels_for("moments.count_moments", x)
    qc_kernels = kernels_for("counts.qc", x)

    def of_block(block: Any, *codes: NDArray[np.int64]) -> _BlockResult:
        are_counts = not check or qc_kernels.holds_counts(block)
        totals = [qc_kernels.row_sums(block)] if with_totals else []
        return count_kernels.moments_of_counts(block, *codes), totals, are_counts

    def combine(parts: list[_BlockResult]) -> _BlockResult:
        moments, totals, are_counts = zip(*parts, strict=True)
        # In place: new lists would take time quadratic in the number of blocks.
        for part in totals[1:]:
            totals[0].extend(part)
        return moments_cpu.merge_in_place(moments), totals[0], all(are_counts)

    rows = () if codes is None else (codes,)
    moments, totals, are_counts = blocks.reduce(of_block, combine, x, *rows)
    return moments, np.concatenate([np.zeros(0), *totals]), are_counts


def _pool_groups(moments: Moments) -> Moments:
    """Moments of the cells of all groups together."""
    from scatlas.kernels.moments.moments_cpu import merge

    parts = [moments.select([at]) for at in range(moments.groups.size)]
    return merge([dataclasses.replace(part, groups=np.zeros(1, np.int64)) for part in parts])


def _median_rank(
    norm: NDArray[np.float64], ranked: NDArray[np.bool_], n_top_genes: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Median rank of each gene over the batches that select it, and the number of these batches."""
    order = np.argsort(-norm, axis=1, kind="stable")
    rank = np.empty(norm.shape, dtype=np.float32)
    np.put_along_axis(rank, order, np.arange(norm.shape[1], dtype=np.float32)[None], axis=1)
    rank[(rank >= n_top_genes) | ~ranked] = np.nan
    n_batches = np.count_nonzero(~np.isnan(rank), axis=0)
    rank.sort(axis=0)  # NaN last
    last = np.maximum(n_batches - 1, 0)[None]
    low = np.take_along_axis(rank, last // 2, axis=0)
    high = np.take_along_axis(rank, (last + 1) // 2, axis=0)
    return ((low + high) / np.float32(2))[0], n_batches.astype(np.int64)


def _select_top(
    keys: Sequence[NDArray[np.number]], ranked: NDArray[np.bool_], n_top_genes: int
) -> NDArray[np.bool_]:
    """Mask of the first ranked genes by several keys, the last key first; ties keep their order."""
    order = np.lexsort(keys)
    selected = np.zeros(ranked.size, dtype=bool)
    selected[order[ranked[order]][:n_top_genes]] = True
    return selected
