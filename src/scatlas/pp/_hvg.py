"""Highly variable genes by normalised dispersion: the flavours of Seurat and Cell Ranger."""

from __future__ import annotations

import warnings
from operator import index as as_integer
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from scatlas import blocks
from scatlas.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData
    from numpy.typing import ArrayLike, NDArray

    from scatlas.kernels.moments_cpu import Moments

FLAVORS = ("seurat", "cell_ranger")


class _Cutoffs(NamedTuple):
    min_mean: float
    max_mean: float
    min_disp: float
    max_disp: float

    def keep(self, mean: NDArray, dispersion_norm: NDArray) -> NDArray[np.bool_]:
        return (
            (mean > self.min_mean)
            & (mean < self.max_mean)
            & (dispersion_norm > self.min_disp)
            & (dispersion_norm < self.max_disp)
        )


_DEFAULT_CUTOFFS = _Cutoffs(min_mean=0.0125, max_mean=3, min_disp=0.5, max_disp=np.inf)


@blocks.passes(1, "per-gene moments of all batches together")
def highly_variable_genes(
    adata: AnnData,
    *,
    layer: str | None = None,
    n_top_genes: int | None = None,
    min_disp: float = 0.5,
    max_disp: float = np.inf,
    min_mean: float = 0.0125,
    max_mean: float = 3,
    n_bins: int = 20,
    flavor: Literal["seurat", "cell_ranger"] = "seurat",
    subset: bool = False,
    inplace: bool = True,
    batch_key: str | None = None,
    check_values: bool = True,  # noqa: ARG001
    min_cells: int | None = None,
    size_factors: ArrayLike | str | None = None,
) -> pd.DataFrame | None:
    """Annotate highly variable genes.

    The genes are those of :func:`scanpy.pp.highly_variable_genes` on the same data, ties included.
    Variances are taken without cancellation, so a constant gene has variance 0 here, where scanpy
    may keep a rounding error of either sign. Normalised dispersions that are equal in arithmetic
    but not in the data (two genes that share a bin; the gene that is its bin's median deviation)
    are ordered by the last bit, which in scanpy changes with the order of the cells: only a cut
    among those, seen on plates of a few dozen genes, can choose another one of them.

    Parameters
    ----------
    adata
        Log-normalised data, cells x genes; counts with `size_factors`.
    layer
        Layer to use instead of ``X``.
    n_top_genes
        Number of genes to keep. The cutoffs are then not used.
    min_disp, max_disp, min_mean, max_mean
        Open intervals for the normalised dispersion and the mean (flavour seurat: ``log1p`` of the
        mean count).
    n_bins
        Bins of the mean for flavour seurat. A gene alone in its bin gets a normalised dispersion
        of 1. (cell_ranger always cuts at the percentiles 10, 15, ..., 100.)
    flavor
        ``"seurat"`` takes mean and variance of ``expm1`` of the data (with the base in
        ``uns["log1p"]["base"]``), ``"cell_ranger"`` those of the data as they are.
    subset
        Keep only the highly variable genes (in the AnnData, or in the returned table).
    inplace
        Write to ``adata``; ``False`` returns the table and leaves ``adata`` as it is.
    batch_key
        Column of ``obs``. Genes are ranked within each batch and merged: by the number of batches
        that select them, then by mean normalised dispersion. Cells without a value belong to no
        batch.
    check_values
        As in scanpy, without effect on these flavours (it asks for integers where counts are
        expected).
    min_cells
        Genes expressed in fewer cells are left out of the ranking, as if
        ``filter_genes(min_cells=...)`` had run before: their normalised dispersion is NaN.
    size_factors
        X holds counts: they are taken as log-normalised (:func:`normalize_total`, natural
        :func:`log1p`) with these size factors, in one pass and without making the normalised
        values. One a cell, or a column of ``obs``; NaN leaves the cell out, 0 (an empty cell)
        leaves its counts as they are. ``uns["log1p"]`` is not looked at. Flavour seurat takes the
        normalised counts as they are instead of ``expm1`` of their float32 logarithms, so that its
        moments lack the rounding of those (6e-8 a value).

    Returns
    -------
    The table (index: genes in the order of ``var``) with ``inplace=False``, else ``None`` and

    ``var["highly_variable"]`` : bool
    ``var["means"]``, ``var["dispersions"]`` : float64
    ``var["dispersions_norm"]`` : float32 (float64 in the table)
    ``var["highly_variable_nbatches"]`` : int64, ``var["highly_variable_intersection"]`` : bool
        With `batch_key`.
    ``uns["hvg"]`` : dict
        ``{"flavor": flavor}``

    The table without `batch_key` also has ``mean_bin``, the interval of the mean. scanpy sorts the
    table by gene name with `batch_key` and cutoffs; here it keeps the order of ``var``.

    Raises
    ------
    InputError
        For other flavours, data that hold NaN or infinite values (counts taken for logarithms), no
        cells, too many genes of equal mean to form bins, or size factors that do not fit.

    References
    ----------
    R. Satija et al., Nat. Biotechnol. 33 (2015): seurat. G. X. Y. Zheng et al., Nat. Commun. 8
    (2017): cell_ranger. Reference implementation: scanpy 1.11.5,
    ``preprocessing/_highly_variable_genes.py``.
    """
    from scatlas.pp._moments import gene_moments, representation

    _check_flavor(flavor)
    cutoffs = _Cutoffs(min_mean=min_mean, max_mean=max_mean, min_disp=min_disp, max_disp=max_disp)
    if n_top_genes is not None and cutoffs != _DEFAULT_CUTOFFS:
        warnings.warn("If you pass `n_top_genes`, all cutoffs are ignored.", stacklevel=2)
    x = representation(adata, layer)
    if x.shape[0] == 0:
        raise InputError("highly_variable_genes needs at least one cell, but the AnnData has none")
    codes, batches = _batches(adata, batch_key)
    names = adata.var_names
    if size_factors is None:
        base = adata.uns.get("log1p", {}).get("base")
        log_base = None if base is None else float(np.log(base))
        moments = gene_moments(x, codes, expm1=flavor == "seurat", log_base=log_base)
        _check_finite(moments, names, "log-normalised data")
    else:
        scales = _scales(adata, size_factors)
        moments = _moments_of_counts(x, names, scales, flavor, codes, len(batches))
    table = hvg_table(
        moments,
        names,
        n_batches=None if batch_key is None else len(batches),
        flavor=flavor,
        n_bins=n_bins,
        n_top_genes=n_top_genes,
        cutoffs=cutoffs,
        min_cells=min_cells,
    )
    if not inplace:
        return table[table["highly_variable"]] if subset else table
    adata.uns["hvg"] = {"flavor": flavor}
    others = table.columns.drop(["mean_bin", "highly_variable"], errors="ignore")
    for column in ("highly_variable", *others):
        dtype = np.float32 if column == "dispersions_norm" else None
        adata.var[column] = table[column].to_numpy(dtype=dtype)
    if subset:
        adata._inplace_subset_var(table["highly_variable"].to_numpy())
    return None


