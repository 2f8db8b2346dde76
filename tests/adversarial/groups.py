"""Functions of groups of cells: aggregates, ranks of genes, scores."""

from __future__ import annotations

from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
from anndata import AnnData
from scipy.special import softmax

import scatlas as sa
from scatlas.io.products.annotators import Annotator
from tests.adversarial.counting import exact_sums, held_by_another
from tests.adversarial.judge import Function, Refused, refuse
from tests.adversarial.matrices import Values, values

# -- aggregates ----------------------------------------------------------------------------------

SPREAD = ("mean", "var")
OTHERS = ("count_nonzero", "mean", "median", "sum")


def _aggregate(adata: AnnData, funcs: tuple[str, ...] = OTHERS) -> dict[str, Any]:
    found = sa.get.aggregate(adata, "group", funcs)
    _, arrays = sa.get.aggregate_cells(adata.X, adata.obs, "group", func=funcs)
    for name, layer in found.layers.items():
        np.testing.assert_array_equal(layer, arrays[name])
    return {**found.layers, "n": found.obs["n_obs_aggregated"].to_numpy()}


def _aggregated(values: Values, bare: AnnData) -> dict[str, Any] | None:
    if values.kind == "nonfinite":
        return None
    codes = bare.obs["group"].cat.codes.to_numpy()
    groups = [values.dense[codes == code] for code in np.unique(codes)]
    if not groups:
        return None
    results = {"n": [len(group) for group in groups]}
    results["sum"] = [exact_sums(group, 0) for group in groups]
    results["count_nonzero"] = [(group != 0).sum(axis=0) for group in groups]
    wide = [group.astype(np.longdouble) for group in groups]
    results["mean"] = [group.mean(axis=0).astype(float) for group in wide]
    results["median"] = [np.median(group, axis=0).astype(float) for group in wide]
    return {name: np.array(result) for name, result in results.items()}


def _spread(values: Values, bare: AnnData) -> dict[str, Any] | None:
    if values.kind == "nonfinite":
        return None
    if values.kind == "huge" and values.dense.dtype.kind in "iu":
        return None  # refused if squares do not fit 64 bits
    codes = bare.obs["group"].cat.codes.to_numpy()
    groups = [values.dense[codes == code].astype(np.longdouble) for code in np.unique(codes)]
    if not groups:
        return None
    variances = [np.square(group - group.mean(axis=0)).sum(axis=0) for group in groups]
    variances = [v / (len(group) - 1) for v, group in zip(variances, groups, strict=True)]
    return {"var": np.array(variances, float)}


def _aggregate_genes(adata: AnnData) -> dict[str, Any]:
    adata.var["part"] = pd.Categorical(np.where(adata.var["mask"], "in", "out"))
    found = sa.get.aggregate(adata, "part", ["sum", "mean"], axis="var")
    del adata.var["part"]
    return {**found.layers}


def _aggregated_genes(values: Values, bare: AnnData) -> dict[str, Any] | None:
    if values.kind == "nonfinite" or values.shape[1] == 0:
        return None
    mask = bare.var["mask"].to_numpy(bool)
    parts = [values.dense[:, part] for part in (mask, ~mask) if part.any()]
    return {
        "sum": np.stack([exact_sums(part, 1) for part in parts], axis=1),
        "mean": np.stack([part.astype(np.longdouble).mean(axis=1) for part in parts], axis=1),
    }


# -- ranks ---------------------------------------------------------------------------------------


def _by_gene(adata: AnnData, key: str = "rank_genes_groups") -> dict[str, np.ndarray]:
    """Scores and p-values ``[n_groups, n_genes]`` in the order of var."""
    found = adata.uns[key]
    groups = found["names"].dtype.names
    results = {}
    for name in ("scores", "pvals", "logfoldchanges"):
        if name in found:
            of_groups = [
                pd.Series(found[name][group], index=found["names"][group]) for group in groups
            ]
            results[name] = np.array([part.loc[adata.var_names] for part in of_groups])
    return results


def _rank(**options: Any) -> Any:
    def call(adata: AnnData) -> dict[str, Any]:
        mine = held_by_another(adata)
        sa.tl.rank_genes_groups(mine, "batch", **options)
        order = np.array([[*row] for row in mine.uns["rank_genes_groups"]["names"]])
        return {**_by_gene(mine), "names": order}

    def expected(values: Values, bare: AnnData) -> dict[str, Any] | None:
        import scanpy as sc

        x = values.dense.astype(np.float64)
        refuse(values.shape[0] < 4, "a group has fewer than two cells")
        refuse(not np.isfinite(x).all(), "values that are not finite")
        if values.kind == "huge" or options["method"] == "logreg":
            return None  # expm1 overflows; scikit-learn stops at another point
        theirs = ad.AnnData(x, obs=bare.obs, var=bare.var)
        sc.tl.rank_genes_groups(theirs, "batch", **options)
        results = _by_gene(theirs)
        # For constant genes scanpy's values are rounding errors.
        steady = np.array([np.ptp(x[i::2], axis=0) == 0 for i in range(2)]).any(axis=0)
        if steady.any():
            return None
        return results

    return call, expected


