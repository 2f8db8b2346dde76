"""Genes ranked by normalised dispersion, from their moments: flavours seurat and cell_ranger."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scatlas._util.numbers import whole_number
from scatlas.errors import InputError, prefix_errors

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd
    from numpy.typing import ArrayLike, NDArray

    from scatlas.kernels.moments.moments_cpu import Moments

FLAVORS = ("seurat", "cell_ranger")
# Columns of a table that are written to var, in scanpy's order; the last two only with batches.
COLUMNS = (
    *("highly_variable", "means", "dispersions", "dispersions_norm"),
    *("highly_variable_nbatches", "highly_variable_intersection"),
)


class Cutoffs(NamedTuple):
    """Bounds of the mean and of the normalised dispersion of a highly variable gene."""

    min_mean: float
    max_mean: float
    min_disp: float
    max_disp: float

    def select(
        self, mean: NDArray[np.float64], dispersion_norm: NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """Mask of the genes within the bounds, bool ``[n_genes]``."""
        return (
            (mean > self.min_mean)
            & (mean < self.max_mean)
            & (dispersion_norm > self.min_disp)
            & (dispersion_norm < self.max_disp)
        )


# Mean of a gene that no cell expresses, by which its variance is divided.
_NO_MEAN = 1e-12

DEFAULT_CUTOFFS = Cutoffs(min_mean=0.0125, max_mean=3, min_disp=0.5, max_disp=np.inf)


def dispersion_table(
    mean: ArrayLike,
    var: ArrayLike,
    *,
    flavor: str = "seurat",
    n_bins: int = 20,
    n_top_genes: int | None = None,
    cutoffs: Cutoffs = DEFAULT_CUTOFFS,
    ranked: NDArray[np.bool_] | None = None,
    index: pd.Index | None = None,
) -> pd.DataFrame:
    """Normalised dispersions and highly variable genes, from moments (``var`` with n - 1) of
    normalised counts (seurat) or of their logarithms (cell_ranger).

    Genes outside ``ranked`` get no bin, NaN as normalised dispersion, and are not highly variable.
    """
    import pandas as pd

    if ranked is None:
        ranked = np.ones(np.size(mean), dtype=bool)
    means, dispersion, bins, norm, selected = _normalized_dispersions(
        mean, var, ranked, flavor, n_bins, n_top_genes, cutoffs
    )
    table = pd.DataFrame({"means": means, "dispersions": dispersion}, index=index)
    all_bins = pd.Series(pd.Categorical.from_codes(np.full(means.size, -1), dtype=bins.dtype))
    all_bins[ranked] = bins.array
    table["mean_bin"] = all_bins.array
    table["dispersions_norm"] = norm
    table["highly_variable"] = selected
    return table


class _Dispersions(NamedTuple):
    """Genes of one batch: columns of its table, and the bins of the ranked genes."""

    means: NDArray[np.float64]
    dispersions: NDArray[np.float64]
    bins: pd.Series
    norm: NDArray[np.float64]
    selected: NDArray[np.bool_]


def _normalized_dispersions(
    mean: ArrayLike,
    var: ArrayLike,
    ranked: NDArray[np.bool_],
    flavor: str,
    n_bins: int,
    n_top_genes: int | None,
    cutoffs: Cutoffs,
) -> _Dispersions:
    """Columns of :func:`dispersion_table`."""
    import pandas as pd

    means = np.array(mean, dtype=np.float64)
    means[means == 0] = _NO_MEAN
    dispersion = np.asarray(var, dtype=np.float64) / means
    if flavor == "seurat":
        dispersion[dispersion == 0] = np.nan
        with np.errstate(invalid="ignore"):  # NaN if the mean is below 0, as of scaled values
            dispersion = np.log(dispersion)
        means = np.log1p(means)
    bins = _bin_means(pd.Series(means[ranked]), flavor, n_bins)
    norm = np.full(means.size, np.nan)
    norm[ranked] = _normalize_in_bins(dispersion[ranked], bins.cat.codes.to_numpy(), flavor)
    selected = np.zeros(means.size, dtype=bool)
    if n_top_genes is None:
        # Seurat's rule: a gene without a normalised dispersion counts as average.
        selected[ranked] = cutoffs.select(means[ranked], np.nan_to_num(norm[ranked]))
    else:
        selected[ranked] = _select_top(
            norm[ranked], whole_number(n_top_genes, "n_top_genes", least=1)
        )
    return _Dispersions(means, dispersion, bins, norm, selected)


def moments_table(
    moments: Moments,
    names: pd.Index,
    *,
    batches: list[Any] | None,
    flavor: str,
    n_bins: int,
    n_top_genes: int | None,
    cutoffs: Cutoffs = DEFAULT_CUTOFFS,
    min_cells: int | None = None,
    genes: NDArray[np.bool_] | None = None,
) -> pd.DataFrame:
    """Table of :func:`highly_variable_genes` from the moments of one group, or of one per name in
    ``batches`` and then of cells without batch; ``genes`` is as in :func:`ranked_genes`.
    """
    n_bins = whole_number(n_bins, "n_bins", least=1)
    ranked = ranked_genes(moments.expressed.sum(axis=0), min_cells, genes)
    if batches is None:
        return dispersion_table(
            moments.mean[0],
            moments.var[0],
            flavor=flavor,
            n_bins=n_bins,
            n_top_genes=n_top_genes,
            cutoffs=cutoffs,
            ranked=ranked,
            index=names,
        )
    options = flavor, n_bins, n_top_genes, cutoffs
    found = []
    for group, mean, var, expressed in zip(
        moments.groups, moments.mean, moments.var, moments.expressed, strict=True
    ):
        if group < len(batches):
            with prefix_errors(f"batch {batches[group]!r}"):
                found.append(_batch_dispersions(mean, var, ranked, expressed > 0, *options))
    return _merge_batches(found, names, ranked, n_top_genes, cutoffs)


def ranked_genes(
    expressed: NDArray[np.integer], min_cells: int | None, genes: NDArray[np.bool_] | None
) -> NDArray[np.bool_]:
    """Mask of the genes to rank: those in ``genes`` that at least ``min_cells`` cells express."""
    ranked = np.ones(expressed.size, dtype=bool) if genes is None else genes.copy()
    if min_cells is not None:
        ranked &= expressed >= min_cells
        if not ranked.any():
            raise InputError(f"no gene is expressed in min_cells={min_cells} cells: lower it")
    return ranked


def _batch_dispersions(
    mean: NDArray[np.float64],
    var: NDArray[np.float64],
    ranked: NDArray[np.bool_],
    expressed: NDArray[np.bool_],
    *options: Any,
) -> _Dispersions:
    """Columns of one batch; genes without expression in it are 0 in the averages over batches."""
    if not (ranked & expressed).any():
        raise InputError("no gene is expressed: leave the batch out, or merge it with another")
    found = _normalized_dispersions(mean, var, ranked & expressed, *options)
    for column in (found.means, found.dispersions, found.norm):
        column[~expressed] = 0.0
    return found


def _mean_over_batches(columns: Iterable[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Mean of the values that are not NaN, by compensated sums in the order of the batches: the
    operations of pandas' ``groupby(...).mean()``, as in scanpy.
    """
    total: Any = 0.0
    error: Any = 0.0
    n: Any = 0
    with np.errstate(invalid="ignore", divide="ignore"):
        for column in columns:
            known = ~np.isnan(column)
            value = column - error
            new = total + value
            lost = (new - total) - value
            error = np.where(known, np.where(np.isnan(lost), 0.0, lost), error)
            total = np.where(known, new, total)
            n = n + known
        mean: NDArray[np.float64] = np.where(n > 0, total / n, np.nan)
    return mean


