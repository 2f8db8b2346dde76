"""Highly variable genes: the flavours of Seurat, Cell Ranger, Seurat v3 and Pearson residuals."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from scatlas import blocks, columns, elements
from scatlas.errors import InputError
from scatlas.matrix import hvg_dispersion, hvg_pearson, hvg_v3
from scatlas.matrix.hvg import (
    check_cells,
    check_flavor,
    count_table,
    normalized_count_moments,
)
from scatlas.matrix.hvg_dispersion import DEFAULT_CUTOFFS, Cutoffs, moments_table

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData
    from numpy.typing import ArrayLike, NDArray

    from scatlas.kernels.moments.moments_cpu import Moments

    Flavor = Literal["seurat", "cell_ranger", "seurat_v3", "seurat_v3_paper", "pearson_residuals"]

# What an AnnData gets of a table.
_COLUMNS = (
    dict.fromkeys(hvg_dispersion.FLAVORS, hvg_dispersion.COLUMNS)
    | dict.fromkeys(hvg_v3.FLAVORS, hvg_v3.COLUMNS)
    | {hvg_pearson.FLAVOR: hvg_pearson.COLUMNS}
)


@blocks.passes(
    1,
    "per-gene moments of all batches together; 1 more with the flavors seurat_v3 and "
    "seurat_v3_paper, for the counts above the bounds of their genes, and with pearson_residuals, "
    "for the residuals",
)
def highly_variable_genes(
    adata: AnnData,
    *,
    layer: str | None = None,
    n_top_genes: int | None = None,
    min_disp: float = 0.5,
    max_disp: float = np.inf,
    min_mean: float = 0.0125,
    max_mean: float = 3,
    span: float = 0.3,
    n_bins: int = 20,
    flavor: Flavor = "seurat",
    subset: bool = False,
    inplace: bool = True,
    batch_key: str | None = None,
    check_values: bool = True,
    min_cells: int | None = None,
    size_factors: ArrayLike | str | None = None,
    theta: float = 100,
    clip: float | None = None,
) -> pd.DataFrame | None:
    """Annotate highly variable genes.

    The genes are those of :func:`scanpy.pp.highly_variable_genes` on the same data; with the
    flavours seurat and cell_ranger ties are included.
    Variances are taken without cancellation, so a constant gene has variance 0 here, where scanpy
    may keep a rounding error of either sign. Normalised dispersions that are equal in arithmetic
    but not in the data (two genes that share a bin; the gene that is its bin's median deviation)
    are ordered by the last bit, which in scanpy changes with the order of the cells: only a cut
    among those, seen on plates of a few dozen genes, can choose another one of them.

    The flavours seurat_v3 and seurat_v3_paper take counts, and fit log10 of the variance of the
    genes on log10 of their mean (loess). The counts of a gene, less its mean and over the standard
    deviation that the fit expects, are clipped above at the square root of the number of cells,
    and genes are ranked by what variance they have then, within each batch. Genes of equal variance
    are ranked in the order of ``var`` (in scanpy as an unstable sort leaves them, which changes
    with the processor).

    The flavour pearson_residuals, :func:`scanpy.experimental.pp.highly_variable_genes`, takes
    counts and ranks genes by the variance of their residuals from a model without biology: a count
    is expected to be the total of its gene times that of its cell over that of all, mu, with the
    variance ``mu + mu**2 / theta``. Cells without counts have residuals of 0. Genes of equal
    variance are ranked in the order of ``var``.

    Parameters
    ----------
    adata
        Log-normalised data, cells x genes; counts with `size_factors`, and for the flavours
        seurat_v3, seurat_v3_paper and pearson_residuals.
    layer
        Layer to use instead of ``X``.
    n_top_genes
        Number of genes to keep. The cutoffs are then not used. ``None`` is 2000 for the flavours
        seurat_v3 and seurat_v3_paper; pearson_residuals must be given one.
    min_disp, max_disp, min_mean, max_mean
        Open intervals for the normalised dispersion and the mean (flavour seurat: ``log1p`` of the
        mean count). Not used by the flavours that take counts.
    span
        Part of the genes, above 0 and at most 1, that each local fit of the flavours seurat_v3 and
        seurat_v3_paper takes in.
    n_bins
        Bins of the mean for flavour seurat. A gene alone in its bin gets a normalised dispersion
        of 1. (cell_ranger always cuts at the percentiles 10, 15, ..., 100.)
    flavor
        ``"seurat"`` takes mean and variance of ``expm1`` of the data (with the base in
        ``uns["log1p"]["base"]``), ``"cell_ranger"`` those of the data as they are, ``"seurat_v3"``
        and ``"seurat_v3_paper"`` those of counts; these two need scikit-misc.
        ``"pearson_residuals"`` takes the variance of residuals of counts.
    subset
        Keep only the highly variable genes (in the AnnData, or in the returned table).
    inplace
        Write to ``adata``; ``False`` returns the table and leaves ``adata`` as it is.
    batch_key
        Column of ``obs``. Genes are ranked within each batch and merged: by the number of batches
        that select them, then by mean normalised dispersion; for seurat_v3 by their median rank in
        the batches that select them, then by the number of those, for seurat_v3_paper and
        pearson_residuals the other way round. Cells without a value belong to no batch, nor does
        the cell of a batch of one, of which a warning tells.
    check_values
        Warn if the flavours that take counts are given other values than whole numbers from 0 on.
        The other flavours ignore it.
    min_cells
        Genes expressed in fewer cells are left out of the ranking, as if
        ``filter_genes(min_cells=...)`` had run before: their normalised dispersion (variance) is
        NaN.
    size_factors
        X holds counts: they are taken as log-normalised (:func:`normalize_total`, natural
        :func:`log1p`) with these size factors, in one pass and without making the normalised
        values. One per cell, or a column of ``obs``; NaN leaves the cell out, 0 (an empty cell)
        leaves its counts as they are. ``uns["log1p"]`` is ignored. Flavour seurat takes the
        normalised counts as they are instead of ``expm1`` of their float32 logarithms, so that its
        moments lack the rounding of those (6e-8 per value). For the flavours that take counts as
        they are, only NaN means something.
    theta
        For pearson_residuals: the inverse of the overdispersion of counts, above 0; infinity is
        Poisson's variance.
    clip
        For pearson_residuals: residuals are clipped to -clip and clip; ``None`` is the square root
        of the number of cells, of each batch its own. (scanpy takes the first batch's for all.)

    Returns
    -------
    The table (index: genes in the order of ``var``) with ``inplace=False``, else ``None`` and

    ``var["highly_variable"]`` : bool
    ``var["means"]``, ``var["dispersions"]`` : float64
    ``var["dispersions_norm"]`` : float32 (float64 in the table)
    ``var["highly_variable_nbatches"]`` : int64, ``var["highly_variable_intersection"]`` : bool
        With `batch_key`; the second not for seurat_v3 and seurat_v3_paper.
    ``var["variances"]``, ``var["variances_norm"]`` : float64
    ``var["highly_variable_rank"]`` : float32
        For seurat_v3 and seurat_v3_paper in place of the dispersions: variance of the counts of all
        cells, variance of the clipped ones (mean over the batches), and rank from 0 (median over
        the batches that select the gene; NaN if none does).
    ``var["variances"]``, ``var["residual_variances"]`` : float64
    ``var["highly_variable_rank"]`` : float32
        The same for pearson_residuals: variance of the counts of all cells, and of the residuals.
    ``uns["hvg"]`` : dict
        ``{"flavor": flavor}``; for pearson_residuals with ``"computed_on"``, the layer or
        ``"adata.X"``.

    The table of dispersions without `batch_key` also has ``mean_bin``, the interval of the mean;
    that of seurat_v3 and seurat_v3_paper has ``gene_name``. scanpy sorts the table by gene name
    with `batch_key` and cutoffs; here it keeps the order of ``var``.

    Raises
    ------
    InputError
        For other flavours, data that hold NaN or infinite values (counts taken for logarithms),
        no cells, too many genes of equal mean to form bins, size factors that do not fit or with
        which a gene has a mean below 0, variances that loess cannot fit, a missing scikit-misc, no
        `n_top_genes`, or a `theta` or `clip` out of range.

    References
    ----------
    R. Satija et al., Nat. Biotechnol. 33 (2015): seurat. G. X. Y. Zheng et al., Nat. Commun. 8
    (2017): cell_ranger. T. Stuart et al., Cell 177 (2019): seurat_v3. J. Lause et al., Genome
    Biology 22 (2021): pearson_residuals. Reference implementation: scanpy 1.11.5,
    ``preprocessing/_highly_variable_genes.py`` and that of ``experimental/pp``.
    """
    check_flavor(flavor)
    x = elements.get_array(adata, layer)
    if x.shape[0] == 0:
        raise InputError("highly_variable_genes needs at least one cell, but the AnnData has none")
    if x.shape[1] == 0:
        raise InputError("highly_variable_genes needs at least one gene, but the AnnData has none")
    names = adata.var_names
    scales = None if size_factors is None else _scales(adata, size_factors)
    cell_mask = None if scales is None else ~np.isnan(scales)
    codes, batches = _batches(adata, batch_key, cell_mask)
    if cell_mask is not None:
        check_cells(cell_mask, codes, len(batches or []))
    if flavor in hvg_dispersion.FLAVORS:
        cutoffs = Cutoffs(min_mean, max_mean, min_disp, max_disp)
        if n_top_genes is not None and cutoffs != DEFAULT_CUTOFFS:
            warnings.warn("If you pass `n_top_genes`, all cutoffs are ignored.", stacklevel=3)
        table = moments_table(
            _moments(adata, x, codes, scales, flavor),
            names,
            batches=batches,
            flavor=flavor,
            n_bins=n_bins,
            n_top_genes=n_top_genes,
            cutoffs=cutoffs,
            min_cells=min_cells,
        )
    else:
        table = count_table(
            x,
            names,
            codes,
            batches,
            flavor=flavor,
            cell_mask=cell_mask,
            n_top_genes=n_top_genes,
            span=span,
            theta=theta,
            clip=clip,
            check_values=check_values,
            min_cells=min_cells,
        )
    if not inplace:
        return table[table["highly_variable"]] if subset else table
    _write(adata, table, flavor, layer)
    if subset:
        adata._inplace_subset_var(table["highly_variable"].to_numpy())
    return None


def _moments(
    adata: AnnData,
    x: Any,
    codes: NDArray[np.int64] | None,
    scales: NDArray[np.float64] | None,
    flavor: Flavor,
) -> Moments:
    """Moments of logarithms, or of counts that are normalised on the way."""
    from scatlas.matrix.gene_moments import check_finite_moments, gene_moments

    if scales is not None:
        return normalized_count_moments(x, adata.var_names, scales, flavor, codes)
    base = adata.uns.get("log1p", {}).get("base")
    log_base = None if base is None else float(np.log(base))
    moments = gene_moments(x, codes, expm1=flavor == "seurat", log_base=log_base)
    check_finite_moments(moments, adata.var_names, "log-normalised data")
    return moments


def _write(adata: AnnData, table: pd.DataFrame, flavor: Flavor, layer: str | None) -> None:
    adata.uns["hvg"] = {"flavor": flavor}
    if flavor == hvg_pearson.FLAVOR:
        adata.uns["hvg"]["computed_on"] = layer or "adata.X"
    for column in _COLUMNS[flavor]:
        if column not in table:  # of batches
            continue
        dtype = np.float32 if column == "dispersions_norm" else None
        adata.var[column] = table[column].to_numpy(dtype=dtype)


def _batches(
    adata: AnnData, batch_key: str | None, cell_mask: NDArray[np.bool_] | None
) -> tuple[NDArray[np.int64] | None, list[Any] | None]:
    """Code of each cell's batch (none: one past the last) and the batches of two cells or more;
    None without ``batch_key``.
    """
    if batch_key is None:
        return None, None
    obs = elements.get_table(adata, "obs")
    batch = columns.get_labels(obs, batch_key, "batch_key").remove_unused_categories()
    if len(batch.categories) == 0:
        raise InputError(f"obs[{batch_key!r}] (batch_key) is empty for every cell")
    known = batch.codes >= 0 if cell_mask is None else (batch.codes >= 0) & cell_mask
    n_cells = np.bincount(batch.codes[known], minlength=len(batch.categories))
    if n_cells.max() == 1:
        msg = f"each batch in obs[{batch_key!r}] (batch_key) has one cell: leave out batch_key"
        raise InputError(msg)
    if (single := n_cells == 1).any():
        left_out = batch.categories[single]
        some = ", ".join(map(str, left_out[:5]))
        msg = f"batches of one cell rank no genes, {len(left_out)} are left out: {some}"
        warnings.warn(msg, stacklevel=4)
        batch = batch.remove_categories(left_out)
    codes = batch.codes.astype(np.int64)
    codes[codes < 0] = len(batch.categories)
    return codes, list(batch.categories)


def _scales(adata: AnnData, size_factors: ArrayLike | str) -> NDArray[np.float64]:
    from scatlas.matrix.select_normalize import scales_from_size_factors

    factors = elements.get_values(adata, size_factors, "size_factors")
    return scales_from_size_factors(factors, adata.n_obs)