def hvg_of_counts(
    x: Any,
    names: pd.Index,
    size_factors: ArrayLike,
    *,
    flavor: Literal["seurat", "cell_ranger"] = "seurat",
    n_top_genes: int | None = None,
    n_bins: int = 20,
    min_cells: int | None = None,
) -> pd.DataFrame:
    """Table of :func:`highly_variable_genes` for counts without an AnnData around them.

    An AnnData names its cells, which takes sixty bytes a cell and more than the pass itself.

    Parameters
    ----------
    x
        Counts ``[n_cells, n_genes]``, in memory or Dask.
    names
        Genes.
    size_factors
        One a cell; NaN leaves the cell out.
    flavor, n_top_genes, n_bins, min_cells
        As in :func:`highly_variable_genes`.

    Raises
    ------
    InputError
        As :func:`highly_variable_genes` with size factors.
    """
    from scatlas.pp._cut import scales_of
    from scatlas.pp._moments import checked

    _check_flavor(flavor)
    scales = scales_of(size_factors, x.shape[0])
    moments = _moments_of_counts(checked(x, "the array"), names, scales, flavor, None, 0)
    return hvg_table(
        moments,
        names,
        n_batches=None,
        flavor=flavor,
        n_bins=n_bins,
        n_top_genes=n_top_genes,
        min_cells=min_cells,
    )