def _logreg(adata: AnnData) -> dict[str, Any]:
    mine = held_by_another(adata)
    sa.tl.rank_genes_groups_logreg(mine, "batch")
    return _by_gene(mine)


def _few_cells_or_odd(values: Values, bare: AnnData) -> None:
    refuse(values.shape[0] < 4, "a group has fewer than two cells")
    refuse(not np.isfinite(values.dense.astype(np.float64)).all(), "values that are not finite")


# -- scores --------------------------------------------------------------------------------------

SCORED = {"ctrl_size": 2, "n_bins": 3}


def _score(adata: AnnData) -> dict[str, Any]:
    mine = held_by_another(adata)
    sa.tl.score_genes(mine, list(mine.var_names[:2]), **SCORED)
    return {"score": mine.obs["score"].to_numpy()}


def _scored(values: Values, bare: AnnData) -> dict[str, Any] | None:
    import scanpy as sc

    refuse(values.shape[0] == 0, "there is no cell")
    if values.kind == "nonfinite":
        return None
    theirs = ad.AnnData(values.dense.astype(np.float64), obs=bare.obs, var=bare.var)
    try:
        sc.tl.score_genes(theirs, list(theirs.var_names[:2]), **SCORED)
    except (RuntimeError, ValueError) as error:
        raise Refused(str(error)) from error
    return {"score": theirs.obs["score"].to_numpy()}


def _cycle(adata: AnnData) -> dict[str, Any]:
    mine = held_by_another(adata)
    names = list(mine.var_names)
    sa.tl.score_genes_cell_cycle(mine, s_genes=names[:2], g2m_genes=names[2:4], n_bins=3)
    return {name: mine.obs[name].to_numpy() for name in ("S_score", "G2M_score", "phase")}


# -- types of cells ------------------------------------------------------------------------------


def _model(names: pd.Index) -> Annotator:
    rng = np.random.default_rng(names.size)
    labels, shape = np.array(["x", "y", "z"]), (3, names.size)
    mean, scale = rng.gamma(1.0, 2.0, names.size), rng.gamma(1.0, 0.5, names.size) + 0.1
    coef = rng.normal(size=shape) / 4
    return Annotator(labels, names.to_numpy(), coef, rng.normal(size=3), mean, scale)


def _annotate(adata: AnnData) -> dict[str, Any]:
    mine = held_by_another(adata)
    sa.tl.annotate(mine, _model(mine.var_names), clusters="group")
    columns = ("cell_type", "cell_type_runner_up", "cell_type_vote")
    return {
        "probability": mine.obs["cell_type_probability"].to_numpy(),
        **{name: mine.obs[name].cat.codes.to_numpy() for name in columns},
    }


def _annotated(values: Values, bare: AnnData) -> dict[str, Any] | None:
    x = values.dense.astype(np.float64)
    refuse(not ((x >= 0) & (x == np.floor(x))).all(), "neither counts nor logarithms")
    totals = x.sum(axis=1, keepdims=True)
    logs = np.log1p(np.divide(x * 1e4, totals, out=np.zeros_like(x), where=totals > 0))
    model = _model(bare.var_names)
    scores = np.minimum((logs - model.mean) / model.scale, 10) @ model.coef.T + model.intercept
    return {"probability": softmax(scores, axis=1).max(axis=1, initial=0).astype(np.float32)}


def _train(adata: AnnData) -> dict[str, Any]:
    model = sa.tl.train_annotator(held_by_another(adata), "batch", groups="group")
    return {name: getattr(model, name) for name in ("coef", "intercept", "mean", "score_sd")}