def _merge_batches(
    batches: list[_Dispersions],
    names: pd.Index,
    ranked: NDArray[np.bool_],
    n_top_genes: int | None,
    cutoffs: Cutoffs,
) -> pd.DataFrame:
    import pandas as pd

    columns = {
        "means": _mean_over_batches(batch.means for batch in batches),
        "dispersions": _mean_over_batches(batch.dispersions for batch in batches),
        "dispersions_norm": _mean_over_batches(batch.norm for batch in batches),
    }
    merged = pd.DataFrame(columns, index=names)
    n_selected = np.sum([batch.selected for batch in batches], axis=0)
    merged["highly_variable"] = False
    merged["highly_variable_nbatches"] = n_selected.astype(np.int64)
    merged["highly_variable_intersection"] = n_selected == len(batches)
    # Copies: under copy-on-write these views are read-only.
    norm = merged["dispersions_norm"].to_numpy(copy=True)
    if n_top_genes is None:
        norm = np.where(np.isnan(norm), 0.0, norm)
        selected = cutoffs.select(merged["means"].to_numpy(), norm)
    else:
        # Remaining ties are ordered by gene name, as after scanpy's grouping by name.
        by_name = np.argsort(names.to_numpy(dtype=object), kind="stable")
        by_name = by_name[ranked[by_name]]
        down = np.where(np.isnan(norm), np.inf, -norm)[by_name]
        order = by_name[np.lexsort((down, -n_selected[by_name]))]
        selected = np.zeros(names.size, dtype=bool)
        selected[order[: whole_number(n_top_genes, "n_top_genes", least=1)]] = True
    norm[~ranked] = np.nan
    merged["dispersions_norm"] = norm
    merged["highly_variable"] = selected & ranked
    return merged