def _moments_of_counts(
    x: Any,
    names: pd.Index,
    scales: NDArray[np.float64],
    flavor: str,
    codes: NDArray[np.int64] | None,
    n_batches: int,
) -> Moments:
    from scatlas.pp._moments import normalized_moments

    _check_cells(~np.isnan(scales), codes, n_batches)
    moments = normalized_moments(x, scales, codes, log=flavor == "cell_ranger")
    _check_finite(moments, names, "counts where size_factors are given")
    return moments


def dispersion_table(
    mean: ArrayLike,
    var: ArrayLike,
    *,
    flavor: Literal["seurat", "cell_ranger"] = "seurat",
    n_bins: int = 20,
    n_top_genes: int | None = None,
    min_mean: float = 0.0125,
    max_mean: float = 3,
    min_disp: float = 0.5,
    max_disp: float = np.inf,
    ranked: NDArray[np.bool_] | None = None,
    index: pd.Index | None = None,
) -> pd.DataFrame:
    """Normalised dispersions of genes, and which of them are highly variable, from moments alone.

    Parameters
    ----------
    mean, var
        float64 ``[n_genes]``, mean and variance (n - 1) over the cells: of normalised counts for
        flavour seurat, of their logarithms for cell_ranger.
    flavor, n_bins, n_top_genes, min_mean, max_mean, min_disp, max_disp
        As in :func:`highly_variable_genes`.
    ranked
        Boolean ``[n_genes]``: the genes that take part. The others get a mean and a dispersion, no
        bin, a normalised dispersion of NaN, and are not highly variable.
    index
        Names of the genes.

    Returns
    -------
    Columns ``means``, ``dispersions`` (flavour seurat: ``log1p`` of the mean and logarithm of the
    dispersion), ``mean_bin``, ``dispersions_norm``, ``highly_variable``.
    """
    import pandas as pd

    _check_flavor(flavor)
    mean = np.array(mean, dtype=np.float64)
    mean[mean == 0] = 1e-12
    dispersion = np.asarray(var, dtype=np.float64) / mean
    if flavor == "seurat":
        dispersion[dispersion == 0] = np.nan
        dispersion = np.log(dispersion)
        mean = np.log1p(mean)
    if ranked is None:
        ranked = np.ones(mean.size, dtype=bool)
    table = pd.DataFrame({"means": mean, "dispersions": dispersion}, index=index)
    bins = _mean_bins(pd.Series(mean[ranked]), flavor, n_bins)
    norm = np.full(mean.size, np.nan)
    norm[ranked] = _normalised(dispersion[ranked], bins.cat.codes.to_numpy(), flavor)
    all_bins = pd.Series(pd.Categorical.from_codes(np.full(mean.size, -1), dtype=bins.dtype))
    all_bins[ranked] = bins.array
    table["mean_bin"] = all_bins.array
    table["dispersions_norm"] = norm
    selected = np.zeros(mean.size, dtype=bool)
    if n_top_genes is None:
        # Seurat's rule: a gene without a normalised dispersion counts as average.
        cutoffs = _Cutoffs(min_mean, max_mean, min_disp, max_disp)
        selected[ranked] = cutoffs.keep(mean[ranked], np.nan_to_num(norm[ranked]))
    else:
        selected[ranked] = _top(norm[ranked], _at_least_one(n_top_genes))
    table["highly_variable"] = selected
    return table


def hvg_table(
    moments: Moments,
    names: pd.Index,
    *,
    n_batches: int | None,
    flavor: Literal["seurat", "cell_ranger"],
    n_bins: int,
    n_top_genes: int | None,
    cutoffs: tuple[float, float, float, float] = _DEFAULT_CUTOFFS,
    min_cells: int | None = None,
) -> pd.DataFrame:
    """Table of :func:`highly_variable_genes` from the moments of one pass.

    Parameters
    ----------
    moments
        One group, or groups ``0 .. n_batches - 1`` and, as group ``n_batches``, cells of no batch.
    names
        Genes.
    n_batches
        ``None``: no batches.
    cutoffs
        ``(min_mean, max_mean, min_disp, max_disp)``.
    flavor, n_bins, n_top_genes, min_cells
        As in :func:`highly_variable_genes`.
    """
    cutoffs = _Cutoffs(*cutoffs)
    ranked = np.ones(len(names), dtype=bool)
    if min_cells is not None:
        ranked = moments.expressed.sum(axis=0) >= min_cells
        if not ranked.any():
            msg = f"no gene is expressed in min_cells={min_cells} cells: lower it"
            raise InputError(msg)
    options: dict[str, Any] = {
        "flavor": flavor,
        "n_bins": n_bins,
        "n_top_genes": n_top_genes,
        **cutoffs._asdict(),
    }
    if n_batches is None:
        return dispersion_table(
            moments.mean[0], moments.var[0], ranked=ranked, index=names, **options
        )
    tables = [
        _batch_table(mean, var, ranked, expressed > 0, names, options)
        for group, mean, var, expressed in zip(
            moments.groups, moments.mean, moments.var, moments.expressed, strict=True
        )
        if group < n_batches
    ]
    return _merge_batches(tables, ranked, n_top_genes, cutoffs)


