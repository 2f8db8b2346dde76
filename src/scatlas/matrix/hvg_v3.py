"""Genes ranked by their variance beyond what their mean lets expect: the flavours seurat_v3.

Two passes over the counts, however many batches there are: the moments of all genes in all batches,
and, when a fit on these has given each gene its bound, the moments of the counts above it.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas.errors import InputError
from scatlas.kernels.dispatch import kernels_for
from scatlas.matrix.hvg_dispersion import at_least_one, ranked_genes

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    from numpy.typing import NDArray

    from scatlas.kernels.moments.moments_cpu import Moments

FLAVORS = ("seurat_v3", "seurat_v3_paper")
# What an AnnData gets of a table, in scanpy's order; the last one with batches.
COLUMNS = (
    *("highly_variable", "highly_variable_rank", "means", "variances", "variances_norm"),
    "highly_variable_nbatches",
)
_N_TOP_GENES = 2000
# Quadratic fits need as many genes at once. With none scikit-misc ends the process.
_FEWEST_GENES = 4


def hvg_table(
    x: Any,
    names: pd.Index,
    codes: NDArray[np.int64] | None,
    batches: list[Any] | None,
    *,
    flavor: str,
    kept: NDArray[np.bool_] | None = None,
    n_top_genes: int | None = None,
    span: float = 0.3,
    check_values: bool = True,
    min_cells: int | None = None,
    genes: NDArray[np.bool_] | None = None,
) -> pd.DataFrame:
    """Table of :func:`highly_variable_genes` for the flavours seurat_v3 and seurat_v3_paper.

    Parameters
    ----------
    x
        Counts ``[n_cells, n_genes]``, in memory or Dask.
    names
        Genes.
    codes
        Batch of each cell, int64 ``[n_cells]``; ``len(batches)`` for cells of no batch, which
        count for the columns ``means`` and ``variances`` alone. ``None``: one batch.
    batches
        Names of the batches; ``None`` with `codes`.
    kept
        Boolean ``[n_cells]``: the cells that count; ``None`` for all.
    flavor, n_top_genes, span, check_values, min_cells
        As in :func:`highly_variable_genes`.
    genes
        As in :func:`scatlas.matrix.hvg_dispersion.ranked_genes`.

    Returns
    -------
    scanpy's columns: ``means``, ``variances``, ``gene_name``, with batches
    ``highly_variable_nbatches``, ``highly_variable_rank``, ``variances_norm``, ``highly_variable``.
    """
    import pandas as pd

    from scatlas.kernels.moments.clipped_moments_cpu import clipped_squares
    from scatlas.matrix.gene_moments import check_finite

    loess = _loess(flavor)
    n_top_genes = at_least_one(_N_TOP_GENES if n_top_genes is None else n_top_genes)
    if not 0 < span <= 1:
        msg = f"span={span} must be above 0 and at most 1: it is a part of the genes"
        raise InputError(msg)
    if kept is not None and not kept.all():
        codes = np.where(kept, 0 if codes is None else codes, -1)
    moments, are_counts = _moments_of_all(x, codes, check=check_values)
    if not are_counts:
        msg = f"`{flavor=!r}` expects raw count data, but non-integers were found."
        warnings.warn(msg, stacklevel=3)
    check_finite(moments, names, f"counts for flavor={flavor!r}")

    total = pooled(moments)
    ranked = ranked_genes(total.expressed[0], min_cells, genes)
    moments = of_groups(moments, moments.groups < (1 if batches is None else len(batches)))
    n_cells, mean, var = moments.n_cells[:, None], moments.mean, moments.var
    spread = np.ones(mean.shape)
    for at, group in enumerate(moments.groups):
        where = "" if batches is None else f" in batch {batches[group]!r}"
        spread[at] = _expected_spread(loess, mean[at], var[at], ranked, span, flavor, where)
    bounds = spread * np.sqrt(n_cells) + mean
    above = _moments_above(x, bounds, moments.groups, codes)
    squares = clipped_squares(moments, above, bounds)
    norm = squares / ((n_cells - 1) * spread**2)
    norm[:, ~ranked] = np.nan

    rank, n_batches = median_rank(norm, ranked, n_top_genes)
    table = pd.DataFrame({"means": total.mean[0], "variances": total.var[0]}, index=names)
    table["gene_name"] = names
    if batches is not None:
        table["highly_variable_nbatches"] = n_batches
    table["highly_variable_rank"] = rank
    table["variances_norm"] = np.mean(norm, axis=0)
    by_rank, by_batches = np.where(np.isnan(rank), np.inf, rank), -n_batches
    # np.lexsort sorts by its last key first, and leaves genes of equal keys in their order.
    keys = (by_batches, by_rank) if flavor == "seurat_v3" else (by_rank, by_batches)
    order = np.lexsort(keys)
    selected = np.zeros(names.size, dtype=bool)
    selected[order[ranked[order]][:n_top_genes]] = True
    table["highly_variable"] = selected
    return table


def _loess(flavor: str) -> Callable[..., Any]:
    try:
        from skmisc.loess import loess
    except ImportError as error:
        msg = (
            f"flavor={flavor!r} needs scikit-misc, which is not installed: install scatlas[skmisc]"
        )
        raise InputError(msg) from error
    return loess


def _moments_of_all(
    x: Any, codes: NDArray[np.int64] | None, *, check: bool
) -> tuple[Moments, bool]:
    """Moments of each group in one pass, and whether all values are counts (or nobody asks)."""
    from scatlas.kernels.moments import moments_cpu

    moments, values = (
        kernels_for("moments.count_moments", x),
        kernels_for("moments.clipped_moments", x),
    )

    def of_block(block: Any, *codes: NDArray) -> tuple[Moments, bool]:
        return moments.moments_of_counts(block, *codes), not check or values.holds_counts(block)

    def fold(parts: list[tuple[Moments, bool]]) -> tuple[Moments, bool]:
        of_parts, are_counts = zip(*parts, strict=True)
        return moments_cpu.fold(of_parts), all(are_counts)

    return blocks.reduce(of_block, fold, x, *(() if codes is None else (codes,)))


def _moments_above(
    x: Any,
    bounds: NDArray[np.float64],
    groups: NDArray[np.int64],
    codes: NDArray[np.int64] | None,
) -> Moments:
    """Moments of the values above the bounds of their groups, in one pass."""
    from scatlas.kernels.moments import moments_cpu

    kernels = kernels_for("moments.clipped_moments", x)
    rows = ()
    if codes is not None:
        by_code = np.full((groups[-1] + 1, bounds.shape[1]), np.inf)
        by_code[groups] = bounds
        bounds = by_code
        rows = (np.where(codes > groups[-1], -1, codes),)  # cells of no batch have the last code

    def of_block(block: Any, *codes: NDArray) -> Moments:
        return kernels.moments_above(block, bounds, *codes)

    return blocks.reduce(of_block, moments_cpu.fold, x, *rows)


def pooled(moments: Moments) -> Moments:
    """Moments of the cells of all groups together."""
    from scatlas.kernels.moments.moments_cpu import Moments, merge

    one = np.zeros(1, dtype=np.int64)
    parts = [
        Moments(one, moments.n_cells[[at]], moments.sums[[at]], moments.expressed[[at]])
        for at in range(moments.groups.size)
    ]
    return merge(parts)


def of_groups(moments: Moments, wanted: NDArray[np.bool_]) -> Moments:
    """Moments of some of the groups, bool ``[n_groups]``."""
    from scatlas.kernels.moments.moments_cpu import Moments

    arrays = moments.groups, moments.n_cells, moments.sums, moments.expressed
    return moments if wanted.all() else Moments(*(array[wanted] for array in arrays))


def _expected_spread(
    loess: Callable[..., Any],
    mean: NDArray[np.float64],
    var: NDArray[np.float64],
    ranked: NDArray[np.bool_],
    span: float,
    flavor: str,
    where: str,
) -> NDArray[np.float64]:
    """Standard deviation that a gene's mean lets expect; 1 for constant and unranked genes."""
    varies = ranked & (var > 0)
    if (mean[varies] <= 0).any():
        msg = f"genes have a mean below 0{where}: flavor={flavor!r} expects counts"
        raise InputError(msg)
    n_genes = np.count_nonzero(varies)
    if int(n_genes * span + 1e-5) < _FEWEST_GENES:  # loess' own rounding
        msg = (
            f"{n_genes} genes vary{where}, too few for flavor={flavor!r} with span={span}, whose "
            f"fits take in {_FEWEST_GENES} genes or more: raise span, or take another flavor"
        )
        raise InputError(msg)
    model = loess(np.log10(mean[varies]), np.log10(var[varies]), span=span, degree=2)
    try:
        model.fit()
    except ValueError as error:
        why = error.args[0]
        why = why.decode(errors="replace") if isinstance(why, bytes) else str(why)
        msg = (
            f"loess cannot fit the variances of {n_genes} genes on their means{where} "
            f"({why.strip().rstrip('.')}): raise span={span}, or leave out genes that hardly any "
            "cell expresses with min_cells (config: qc.min_cells)"
        )
        raise InputError(msg) from error
    estimate = np.zeros(var.size)
    estimate[varies] = model.outputs.fitted_values
    return np.sqrt(10**estimate)


def median_rank(
    norm: NDArray[np.float64], ranked: NDArray[np.bool_], n_top_genes: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Median over the batches that select a gene of its rank there, and how many these are.

    Parameters
    ----------
    norm
        float64 ``[n_batches, n_genes]``.
    ranked
        Boolean ``[n_genes]``.
    """
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