def _bin_means(means: pd.Series, flavor: str, n_bins: int) -> pd.Series:
    import pandas as pd

    if flavor == "seurat":
        return pd.cut(means, bins=n_bins)
    edges = _percentiles(means)
    if edges is None:
        remedy = "choose flavor='seurat'"
        if _percentiles(means[means != _NO_MEAN]) is not None:
            remedy = (
                "leave out those that no cell expresses with min_cells=1 (config: qc.min_cells)"
            )
        raise InputError(
            "flavor='cell_ranger' bins genes at percentiles of their mean, but too many genes have "
            f"the same mean: {remedy}"
        )
    return pd.cut(means, bins=edges)


def _percentiles(means: pd.Series) -> NDArray[np.float64] | None:
    """Edges of the bins of cell_ranger; None if some are equal."""
    if means.empty:
        return None
    edges = np.r_[-np.inf, np.percentile(means, np.arange(10, 105, 5)), np.inf]
    return edges if np.unique(edges).size == edges.size else None


def _normalize_in_bins(
    dispersion: NDArray[np.float64], codes: NDArray[np.integer], flavor: str
) -> NDArray[np.float64]:
    """Dispersion minus the average of its bin, divided by the spread of its bin."""
    import pandas as pd

    grouped = pd.Series(dispersion).groupby(codes)
    if flavor == "seurat":
        # pandas' compensated sums give a bin of equal dispersions a spread of 0, as in scanpy.
        stats = grouped.agg(["mean", "std"])
        centre, spread = stats["mean"].to_numpy(copy=True), stats["std"].to_numpy(copy=True)
        single = np.isnan(spread)  # at most one gene of the bin has a dispersion
        spread[single], centre[single] = centre[single], 0.0
    else:
        centre = grouped.median().to_numpy()
        spread = grouped.agg(lambda values: _mad(values.to_numpy())).to_numpy()
    at = np.searchsorted(np.unique(codes), codes)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (dispersion - centre[at]) / spread[at]


def _mad(values: NDArray[np.float64]) -> float:
    """Median absolute deviation, divided by that of the standard normal as in statsmodels."""
    from scipy.special import ndtri

    return float(np.median(np.abs(values - np.median(values)) / ndtri(0.75)))


def _select_top(norm: NDArray[np.float64], n_top_genes: int) -> NDArray[np.bool_]:
    """Mask of the genes at least as dispersed as the n-th, ties with it included."""
    known = np.sort(norm[~np.isnan(norm)])[::-1]
    if known.size == 0:
        raise InputError(
            "no gene has a normalised dispersion, so n_top_genes cannot be ranked: give at least "
            "two cells that differ (in each batch)"
        )
    # scanpy warns only when genes without a dispersion are the reason.
    if min(n_top_genes, norm.size) > known.size:
        warnings.warn(
            "`n_top_genes` > number of normalized dispersions, "
            "returning all genes with normalized dispersions.",
            stacklevel=3,
        )
    cut = known[min(n_top_genes, known.size) - 1]
    # nan_to_num makes infinities finite, so a cut at infinity selects no gene, as in scanpy.
    return np.nan_to_num(norm, nan=-np.inf) >= cut
