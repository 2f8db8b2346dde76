"""Functions of the moments and products of genes: variable genes, scaling, regression, PCA."""

from __future__ import annotations

from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
from anndata import AnnData

import scatlas as sa
from scatlas import blocks
from scatlas.matrix.gene_scale import GeneScale
from scatlas.matrix.gram import GramAccumulator, GramStats
from scatlas.matrix.hvg import hvg_of_counts
from scatlas.workflow.consensus import consensus_genes
from tests.adversarial.counting import held_by_another
from tests.adversarial.judge import Function, in_memory, refuse
from tests.adversarial.matrices import Values, values

# -- scaling -------------------------------------------------------------------------------------


def _moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the genes; the latter is 1 for constant genes."""
    wide = x.astype(np.longdouble)
    n_cells = x.shape[0]
    mean = wide.mean(axis=0)
    variance = ((wide - mean) ** 2).sum(axis=0) / max(n_cells - 1, 1)
    sd = np.sqrt(variance)
    sd[(x == x[:1]).all(axis=0)] = 1
    return mean.astype(np.float64), sd.astype(np.float64)


def _scale(zero_center: bool, max_value: float | None) -> Any:
    options = {"zero_center": zero_center, "max_value": max_value}

    def call(adata: AnnData) -> dict[str, Any]:
        mine = held_by_another(adata)
        sa.pp.scale(mine, **options)
        return {
            "X": mine.X,
            "matrix": sa.pp.scale(adata.X, **options),
            "mean": mine.var["mean"].to_numpy(),
            "std": mine.var["std"].to_numpy(),
        }

    def expected(values: Values, bare: AnnData) -> dict[str, Any] | None:
        refuse(values.shape[0] == 0, "there is no cell")
        refuse(not np.isfinite(values.dense).all(), "values that are not finite")
        mean, sd = _moments(values.dense)
        x = values.dense.astype(np.float64)
        scaled = (x - mean) / sd if zero_center else x / sd
        if max_value is not None:
            scaled = np.clip(scaled, -max_value if zero_center else None, max_value)
        return {"X": scaled, "matrix": scaled, "mean": mean, "std": sd}

    return call, expected


def _scale_masked(adata: AnnData) -> dict[str, Any]:
    mine = held_by_another(adata)
    sa.pp.scale(mine, mask_obs=np.arange(adata.n_obs) % 2 == 0)
    return {"X": mine.X, "std": mine.var["std with mask"].to_numpy()}


def _scale_masked_expected(values: Values, bare: AnnData) -> dict[str, Any] | None:
    refuse(values.shape[0] == 0, "there is no cell")
    refuse(not np.isfinite(values.dense[::2]).all(), "values that are not finite")
    if not np.isfinite(values.dense).all():
        return None
    mean, sd = _moments(values.dense[::2])
    x = values.dense.astype(np.float64)
    x[::2] = (x[::2] - mean) / sd
    return {"X": x, "std": sd}


# -- regression ----------------------------------------------------------------------------------


def _regress(key: str) -> Any:
    def call(adata: AnnData) -> dict[str, Any]:
        mine = held_by_another(adata)
        sa.pp.regress_out(mine, key)
        return {"X": mine.X, "copy": sa.pp.regress_out(adata, key, copy=True).X}

    def expected(values: Values, bare: AnnData) -> dict[str, Any] | None:
        refuse(values.shape[0] == 0, "there is no cell")
        refuse(not np.isfinite(values.dense).all(), "values that are not finite")
        if key == "group" and values.kind == "huge":
            return None  # refused where sums of integers may not fit 64 bits
        columns = pd.get_dummies(bare.obs[key]).to_numpy(float)
        if key == "number":
            columns = np.stack([np.ones(bare.n_obs), bare.obs[key]], axis=1)
        x = values.dense.astype(np.float64)
        left = x - columns @ np.linalg.lstsq(columns, x, rcond=None)[0]
        return {"X": left, "copy": left}

    return call, expected


# -- components ----------------------------------------------------------------------------------


def _pca(adata: AnnData) -> dict[str, Any]:
    n_comps = min(adata.shape)
    mine = held_by_another(adata)
    sa.pp.pca(mine, n_comps)
    loadings = mine.varm["PCs"]
    largest = np.abs(loadings).argmax(axis=0)
    assert (loadings[largest, np.arange(n_comps)] > 0).all()
    cells = mine.obsm["X_pca"]
    return {
        "cells": cells,
        "PCs": loadings,
        "made again": in_memory(cells).astype(np.float64) @ loadings.T,
        "variance": mine.uns["pca"]["variance"],
        "ratio": mine.uns["pca"]["variance_ratio"],
        "products": loadings.T @ loadings,
        "matrix": sa.pp.pca(adata.X, n_comps, dtype="float64"),
    }


def _pca_of_reals(adata: AnnData) -> dict[str, Any]:
    # The directions of components beyond the rank depend on rounding.
    found = _pca(adata)
    return {name: found[name] for name in ("made again", "variance", "ratio", "products")}


def _centred(values: Values) -> np.ndarray:
    refuse(values.shape[0] < 2, "fewer than two cells")
    refuse(min(values.shape) == 0, "no genes")
    refuse(not np.isfinite(values.dense).all(), "values that are not finite")
    wide = values.dense.astype(np.longdouble)
    return (wide - wide.mean(axis=0)).astype(np.float64)


def _pca_expected(values: Values, bare: AnnData) -> dict[str, Any]:
    x = _centred(values)
    n_cells = values.shape[0]
    variance = np.linalg.svd(x, compute_uv=False) ** 2 / (n_cells - 1)
    total = variance.sum()
    return {
        "made again": x,
        "variance": variance,
        "ratio": variance / total if total else variance,
        "products": np.eye(min(x.shape)),
    }


def gram_of(adata: AnnData) -> GramStats:
    with GramAccumulator(adata.n_vars) as total:
        for block in blocks.stream(adata.X):
            total.add(block)
    return total.result()


def _gram(adata: AnnData) -> dict[str, Any]:
    stats = gram_of(adata)
    scale = GeneScale.from_stats(stats, zero_center=True, max_value=None)
    return {"n": stats.n_cells, "sums": stats.sums, "gram": stats.gram, "mean": scale.mean}


def _gram_expected(values: Values, bare: AnnData) -> dict[str, Any] | None:
    refuse(values.shape[0] == 0, "genes of no cell have no scale")
    refuse(not np.isfinite(values.dense).all(), "values that are not finite")
    x = values.dense.astype(np.longdouble)
    return {"n": len(x), "sums": x.sum(axis=0), "gram": x.T @ x}


# -- variable genes ------------------------------------------------------------------------------


def _hvg(**options: Any) -> Any:
    def call(adata: AnnData) -> dict[str, Any]:
        table = sa.pp.highly_variable_genes(adata, inplace=False, **options)
        mine = held_by_another(adata)
        sa.pp.highly_variable_genes(mine, **options)
        flags = mine.var["highly_variable"].to_numpy()
        np.testing.assert_array_equal(flags, table["highly_variable"])
        columns = [name for name in table if name not in ("mean_bin", "gene_name")]
        return {"table": table[columns]}

    def expected(values: Values, bare: AnnData) -> dict[str, Any] | None:
        import scanpy as sc

        x = values.dense.astype(np.float64)
        refuse(min(values.shape) == 0, "there is no cell, or no gene")
        refuse(not np.isfinite(x).all(), "values that are not finite")
        if values.kind == "huge":
            return None  # expm1 overflows, or nearly
        if options.get("flavor") == "pearson_residuals" and not x.any(axis=1).all():
            return None  # scanpy divides by the totals of empty cells
        if np.count_nonzero(np.ptp(x, axis=0)) < 6:
            return None  # scanpy's seurat_v3 ends the process
        theirs = ad.AnnData(x, obs=bare.obs, var=bare.var)
        function = sc.pp.highly_variable_genes
        if options.get("flavor") == "pearson_residuals":
            function = sc.experimental.pp.highly_variable_genes
        try:
            table = function(theirs, inplace=False, **options)
        except Exception:  # noqa: BLE001 - where scanpy fails, forms are compared alone
            return None
        table = table.loc[bare.var_names]
        known = [name for name in ("means", "variances", "residual_variances") if name in table]
        expected = {name: table[name].to_numpy() for name in known}
        (rank,) = (name for name in RANKED_BY if name in table)
        # Genes of equal rank keep the order of var in scatlas, and have any order in scanpy.
        if np.unique(np.round(table[rank], 6)).size == len(table):
            expected["highly_variable"] = table["highly_variable"].to_numpy()
        return {"table": expected}

    return call, expected


def _hvg_of_counts(adata: AnnData) -> dict[str, Any]:
    factors = np.arange(adata.n_obs) % 3 + 0.5
    options = {"flavor": "seurat", "n_top_genes": 2}
    table = hvg_of_counts(adata.X, adata.var_names, factors, **options)
    return {"table": table[["means", "dispersions", "highly_variable"]]}


def _consensus(adata: AnnData) -> dict[str, Any]:
    options = {"flavor": "seurat", "n_top_genes": 2}
    factors = np.ones(adata.n_obs)
    table = hvg_of_counts(adata.X, adata.var_names, factors, **options)
    found = consensus_genes({"p1": table, "p2": table[::-1]}, min_plates=2, genes="intersect")
    chosen = table[table["highly_variable"]]
    assert list(found.index) == list(chosen.index)
    return {"means": found["means"].to_numpy()}


RANKED_BY = ("residual_variances", "variances_norm", "dispersions_norm")
NO_WARNING = ("`n_top_genes` > number",)
CENTRED = ("zero-centering a sparse",)
# float64 digits that remain after subtracting the squared mean; float32 is rounded once.
SCALED = {"rtol": 1e-6, "why": "one rounding of float32", "warns": CENTRED}
REGRESSED = {"rtol": 3e-6, "why": "one rounding of float32", "scale": lambda v: v.size}
PROJECTED = {
    "rtol": 3e-7,
    "why": "cells are float32",
    "scale": lambda v: v.size,
    "storages": "close",
}
POSITIVE = ("counts", "huge", "nonfinite")
SMALL = values(kinds=POSITIVE, cells=(0, 14), genes=(0, 12))
# expm1 of float32 values is float32.
_HVG = {"rtol": 1e-6, "why": "float32", "warns": NO_WARNING}

FUNCTIONS = {
    "pp.scale": Function(*_scale(True, None), lazy=("X", "matrix"), **SCALED),
    "pp.scale clipped": Function(*_scale(True, 1.0), lazy=("X", "matrix"), **SCALED),
    "pp.scale uncentred": Function(*_scale(False, 1.0), lazy=("X", "matrix"), **SCALED),
    "pp.scale of some cells": Function(
        _scale_masked, _scale_masked_expected, lazy=("X",), **SCALED
    ),
    "pp.regress_out": Function(*_regress("number"), lazy=("X", "copy"), **REGRESSED),
    "pp.regress_out of groups": Function(*_regress("group"), lazy=("X", "copy"), **REGRESSED),
    "pp.pca": Function(
        _pca,
        _pca_expected,
        values(kinds=("counts", "negative", "nonfinite")),
        lazy=("cells", "matrix"),
        **PROJECTED,
    ),
    "pp.pca of reals": Function(
        _pca_of_reals, _pca_expected, values(kinds=("huge", "reals")), **PROJECTED
    ),
    "blocks.GramAccumulator": Function(
        _gram, _gram_expected, rtol=1e-14, why="float64 sums", storages="close"
    ),
    "pp.highly_variable_genes": Function(*_hvg(), SMALL, **_HVG),
    "pp.highly_variable_genes top": Function(*_hvg(n_top_genes=3), SMALL, **_HVG),
    "pp.highly_variable_genes of batches": Function(
        *_hvg(n_top_genes=3, batch_key="batch"), SMALL, **_HVG
    ),
    "pp.highly_variable_genes cell_ranger": Function(
        *_hvg(flavor="cell_ranger", n_top_genes=3), SMALL, **_HVG
    ),
    "pp.highly_variable_genes seurat_v3": Function(
        *_hvg(flavor="seurat_v3", n_top_genes=3, check_values=False, span=1.0), SMALL, **_HVG
    ),
    "pp.highly_variable_genes pearson_residuals": Function(
        *_hvg(flavor="pearson_residuals", n_top_genes=3, check_values=False), SMALL, **_HVG
    ),
    "pp.hvg_of_counts": Function(_hvg_of_counts, None, SMALL, **_HVG),
    "pp.consensus_genes": Function(_consensus, None, SMALL, **_HVG),
}