def _effects(adata: AnnData) -> dict[str, Any]:
    """Of cells that are pseudobulks, and of their sums; whatever matrices can be compared."""
    options = {"min_cells": 0, "min_count": 0, "min_total_count": 0, "scaling": "none"}
    mine = held_by_another(adata)
    mine.obs["sample"] = [str(i // 2) for i in range(mine.n_obs)]
    rows = sa.tl.effects(mine, "batch", "b0", **options)
    sums = sa.tl.effects(mine, "group", "u", replicate="sample", block="batch", **options)
    table = sa.get.effects(sums)
    return {"rows": rows.X, "t": rows.layers["t"], "sums": sums.X, "p": table["p_value"].to_numpy()}


def _no_counts(values: Values, bare: AnnData) -> dict[str, Any] | None:
    x = values.dense
    with np.errstate(invalid="ignore"):
        odd = (x < 0) | np.isinf(x) | (x != np.floor(x)) & ~np.isnan(x)
    refuse(bool(odd.any()), "values that are no counts")
    return None


def _edistance(adata: AnnData) -> dict[str, Any]:
    mine = AnnData(obs=adata.obs.copy(), obsm={"X_pca": adata.X})
    found = sa.tl.edistance(mine, "group", "u", min_cells=2)
    return {"edistance": found["edistance"].to_numpy()}


def _edistances(values: Values, bare: AnnData) -> dict[str, Any]:
    refuse(values.shape[0] < 3, "one condition")
    refuse(not np.isfinite(values.dense).all(), "values that are not finite")
    refuse(not values.shape[1], "no components")
    codes = bare.obs["group"].cat.codes.to_numpy()
    x = values.dense.astype(np.longdouble)
    groups = [x[codes == code] for code in range(codes.max(initial=0) + 1)]

    def mean(a: np.ndarray, b: np.ndarray) -> float:
        if min(len(a), len(b)) < 2:
            return np.nan
        return float(((a[:, None] - b[None]) ** 2).sum() / (len(a) * (len(b) - (a is b))))

    u, *others = groups
    return {"edistance": [2 * mean(g, u) - mean(g, g) - mean(u, u) for g in others]}


def _composition(adata: AnnData) -> dict[str, Any]:
    mine = held_by_another(adata)
    mine.obs["sample"] = [str(i // 6) for i in range(mine.n_obs)]
    found = sa.tl.composition(mine, "group", "u", groups="batch", replicate="sample", min_cells=1)
    return {name: found[name].to_numpy() for name in ("share", "ci_low", "p_value")}


LOGGED = values(kinds=("counts", "reals", "nonfinite"), cells=(0, 14))
MANY_GENES = values(cells=(0, 12), genes=(0, 12), kinds=("counts", "huge", "negative", "reals"))
# For 14 values scatlas's sums are exact, scanpy's are not.
LABELLED = values(kinds=("counts", "negative"), cells=(18, 40), genes=(1, 6))
COUNTED = values(kinds=("counts", "huge", "negative", "reals", "nonfinite"), cells=(0, 40))
CLOSE = {"rtol": 1e-6, "why": "scores are float32"}

FUNCTIONS = {
    "get.aggregate": Function(
        _aggregate, _aggregated, rtol=4e-15, why="roundings of float64"
    ),
    "get.aggregate of variances": Function(
        lambda adata: _aggregate(adata, SPREAD),
        _spread,
        rtol=1e-13,
        why="squares less the squared mean, with their errors",
        scale=lambda v: v.size**2,
    ),
    "get.aggregate of genes": Function(
        _aggregate_genes, _aggregated_genes, rtol=4e-15, why="roundings of float64"
    ),
    "tl.rank_genes_groups": Function(*_rank(method="t-test"), LOGGED, **CLOSE),
    "tl.rank_genes_groups overestimating": Function(
        *_rank(method="t-test_overestim_var"), LOGGED, **CLOSE
    ),
    "tl.rank_genes_groups wilcoxon": Function(
        *_rank(method="wilcoxon", tie_correct=True), LOGGED, **CLOSE
    ),
    "tl.rank_genes_groups_logreg": Function(
        _logreg, _few_cells_or_odd, LOGGED, rtol=1e-3, why="where the descent stops"
    ),
    "tl.score_genes": Function(
        _score, _scored, MANY_GENES, rtol=1e-12, why="float64 sums",
        scale=lambda v: v.size, storages="close",
    ),
    "tl.score_genes_cell_cycle": Function(
        _cycle, None, MANY_GENES, storages="close", rtol=1e-12, why="float64 sums",
    ),
    "tl.annotate": Function(
        _annotate, _annotated, rtol=1e-5, why="log-normalised values are float32"
    ),
    "tl.effects": Function(_effects, _no_counts, COUNTED),
    "tl.train_annotator": Function(_train, None, LABELLED),
    "tl.edistance": Function(
        _edistance, _edistances, rtol=1e-13, why="roundings of float64",
        scale=lambda v: 8 * v.dense.size * v.size**2,
    ),
    "tl.composition": Function(_composition, None),
}  # fmt: skip