def _batch_table(
    mean: NDArray,
    var: NDArray,
    ranked: NDArray[np.bool_],
    expressed: NDArray[np.bool_],
    names: pd.Index,
    options: dict[str, Any],
) -> pd.DataFrame:
    """Table of one batch, where a gene that no cell of it expresses counts as 0 in the averages."""
    if not (ranked & expressed).any():
        raise InputError("a batch has no expressed gene: leave it out, or merge it with another")
    table = dispersion_table(mean, var, ranked=ranked & expressed, index=names, **options)
    table.loc[~expressed, ["means", "dispersions", "dispersions_norm"]] = 0.0
    return table


def _merge_batches(
    tables: list[pd.DataFrame],
    ranked: NDArray[np.bool_],
    n_top_genes: int | None,
    cutoffs: _Cutoffs,
) -> pd.DataFrame:
    import pandas as pd

    names = tables[0].index
    # Genes are grouped by position, which survives duplicated names.
    stacked = pd.concat([table.reset_index(drop=True) for table in tables])
    merged = (
        stacked.groupby(level=0)[["means", "dispersions", "dispersions_norm"]]
        .mean()
        .set_index(names)
    )
    n_selected = np.sum([table["highly_variable"].to_numpy() for table in tables], axis=0)
    merged["highly_variable"] = False
    merged["highly_variable_nbatches"] = n_selected.astype(np.int64)
    merged["highly_variable_intersection"] = n_selected == len(tables)
    # Copies: under copy-on-write these views are read-only.
    norm = merged["dispersions_norm"].to_numpy(copy=True)
    if n_top_genes is None:
        norm = np.where(np.isnan(norm), 0.0, norm)
        selected = cutoffs.keep(merged["means"].to_numpy(), norm)
    else:
        # Ties that remain go by gene name, as scanpy's grouping by name leaves them.
        by_name = np.argsort(names.to_numpy(dtype=object), kind="stable")
        by_name = by_name[ranked[by_name]]
        down = np.where(np.isnan(norm), np.inf, -norm)[by_name]
        order = by_name[np.lexsort((down, -n_selected[by_name]))]
        selected = np.zeros(names.size, dtype=bool)
        selected[order[: _at_least_one(n_top_genes)]] = True
    norm[~ranked] = np.nan
    merged["dispersions_norm"] = norm
    merged["highly_variable"] = selected & ranked
    return merged


def _mean_bins(
    means: pd.Series, flavor: Literal["seurat", "cell_ranger"], n_bins: int
) -> pd.Series:
    import pandas as pd

    if flavor == "seurat":
        return pd.cut(means, bins=n_bins)
    edges = np.r_[-np.inf, np.percentile(means, np.arange(10, 105, 5)), np.inf]
    if np.unique(edges).size < edges.size:
        msg = (
            "flavor='cell_ranger' bins genes at percentiles of their mean, but too many genes have "
            "the same mean (genes that no cell expresses, most often): leave them out with "
            "min_cells=1 (config: qc.min_cells)"
        )
        raise InputError(msg)
    return pd.cut(means, bins=edges)


