"""Genes ranked by their variance relative to that expected from their mean: flavours seurat_v3.

Two passes over the counts, whatever the number of batches: moments of all genes in all batches, and
moments of the counts above a bound per gene, which comes from a fit on the former.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas._util.imports import from_extra
from scatlas._util.numbers import whole_number
from scatlas.errors import InputError
from scatlas.kernels.dispatch import kernels_for
from scatlas.matrix.hvg_dispersion import ranked_genes
from scatlas.matrix.hvg_ranks import (
    mask_codes,
    median_rank,
    pool_groups,
    select_groups,
    select_top,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    from numpy.typing import NDArray

    from scatlas.kernels.moments.moments_cpu import Moments

FLAVORS = ("seurat_v3", "seurat_v3_paper")
# Columns of a table that are written to var, in scanpy's order; the last one only with batches.
COLUMNS = (
    *("highly_variable", "highly_variable_rank", "means", "variances", "variances_norm"),
    "highly_variable_nbatches",
)
_N_TOP_GENES = 2000
# A quadratic fit needs this many genes; without genes scikit-misc ends the process.
_MIN_GENES_PER_FIT = 4


def hvg_table(
    x: Any,
    names: pd.Index,
    codes: NDArray[np.int64] | None,
    batches: list[Any] | None,
    *,
    flavor: str,
    cell_mask: NDArray[np.bool_] | None = None,
    n_top_genes: int | None = None,
    span: float = 0.3,
    check_values: bool = True,
    min_cells: int | None = None,
    genes: NDArray[np.bool_] | None = None,
) -> pd.DataFrame:
    """Table of :func:`highly_variable_genes` for the flavours seurat_v3 and seurat_v3_paper.

    ``codes`` has the batch of each cell, None for one batch; cells without batch, ``len(batches)``,
    affect the columns ``means`` and ``variances`` only. ``cell_mask`` says which cells to include,
    and ``genes`` is as in :func:`scatlas.matrix.hvg_dispersion.ranked_genes`.
    """
    import pandas as pd

    with from_extra():
        from skmisc.loess import loess

    from scatlas.matrix.gene_moments import check_finite_moments

    n_top_genes = _N_TOP_GENES if n_top_genes is None else n_top_genes
    n_top_genes = whole_number(n_top_genes, "n_top_genes", least=1)
    if not 0 < span <= 1:
        msg = f"span={span} must be above 0 and at most 1: it is a share of the genes"
        raise InputError(msg)
    codes = mask_codes(codes, cell_mask)
    moments, are_counts = _count_moments(x, codes, check=check_values)
    if not are_counts:
        msg = f"`{flavor=!r}` expects raw count data, but non-integers were found."
        warnings.warn(msg, stacklevel=4)
    check_finite_moments(moments, names, f"counts for flavor={flavor!r}")

    total = pool_groups(moments)
    ranked = ranked_genes(total.expressed[0], min_cells, genes)
    moments = select_groups(moments, moments.groups < (1 if batches is None else len(batches)))
    spread = np.ones(moments.mean.shape)
    for at, (group, mean, var) in enumerate(
        zip(moments.groups, moments.mean, moments.var, strict=True)
    ):
        where = "" if batches is None else f" in batch {batches[group]!r}"
        spread[at] = _expected_spread(loess, mean, var, ranked, span, flavor, where)
    norm = _normalized_variances(x, moments, spread, codes)
    norm[:, ~ranked] = np.nan

    rank, n_batches = median_rank(norm, ranked, n_top_genes)
    table = pd.DataFrame({"means": total.mean[0], "variances": total.var[0]}, index=names)
    table["gene_name"] = names
    if batches is not None:
        table["highly_variable_nbatches"] = n_batches
    table["highly_variable_rank"] = rank
    table["variances_norm"] = np.mean(norm, axis=0)
    by_rank, by_batches = np.where(np.isnan(rank), np.inf, rank), -n_batches
    keys = (by_batches, by_rank) if flavor == "seurat_v3" else (by_rank, by_batches)
    table["highly_variable"] = select_top(keys, ranked, n_top_genes)
    return table


def _count_moments(x: Any, codes: NDArray[np.int64] | None, *, check: bool) -> tuple[Moments, bool]:
    """Moments of each group in one pass, and, if checked, whether all values are counts."""
    from scatlas.kernels.moments import moments_cpu

    count_kernels = kernels_for("moments.count_moments", x)
    clip_kernels = kernels_for("moments.clipped_moments", x)

    def block_moments(block: Any, *codes: NDArray[np.int64]) -> tuple[Moments, bool]:
        are_counts = not check or clip_kernels.holds_counts(block)
        return count_kernels.moments_of_counts(block, *codes), are_counts

    def combine(parts: list[tuple[Moments, bool]]) -> tuple[Moments, bool]:
        moments, are_counts = zip(*parts, strict=True)
        return moments_cpu.merge_in_place(moments), all(are_counts)

    return blocks.reduce(block_moments, combine, x, *(() if codes is None else (codes,)))


def _normalized_variances(
    x: Any, moments: Moments, spread: NDArray[np.float64], codes: NDArray[np.int64] | None
) -> NDArray[np.float64]:
    """Variance of counts, clipped at a bound and divided by the spread, per group and gene."""
    from scatlas.kernels.moments.clipped_moments_cpu import clipped_squares

    n_cells = moments.n_cells[:, None]
    bounds = spread * np.sqrt(n_cells) + moments.mean
    above = _moments_above(x, bounds, moments.groups, codes)
    return clipped_squares(moments, above, bounds) / ((n_cells - 1) * spread**2)


def _moments_above(
    x: Any,
    bounds: NDArray[np.float64],
    groups: NDArray[np.int64],
    codes: NDArray[np.int64] | None,
) -> Moments:
    """Moments of the values above the bounds of their group and gene, in one pass."""
    from scatlas.kernels.moments import moments_cpu

    kernels = kernels_for("moments.clipped_moments", x)
    rows: tuple[NDArray[np.int64], ...] = ()
    if codes is not None:
        bounds_by_code = np.full((groups[-1] + 1, bounds.shape[1]), np.inf)
        bounds_by_code[groups] = bounds
        bounds = bounds_by_code
        # Cells without batch have the last code.
        rows = (np.where(codes > groups[-1], -1, codes),)

    def moments_above(block: Any, *codes: NDArray[np.int64]) -> Moments:
        return kernels.moments_above(block, bounds, *codes)

    return blocks.reduce(moments_above, moments_cpu.merge_in_place, x, *rows)


def _expected_spread(
    loess: Callable[..., Any],
    mean: NDArray[np.float64],
    var: NDArray[np.float64],
    ranked: NDArray[np.bool_],
    span: float,
    flavor: str,
    where: str,
) -> NDArray[np.float64]:
    """Standard deviation expected from a gene's mean; 1 for constant and unranked genes."""
    varies = ranked & (var > 0)
    if (mean[varies] <= 0).any():
        msg = f"genes have a mean below 0{where}: flavor={flavor!r} expects counts"
        raise InputError(msg)
    n_genes = np.count_nonzero(varies)
    if int(n_genes * span + 1e-5) < _MIN_GENES_PER_FIT:  # as loess rounds
        remedy = "choose another flavor, or raise span" if n_genes else "give cells that differ"
        msg = (
            f"{n_genes} genes vary{where}, too few for flavor={flavor!r} with span={span}, whose "
            f"fits need at least {_MIN_GENES_PER_FIT} genes: {remedy}"
        )
        raise InputError(msg)
    model = loess(np.log10(mean[varies]), np.log10(var[varies]), span=span, degree=2)
    try:
        model.fit()
    except ValueError as error:
        reason = error.args[0]
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        msg = (
            f"loess cannot fit the variances of {n_genes} genes on their means{where} "
            f"({text.strip().rstrip('.')}): raise span={span}, or leave out genes that hardly any "
            "cell expresses with min_cells (config: qc.min_cells)"
        )
        raise InputError(msg) from error
    estimate = np.zeros(var.size)
    estimate[varies] = model.outputs.fitted_values
    return np.sqrt(10**estimate)
