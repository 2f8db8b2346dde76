"""Each function of a matrix that scanpy has too: with the same data and options it writes the same.

``CASES`` says how to call a function and how near its results are to scanpy's. Small matrices of
other types and layouts are in tests/adversarial, scanpy's own tests in tests/compat.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import pytest
import scanpy as sc
from scipy import sparse

import scatlas as sa
from scatlas.workflow.consensus import consensus_genes
from tests.helpers.scanpy_version import SCANPY_112
from tests.helpers.stable_sort import numpy_with_stable_argsort
from tests.parity.compared import (
    STORAGES,
    Case,
    annotated,
    by_gene,
    compare,
    signs_apart,
    simulated,
    totals_alone,
)
from tests.parity.real_plates import PLATES

# --- scanpy, without its faults ---------------------------------------------------------------


def stable_v3(adata: ad.AnnData, **options: Any) -> Any:
    """scanpy's with ties in the order of ``var``: its choice depends on the processor. 1.12 updates
    moments of batches cell by cell, so that genes of equal means differ in the last bits, which the
    fit turns into 1% of a variance: scatlas's exact moments take their place.
    """
    theirs = import_module("scanpy.preprocessing._highly_variable_genes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(theirs, "np", numpy_with_stable_argsort())
        if SCANPY_112:
            exact = import_module("scatlas.get._aggregate").aggregate
            patch.setattr(theirs, "aggregate", exact)
        return sc.pp.highly_variable_genes(adata, **options)


def stable_pearson(adata: ad.AnnData, **options: Any) -> Any:
    """scanpy's with ties, which its rounding hides, in the order of ``var``."""
    theirs = import_module("scanpy.experimental.pp._highly_variable_genes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(theirs, "np", numpy_with_stable_argsort(digits=12))
        return sc.experimental.pp.highly_variable_genes(adata, **options)


def exact_pca(adata: ad.AnnData, *args: Any, **options: Any) -> Any:
    return sc.pp.pca(adata, *args, svd_solver="arpack", dtype="float64", **options)


def aggregate_with_sizes(adata: ad.AnnData, *args: Any, **options: Any) -> Any:
    """scanpy 1.11 has no numbers of cells, and divides masked means by all cells."""
    found = sc.get.aggregate(adata, *args, **options)
    if not SCANPY_112:
        by = list(np.atleast_1d(args[0]))
        axis = "var" if options.get("axis") == "var" else "obs"
        mask = options.get("mask")
        table = getattr(adata, axis)
        sizes = (table if mask is None else table[table[mask]]).groupby(by, observed=True).size()
        getattr(found, axis)["n_obs_aggregated"] = sizes.to_numpy()
    return found


def logged() -> ad.AnnData:
    return simulated(logs=True)


def logged_and_seen() -> ad.AnnData:
    return simulated(logs=True, seen=True)


def some_logged() -> ad.AnnData:
    return simulated(logs=True)[:, :120].copy()


def few_cells() -> ad.AnnData:
    return simulated(logs=True)[:150].copy()


def with_reals() -> ad.AnnData:
    """Values of both signs."""
    adata = simulated(logs=True)[:, :80].copy()
    adata.X.data *= np.random.default_rng(2).choice([-1, 1], adata.X.nnz)
    return adata


def with_base() -> ad.AnnData:
    adata = logged()
    adata.X.data /= np.log(2)
    adata.uns["log1p"] = {"base": 2}
    return adata


def ties() -> ad.AnnData:
    """Three genes each have the same values in other cells: all of them pass a cut, or none."""
    adata = logged_and_seen()[:90, :100].copy()
    x = adata.X.toarray()[:, np.asarray(adata.X.sum(axis=0)).ravel() > 0]
    rng = np.random.default_rng(2)
    copies = [np.stack([rng.permutation(gene) for gene in x.T], axis=1) for _ in range(2)]
    return ad.AnnData(sparse.csr_matrix(np.hstack([x, *copies])))


def cells_with_groups() -> ad.AnnData:
    """scanpy 1.11 puts cells without a value into wrong groups."""
    adata = with_reals()
    return adata[adata.obs["line"].notna()].copy()


FLOATS = ("float64", "float32")
GENES = [f"g{i}" for i in range(12)]
ONE = {"dtypes": ("float64",)}
CUTS = [
    {"n_top_genes": 50},
    {"n_top_genes": 2000},
    {"n_bins": 7},
    {"min_mean": 0.05, "max_mean": 2, "min_disp": 0.2, "max_disp": 4},
    {"n_top_genes": 30, "subset": True},
]
BY_BATCH = [options | {"batch_key": key} for options in CUTS for key in (None, "batch")]
V3 = [
    {"flavor": flavor, "batch_key": key, **options}
    for flavor in ("seurat_v3", "seurat_v3_paper")
    for key in (None, "batch", "dose")
    for options in ({"n_top_genes": 50}, {"n_top_genes": 150, "span": 0.6}, {"span": 1.0}, {})
]
PEARSON = [
    {"flavor": "pearson_residuals", "batch_key": key, **options}
    for key in (None, "batch")
    for options in (
        {"n_top_genes": 50},
        {"n_top_genes": 150, "theta": 7.5},
        {"n_top_genes": 1000, "clip": 3.0},
        {"n_top_genes": 20, "theta": np.inf, "clip": np.inf},
    )
]
RANKS = [
    {},
    {"pts": True},
    {"reference": "a", "pts": True},
    {"groups": ["d", "b"]},
    {"groups": ["d", "b"], "reference": "c"},
    {"groups": ["c", "b"], "reference": "b"},
    {"tie_correct": True},
    {"tie_correct": True, "reference": "d"},
    {"rankby_abs": True, "n_genes": 13},
    {"corr_method": "bonferroni"},
    {"mask_var": "some"},
]
SCORES = [
    {"ctrl_as_ref": as_ref, "random_state": seed, **options}
    for as_ref, seed in ((True, 0), (False, 7))
    for options in (
        {"ctrl_size": 5},
        {"ctrl_size": 10_000},
        {"n_bins": 2},
        {"n_bins": 7, "score_name": "other"},
        {"n_bins": 5000, "ctrl_size": 20},  # all genes in one bin
        {"ctrl_size": 3, "gene_pool": [f"g{i}" for i in range(300, -1, -1)]},
    )
]


def bounds(**values: int) -> Case:
    """Filters by one bound each, in place or not."""
    options = [
        {bound: value, "inplace": inplace}
        for bound, value in values.items()
        for inplace in (False, True)
    ]
    return Case(options, types=None)


CASES = {
    "pp.calculate_qc_metrics": Case(
        [
            {"qc_vars": ["mt"]},
            {"qc_vars": ["mt"], "log1p": False, "percent_top": None},
            {"percent_top": (600, 2), "expr_type": "umis", "inplace": True},
        ],
        1e-14,
        wide=True,
        types=None,
    ),
    "pp.filter_cells": bounds(min_counts=300, max_counts=400, min_genes=120, max_genes=200),
    "pp.filter_genes": bounds(min_counts=200, max_counts=500, min_cells=60, max_cells=80),
    "pp.normalize_total": Case(
        [
            {"target_sum": 1e4},
            {"target_sum": 1e4, "key_added": "size"},
            {"target_sum": 1e4, "exclude_highly_expressed": True, "max_fraction": 0.02},
        ],
        1e-14,
        narrow=3e-7,
        types="X",
    ),
    "pp.log1p": Case([{}, {"base": 2}], 1e-14, narrow=3e-7),
    "pp.highly_variable_genes": Case(BY_BATCH, 1e-12, logged, 3e-7, FLOATS),
    "pp.highly_variable_genes cell_ranger": Case(
        [options | {"flavor": "cell_ranger"} for options in BY_BATCH],
        1e-12,
        logged_and_seen,
        3e-7,
        FLOATS,
    ),
    "pp.highly_variable_genes of another base": Case(
        [{"n_top_genes": 40}], 1e-12, with_base, 3e-7, FLOATS
    ),
    "pp.highly_variable_genes of ties": Case(
        [
            {"flavor": flavor, "n_top_genes": n}
            for flavor in ("seurat", "cell_ranger")
            for n in range(20, 30)
        ],
        3e-7,
        ties,
        dtypes=("float32",),  # whose sums are exact
    ),
    "pp.highly_variable_genes seurat_v3": Case(
        V3, 2e-14, narrow=2e-14, dtypes=("float64", "int32"), theirs=stable_v3
    ),
    "pp.highly_variable_genes pearson_residuals": Case(
        PEARSON,
        1e-12,
        lambda: simulated(empty=False),
        dtypes=("float64", "int32"),
        wide=True,
        theirs=stable_pearson,
    ),
    "pp.scale": Case(
        [
            {"zero_center": centre, "max_value": most, "mask_obs": mask}
            for centre, most, mask in product((True, False), (None, 2.0), (None, "use"))
        ],
        1e-12,
        few_cells,
        3e-7,
        dense=True,
    ),
    "pp.pca": Case(
        [
            {"n_comps": 12, "zero_center": True},
            {"n_comps": 12, "zero_center": False},
            {"n_comps": 12, "mask_var": "some"},
        ],
        1e-10,
        logged,
        1e-10,
        FLOATS,
        wide=True,
        theirs=exact_pca,
        read=signs_apart,
    ),
    "pp.regress_out": Case(
        [{"args": (keys,)} for keys in ("total", ["fraction"], ["total", "fraction", "days"])],
        1e-12,
        few_cells,
        2e-7,
    ),
    "pp.regress_out of groups or nothing": Case(
        [{"args": (keys,)} for keys in ("drug", ["drug"], "batch", ["nothing"])],
        3e-7,
        few_cells,
        3e-7,
        types=None,
    ),
    "pp.downsample_counts": Case(
        [
            {**how, "replace": replace}
            for replace in (False, True)
            for how in ({"counts_per_cell": 500}, {"total_counts": 100_000})
        ],
        read=totals_alone,
    ),
    "tl.score_genes": Case(
        [{"args": (GENES,), **options} for options in SCORES], 1e-13, logged, 2e-6
    ),
    "tl.score_genes_cell_cycle": Case(
        [
            {"s_genes": GENES, "g2m_genes": [f"g{i}" for i in range(20, 45)], **options}
            for options in ({}, {"random_state": 4, "n_bins": 10, "ctrl_as_ref": False})
        ],
        1e-13,
        logged,
        **ONE,
    ),
    **{
        f"tl.rank_genes_groups {method}": Case(
            [{"args": ("line",), "method": method, **options} for options in RANKS],
            1e-12,
            some_logged,
            1e-12,
            FLOATS,
            wide=True,
            read=by_gene,
        )
        for method in ("t-test", "t-test_overestim_var", "wilcoxon")
    },
    "tl.rank_genes_groups of both signs": Case(
        [
            {"args": ("line",), "method": "wilcoxon", "reference": other, "tie_correct": ties}
            for other in ("rest", "a")
            for ties in (False, True)
        ],
        1e-12,
        with_reals,
        read=by_gene,
        **ONE,
    ),
    # At a tolerance near the minimum: by default both stop before it.
    "tl.rank_genes_groups logreg": Case(
        [
            {"args": ("line",), "method": "logreg", "tol": 1e-10, "max_iter": 5000, **options}
            for options in (
                {},
                {"groups": ["d", "b"]},
                {"groups": ["d", "c"], "reference": "b"},
                {"C": 0.1, "fit_intercept": False},
                {"class_weight": "balanced", "rankby_abs": True, "n_genes": 20},
            )
        ],
        2e-5,
        lambda: simulated(logs=True)[:, :40].copy(),
        read=by_gene,
        **ONE,
    ),
    "get.aggregate": Case(
        [
            {"args": (by, ["sum", "mean", "var", "count_nonzero", "median"])}
            for by in ("drug", "dose", ["line", "drug"], ["dose", "drug", "batch"])
        ]
        + [{"args": ("drug", "var"), "dof": dof} for dof in (0, 3)]
        + [{"args": ("set", ["sum", "mean", "var"]), "axis": "var"}],
        1e-13,
        cells_with_groups,
        3e-7,
        theirs=aggregate_with_sizes,
        types=None,
    ),
    "get.aggregate of masked cells": Case(
        [{"args": ("drug", ["sum", "count_nonzero"]), "mask": "use"}],
        1e-13,
        with_reals,
        3e-7,
        theirs=aggregate_with_sizes,
        types=None,
    ),
    "tl.rank_genes_groups_logreg": Case(
        [{"args": ("line",), "tol": 1e-10, "max_iter": 5000}],
        2e-5,
        lambda: simulated(logs=True)[:, :40].copy(),
        theirs=partial(sc.tl.rank_genes_groups, method="logreg"),
        read=by_gene,
        **ONE,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_equal(name: str) -> None:
    case = CASES[name]
    for dtype in case.dtypes:
        data = case.data()
        if dtype == "int32":
            data.X.data = np.rint(data.X.data)
        compare(name, case, data, dtype, STORAGES)


# Their cells are all large; logistic regression is compared on the small matrix alone.
NOT_REAL = {"pp.downsample_counts", "tl.rank_genes_groups logreg", "tl.rank_genes_groups_logreg"}


@pytest.mark.real
@pytest.mark.parametrize(
    "plate", [PLATES[0], *(pytest.param(name, marks=pytest.mark.weekly) for name in PLATES[1:])]
)
@pytest.mark.parametrize("name", sorted(CASES.keys() - NOT_REAL))
def test_equal_on_real_plates(name: str, plate: str, plates_dir: Path) -> None:
    """Half of the genes that three cells or more express, because some of scanpy's are slow."""
    case = CASES[name]
    counts = ad.read_h5ad(plates_dir / f"{plate}.h5ad")
    counts = counts[counts.obs["pass_filter"] == "full"].X
    counts = counts[: counts.shape[0] // 4 * 4]
    seen = np.flatnonzero(np.asarray((counts > 0).sum(axis=0)).ravel() >= 3)
    data = annotated(counts[:, seen[::2]], logs=case.data().X.data.max() < 100)
    compare(name, case, data, case.dtypes[0], ("dask",), 1)


@pytest.mark.parametrize("n_top_genes", [1, 50, 150, 400])
def test_the_consensus_of_plates_is_scanpys_choice_for_batches(n_top_genes: int) -> None:
    adata = simulated(empty=False)
    options = {"flavor": "seurat_v3_paper", "n_top_genes": n_top_genes, "inplace": False}
    expected = stable_v3(adata, batch_key="batch", **options)
    plates = {
        batch: sa.pp.highly_variable_genes(adata[adata.obs["batch"] == batch].copy(), **options)
        for batch in "wxyz"
    }
    found = consensus_genes(plates, n_top_genes=n_top_genes)
    assert list(found.index) == list(expected.index[expected["highly_variable"]])
    chosen = expected.loc[found.index]
    assert found["highly_variable_nbatches"].tolist() == chosen["highly_variable_nbatches"].tolist()