def _normalised(
    dispersion: NDArray[np.float64], codes: NDArray[np.integer], flavor: str
) -> NDArray[np.float64]:
    """Dispersion less its bin's average, in units of its bin's spread."""
    import pandas as pd

    grouped = pd.Series(dispersion).groupby(codes)
    if flavor == "seurat":
        # pandas' own compensated sums: a bin of equal dispersions must get scanpy's spread of 0.
        stats = grouped.agg(["mean", "std"])
        centre, spread = stats["mean"].to_numpy(copy=True), stats["std"].to_numpy(copy=True)
        alone = np.isnan(spread)  # at most one gene of the bin has a dispersion
        spread[alone], centre[alone] = centre[alone], 0.0
    else:
        centre = grouped.median().to_numpy()
        spread = grouped.agg(_mad).to_numpy()
    at = np.searchsorted(np.unique(codes), codes)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (dispersion - centre[at]) / spread[at]


def _mad(values: pd.Series) -> float:
    """Median absolute deviation over that of the standard normal, as in statsmodels."""
    from scipy.special import ndtri

    return float(np.median(np.abs(values - np.median(values)) / ndtri(0.75)))


def _top(norm: NDArray[np.float64], n_top_genes: int) -> NDArray[np.bool_]:
    """Genes at least as dispersed as the n-th, so that all that tie with it are kept."""
    known = np.sort(norm[~np.isnan(norm)])[::-1]
    if known.size == 0:
        msg = (
            "no gene has a normalised dispersion, so n_top_genes cannot be ranked: at least two "
            "cells that differ are needed (in each batch)"
        )
        raise InputError(msg)
    # scanpy warns only when genes without a dispersion are the reason.
    if min(n_top_genes, norm.size) > known.size:
        warnings.warn(
            "`n_top_genes` > number of normalized dispersions, "
            "returning all genes with normalized dispersions.",
            stacklevel=2,
        )
    cut = known[min(n_top_genes, known.size) - 1]
    # nan_to_num makes infinities finite, so a cut at infinity keeps no gene: as scanpy has it.
    return np.nan_to_num(norm, nan=-np.inf) >= cut


def _batches(adata: AnnData, batch_key: str | None) -> tuple[NDArray[np.int64] | None, list[Any]]:
    """Code of each cell's batch (cells of no batch: one past the last) and the batches in use."""
    import pandas as pd

    if batch_key is None:
        return None, []
    if batch_key not in adata.obs:
        msg = f"obs has no column {batch_key!r} (batch_key); it has {list(adata.obs.columns)}"
        raise InputError(msg)
    batch = pd.Categorical(adata.obs[batch_key]).remove_unused_categories()
    if len(batch.categories) == 0:
        msg = f"obs[{batch_key!r}] (batch_key) is empty for every cell"
        raise InputError(msg)
    codes = batch.codes.astype(np.int64)
    codes[codes < 0] = len(batch.categories)
    return codes, list(batch.categories)


def _check_flavor(flavor: str) -> None:
    if flavor not in FLAVORS:
        msg = f"flavor={flavor!r} is not supported: choose one of {', '.join(FLAVORS)}"
        raise InputError(msg)


def _at_least_one(n_top_genes: int) -> int:
    n = as_integer(n_top_genes)
    if n < 1:
        msg = f"n_top_genes={n} must be at least 1"
        raise InputError(msg)
    return n


def _scales(adata: AnnData, size_factors: ArrayLike | str) -> NDArray[np.float64]:
    from scatlas.pp._cut import scales_of

    if isinstance(size_factors, str):
        if size_factors not in adata.obs:
            msg = f"obs has no column {size_factors!r} (size_factors); it has {list(adata.obs)}"
            raise InputError(msg)
        size_factors = adata.obs[size_factors].to_numpy()
    return scales_of(size_factors, adata.n_obs)


def _check_cells(kept: NDArray[np.bool_], codes: NDArray[np.int64] | None, n_batches: int) -> None:
    if not kept.any():
        raise InputError("size_factors are NaN for every cell, so that none is left")
    if codes is not None and not (codes[kept] < n_batches).any():
        raise InputError("size_factors leave no cell that belongs to a batch (batch_key)")


def _check_finite(moments: Moments, names: pd.Index, expected: str) -> None:
    bad = ~np.isfinite(moments.mean).all(axis=0) | ~np.isfinite(moments.var).all(axis=0)
    if bad.any():
        msg = (
            f"gene {names[int(np.argmax(bad))]!r} has NaN or infinite values (or values so large "
            f"that expm1 overflows): highly_variable_genes expects {expected}"
        )
        raise InputError(msg)
