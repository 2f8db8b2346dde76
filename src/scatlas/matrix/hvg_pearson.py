"""Genes ranked by the variance of their Pearson residuals: the flavour pearson_residuals.

Two passes over the counts, however many batches there are: the totals of cells and genes, and what
the counts that are not zero add to the residuals. What all zeros make of them follows from the
totals, of which far fewer are different than there are cells.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas.errors import InputError
from scatlas.kernels.dispatch import is_gpu, kernels_for
from scatlas.matrix.hvg_dispersion import at_least_one, ranked_genes
from scatlas.matrix.hvg_v3 import median_rank, of_groups, pooled

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from scatlas.kernels.moments.moments_cpu import Moments
    from scatlas.kernels.moments.pearson_cpu import Model

FLAVOR = "pearson_residuals"
# What an AnnData gets of a table, in scanpy's order; those of the batches with batches.
COLUMNS = (
    *("means", "variances", "residual_variances", "highly_variable_rank"),
    *("highly_variable_nbatches", "highly_variable_intersection", "highly_variable"),
)
# Genes that a thread takes at a time through the totals of the cells.
_GENES_AT_ONCE = 256


def hvg_table(
    x: Any,
    names: pd.Index,
    codes: NDArray[np.int64] | None,
    batches: list[Any] | None,
    *,
    kept: NDArray[np.bool_] | None = None,
    n_top_genes: int | None = None,
    theta: float = 100,
    clip: float | None = None,
    check_values: bool = True,
    min_cells: int | None = None,
    genes: NDArray[np.bool_] | None = None,
) -> pd.DataFrame:
    """Table of :func:`highly_variable_genes` for the flavour pearson_residuals.

    Parameters
    ----------
    x, names, codes, batches, kept, genes
        As for :func:`scatlas.matrix.hvg_v3.hvg_table`.
    n_top_genes, theta, clip, check_values, min_cells
        As in :func:`highly_variable_genes`.

    Returns
    -------
    scanpy's columns: ``means``, ``variances``, ``residual_variances``, ``highly_variable_rank``,
    with batches ``highly_variable_nbatches`` and ``highly_variable_intersection``,
    ``highly_variable``.
    """
    import pandas as pd

    from scatlas.matrix.gene_moments import check_finite

    if n_top_genes is None:
        msg = f"flavor={FLAVOR!r} ranks genes and has no cutoffs: give n_top_genes"
        raise InputError(msg)
    n_top_genes = at_least_one(n_top_genes)
    if not theta > 0:
        msg = f"theta={theta} must be above 0"
        raise InputError(msg)
    if clip is not None and not clip >= 0:
        msg = f"clip={clip} must not be negative"
        raise InputError(msg)
    if kept is not None and not kept.all():
        codes = np.where(kept, 0 if codes is None else codes, -1)
    moments, totals, are_counts = _totals(x, codes, check=check_values)
    if check_values and not are_counts:
        msg = f"`flavor={FLAVOR!r}` expects raw count data, but non-integers were found."
        warnings.warn(msg, stacklevel=3)
    check_finite(moments, names, f"counts for flavor={FLAVOR!r}")
    total = pooled(moments)
    ranked = ranked_genes(total.expressed[0], min_cells, genes)
    moments = of_groups(moments, moments.groups < (1 if batches is None else len(batches)))
    variances = _residual_variances(x, moments, totals, codes, batches, theta, clip)
    variances[:, ~ranked] = np.nan

    rank, n_batches = median_rank(variances, ranked, n_top_genes)
    table = pd.DataFrame({"means": total.mean[0], "variances": total.var[0]}, index=names)
    table["residual_variances"] = np.mean(variances, axis=0)
    table["highly_variable_rank"] = rank
    if batches is not None:
        table["highly_variable_nbatches"] = n_batches
        table["highly_variable_intersection"] = n_batches == len(variances)
    # np.lexsort sorts by its last key first, and leaves genes of equal keys in their order.
    order = np.lexsort((np.where(np.isnan(rank), np.inf, rank), -n_batches))
    selected = np.zeros(names.size, dtype=bool)
    selected[order[ranked[order]][:n_top_genes]] = True
    table["highly_variable"] = selected
    return table


def _totals(
    x: Any, codes: NDArray[np.int64] | None, *, check: bool
) -> tuple[Moments, NDArray[np.float64], bool]:
    """Moments of each group, total of each cell, and whether all values are counts, in one pass."""
    from scatlas.kernels.moments import moments_cpu

    moments, values = (
        kernels_for("moments.count_moments", x),
        kernels_for("moments.clipped_moments", x),
    )
    row_sums = kernels_for("counts.qc", x).row_sums

    def of_block(block: Any, *codes: NDArray) -> tuple[Moments, list[NDArray], bool]:
        are_counts = not check or values.holds_counts(block)
        return moments.moments_of_counts(block, *codes), [row_sums(block)], are_counts

    def fold(parts: list[tuple]) -> tuple[Moments, list[NDArray], bool]:
        of_parts, lists, are_counts = zip(*parts, strict=True)
        # In place: a list made anew for each block would take the square of their number.
        for part in lists[1:]:
            lists[0].extend(part)
        return moments_cpu.fold(of_parts), lists[0], all(are_counts)

    rows = () if codes is None else (codes,)
    found, totals, are_counts = blocks.reduce(of_block, fold, x, *rows)
    return found, np.concatenate(totals).astype(np.float64), are_counts


def _residual_variances(
    x: Any,
    moments: Moments,
    totals: NDArray[np.float64],
    codes: NDArray[np.int64] | None,
    batches: list[Any] | None,
    theta: float,
    clip: float | None,
) -> NDArray[np.float64]:
    """Variance (over n) of the clipped residuals of each group and gene."""
    from scatlas.kernels.moments import moments_cpu
    from scatlas.kernels.moments.pearson_cpu import Model

    groups, n_cells = moments.groups, moments.n_cells
    shape = int(groups[-1]) + 1, x.shape[1]
    model = Model(np.zeros(shape), np.zeros(shape[0]), np.zeros(shape[0]), float(theta))
    model.genes[groups] = moments.sums[..., 0]
    model.groups[groups] = moments.sums[..., 0].sum(axis=1)
    model.clips[groups] = np.sqrt(n_cells) if clip is None else clip
    codes = None if codes is None else np.where(codes < shape[0], codes, -1)
    of_cells = totals if codes is None else totals[codes >= 0]
    if (model.genes < 0).any() or (of_cells < 0).any():
        msg = f"genes or cells have a total below 0: flavor={FLAVOR!r} expects counts"
        raise InputError(msg)
    for group in groups:
        if model.groups[group] == 0:
            where = "" if batches is None else f" of batch {batches[group]!r}"
            msg = f"all cells{where} are empty: there is nothing to rank genes by"
            raise InputError(msg)

    kernels = kernels_for("moments.pearson", x)
    rows = (totals,) if codes is None else (totals, codes)
    others = blocks.reduce(
        lambda block, totals, *codes: kernels.sums_of_others(block, totals, model, *codes),
        moments_cpu.fold,
        x,
        *rows,
    )
    sums = np.empty_like(others.sums)
    for at, group in enumerate(groups):
        mine = totals if codes is None else totals[codes == group]
        zeros = _sums_of_zeros(x, model, int(group), *np.unique(mine, return_counts=True))
        for first in (0, 2):
            pair = moments_cpu.pair_sum(*zeros.T[first : first + 2], *others.sums[at].T[first:][:2])
            sums[at, :, first : first + 2] = np.column_stack(pair)
    n = n_cells[:, None].astype(np.float64)
    return moments_cpu.mean_deviations(*np.moveaxis(sums, 2, 0), n)[1] / n


def _sums_of_zeros(
    x: Any, model: Model, group: int, totals: NDArray[np.float64], n_cells: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Sums as if all counts of a group were zeros: once for the genes of the same total."""
    of_genes, where = np.unique(model.genes[group], return_inverse=True)
    kernels = kernels_for("moments.pearson", x)
    at_once = of_genes.size if is_gpu(x) else _GENES_AT_ONCE

    def of_some(i: int) -> NDArray[np.float64]:
        some = model._replace(
            genes=of_genes[None, i * at_once : (i + 1) * at_once],
            groups=model.groups[[group]],
            clips=model.clips[[group]],
        )
        return kernels.sums_of_zeros(some, 0, totals, n_cells)

    if is_gpu(x):
        return of_some(0)[where]
    return np.concatenate(list(blocks.in_order(of_some, -(-of_genes.size // at_once))))[where]
