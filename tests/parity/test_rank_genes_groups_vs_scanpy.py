"""sa.tl.rank_genes_groups agrees with sc.tl.rank_genes_groups up to scanpy's rounding.

Scores and fold changes are stored as float32. For float32 values scanpy 1.11 computes variances in
float32, an error of a part in 10^6 of a t statistic.
"""

from __future__ import annotations

import warnings
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import scatlas as sa
from tests.helpers.marked import marked_counts
from tests.helpers.scanpy_version import SCANPY_112

sc = pytest.importorskip("scanpy")

KEY = "rank_genes_groups"
TESTS = ["t-test", "t-test_overestim_var", "wilcoxon"]
COLUMNS = ["scores", "logfoldchanges", "pvals", "pvals_adj"]


def annotated(make: Any = sparse.csr_matrix, dtype: str = "float64", n_genes: int = 120) -> Any:
    """Log-normalised counts of 400 cells; four groups, one small, and cells without a group."""
    rng = np.random.default_rng(0)
    x = marked_counts(rng)[:, :n_genes].astype(np.float64)
    x = np.log1p(1e3 * x / np.maximum(1, x.sum(axis=1, keepdims=True))).astype(dtype)
    codes = rng.integers(0, 3, 400)
    codes[5:20], codes[40:50] = 3, -1
    line = pd.Categorical.from_codes(codes, ["b", "a", "d", "c"])
    obs = pd.DataFrame({"line": line}, index=[f"cell{i}" for i in range(400)])
    obs["text"] = rng.choice(["t1", "t2", "t10"], 400)
    names = [f"g{i}" for i in range(n_genes)]
    return ad.AnnData(X=make(x), obs=obs, var=pd.DataFrame(index=names))


def assert_same(
    ours: ad.AnnData, theirs: ad.AnnData, *, rtol: float = 1e-6, p_rtol: float = 1e-9
) -> None:
    """Check for equal layout and numbers per gene, and an order of genes that fits both scores."""
    own, other = ours.uns[KEY], theirs.uns[KEY]
    assert list(own) == list(other)
    assert own["params"] == other["params"]
    for name in ("pts", "pts_rest"):
        if name in other:
            pd.testing.assert_frame_equal(own[name], other[name], rtol=1e-14)
    columns = [name for name in COLUMNS if name in other]
    for name in ("names", *columns):
        assert own[name].dtype == other[name].dtype
        assert type(own[name]) is type(other[name])
        assert own[name].shape == other[name].shape
    for group in other["names"].dtype.names:
        scale = max(1.0, np.abs(other["scores"][group]).max())
        ordered = (found["scores"][group] for found in (own, other))
        np.testing.assert_allclose(*ordered, rtol=rtol, atol=rtol * scale)
        tables = [
            pd.DataFrame({name: found[name][group] for name in columns}, found["names"][group])
            for found in (own, other)
        ]
        assert tables[0].index.is_unique
        if len(tables[0]) < ours.n_vars:
            # If the list ends among genes of equal scores, either of them may stay.
            both = tables[0].index.intersection(tables[1].index)
            assert len(both) >= len(tables[0]) - 2
            tables = [table.loc[both] for table in tables]
        found, expected = tables[0], tables[1].loc[tables[0].index]
        for name in columns:
            of = p_rtol if name.startswith("pvals") else rtol
            atol = 0 if name.startswith("pvals") else rtol * scale
            np.testing.assert_allclose(found[name], expected[name], rtol=of, atol=atol)


def rank_with_both(adata: ad.AnnData, groupby: str = "line", **options: Any) -> tuple[Any, Any]:
    ours = sa.tl.rank_genes_groups(adata, groupby, copy=True, **options)
    with warnings.catch_warnings():
        # With tie correction an unexpressed gene has a spread of 0.
        warnings.filterwarnings("ignore", "invalid value encountered", RuntimeWarning)
        theirs = sc.tl.rank_genes_groups(adata, groupby, copy=True, **options)
    return ours, theirs


@pytest.mark.parametrize(
    "options",
    [
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
    ],
)
@pytest.mark.parametrize("method", TESTS)
def test_options(method, options):
    assert_same(*rank_with_both(annotated(), method=method, **options))


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix, sparse.csc_matrix])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", TESTS)
def test_types(method, dtype, make):
    adata = annotated(make, dtype)
    ours = sa.tl.rank_genes_groups(adata, "line", method=method, copy=True)
    assert_same(ours, by_scanpy_in_float64(adata, method=method))


def by_scanpy_in_float64(adata: ad.AnnData, **options: Any) -> ad.AnnData:
    """scanpy's result for the same values as float64, because it rounds variances of float32."""
    wide = adata.copy()
    wide.X = adata.X.astype(np.float64)
    return sc.tl.rank_genes_groups(wide, "line", copy=True, **options)


def test_what_differs_in_float32_is_scanpys():
    """scanpy 1.12 updates its variances in float64."""
    ours, narrow = rank_with_both(annotated(np.asarray, "float32"), method="t-test")
    if SCANPY_112:
        assert_same(ours, narrow)
        return
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_same(ours, narrow)
    # Only its rounding, which is a hundred times as large in p values.
    assert_same(ours, narrow, rtol=3e-6, p_rtol=1e-3)


def test_negative_values_and_ties():
    adata = annotated(np.asarray)
    adata.X = np.round(adata.X - adata.X.mean(axis=0))
    for made in (adata.X, sparse.csr_matrix(adata.X)):
        adata.X = made
        for reference in ("rest", "a"):
            for tie_correct in (False, True):
                options = {"reference": reference, "tie_correct": tie_correct}
                with np.errstate(invalid="ignore"):  # scanpy's logarithms of negative means
                    ours, theirs = rank_with_both(adata, method="wilcoxon", **options)
                assert_same(ours, theirs)


@pytest.mark.parametrize("method", TESTS)
def test_masks_layers_raw_and_bases(method):
    adata = annotated()
    adata.var["some"] = np.arange(adata.n_vars) % 3 > 0
    for mask in ("some", adata.var["some"].to_numpy()):
        assert_same(*rank_with_both(adata, method=method, mask_var=mask))
    adata.layers["twice"] = adata.X * 2
    adata.uns["log1p"] = {"base": 2}
    assert_same(*rank_with_both(adata, method=method, layer="twice"))
    adata.raw = adata.copy()
    adata = adata[:, :50].copy()
    assert_same(*rank_with_both(adata, method=method))
    assert_same(*rank_with_both(adata, method=method, use_raw=False))


def test_strings_are_groups_in_scanpys_order():
    ours, theirs = rank_with_both(annotated(), "text")
    assert_same(ours, theirs)
    assert ours.uns[KEY]["names"].dtype.names == ("t1", "t2", "t10")


def test_dask_and_disk(block_loads, tmp_path):
    adata = annotated(dtype="float32")
    adata.write_h5ad(tmp_path / "plate.h5ad")
    for method in TESTS:
        theirs = by_scanpy_in_float64(adata, method=method, pts=True)
        lazy = adata.copy()
        lazy.X = block_loads.dask(adata.X, 37)
        for made in (lazy, sa.read_lazy(tmp_path / "plate.h5ad", block_budget="40kB")):
            sa.tl.rank_genes_groups(made, "line", method=method, pts=True)
            assert_same(made, theirs)


# --- logistic regression ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"groups": ["d", "b"]},
        {"groups": ["b", "d"]},
        {"groups": ["d", "c"], "reference": "b"},
        {"C": 0.1, "fit_intercept": False},
        {"class_weight": "balanced", "rankby_abs": True, "n_genes": 20},
    ],
)
def test_logreg(options):
    """At a tolerance near the minimum: by default both stop before it."""
    make = np.asarray if "groups" in options else sparse.csr_matrix
    adata = annotated(make, n_genes=40)
    options = {"tol": 1e-10, "max_iter": 5000, **options}
    ours, theirs = rank_with_both(adata, method="logreg", **options)
    assert_same(ours, theirs, rtol=2e-5)


def test_coefficients_are_those_of_the_least_loss():
    """L-BFGS stops when the float64 loss no longer falls, Newton's method at the minimum."""

    def coefficients(tools: Any, **options: Any) -> pd.DataFrame:
        adata = annotated(n_genes=40)
        tools.rank_genes_groups(adata, "line", method="logreg", max_iter=10_000, **options)
        found = adata.uns[KEY]
        return pd.DataFrame(
            {
                g: pd.Series(found["scores"][g], found["names"][g])
                for g in found["names"].dtype.names
            }
        ).sort_index()

    least = coefficients(sc.tl, tol=1e-12, solver="newton-cg")
    off, scanpys_off = (
        np.abs(coefficients(tools, tol=1e-10) - least).to_numpy().max() for tools in (sa.tl, sc.tl)
    )
    assert scanpys_off < 1e-5
    assert 0 < off < 3e-5


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_loss_and_gradient_of_scikit_learn(n_classes, dtype):
    from sklearn._loss.loss import HalfBinomialLoss, HalfMultinomialLoss
    from sklearn.linear_model._linear_loss import LinearModelLoss

    from scatlas.tl import _rank_groups, _rank_logreg

    adata = annotated(dtype=dtype, n_genes=40)
    names = "all" if n_classes == 4 else ["b", "d"]
    groups = _rank_groups.parse_groups(adata.obs, "line", names, "rest")
    cells = _rank_logreg._Cells(adata.X, groups.codes, None)
    weights = np.ones(n_classes)
    loss = _rank_logreg._Loss(cells, weights, groups.sizes, 0.01, fit_intercept=True)
    multinomial = n_classes > 2
    base = HalfMultinomialLoss(n_classes=n_classes) if multinomial else HalfBinomialLoss()
    known = groups.codes >= 0
    x, y = adata.X[known].astype(np.float64), groups.codes[known].astype(np.float64)
    for seed in range(3):
        at = np.random.default_rng(seed).normal(size=41 * (n_classes if multinomial else 1))
        got, gradient = loss(at)
        expected = LinearModelLoss(base, fit_intercept=True).loss_gradient(at, x, y, None, 0.01)
        np.testing.assert_allclose(got, expected[0], rtol=1e-14)
        np.testing.assert_allclose(gradient, expected[1], rtol=1e-12, atol=1e-14)


def test_logreg_finds_a_loss_as_low():
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss

    adata = annotated(n_genes=40)
    known = adata[adata.obs["line"].notna()].copy()
    y = known.obs["line"].cat.codes.to_numpy()
    model = LogisticRegression(tol=1e-10, max_iter=5000).fit(known.X, y)
    losses = []
    sa.tl.rank_genes_groups_logreg(adata, "line", tol=1e-10, max_iter=5000)
    found = adata.uns[KEY]
    ours = [pd.Series(found["scores"][g], found["names"][g]) for g in found["names"].dtype.names]
    own = np.array([series.reindex(adata.var_names) for series in ours], dtype=np.float64)
    for coef in (model.coef_, own):
        model.coef_ = coef
        total = log_loss(y, model.predict_proba(known.X), normalize=False)
        losses.append(total + 0.5 * (coef**2).sum())
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-8)


# --- what scanpy does with the result ---------------------------------------------------------


@pytest.mark.parametrize("method", [*TESTS, "logreg"])
def test_scanpy_reads_and_draws_it(method):
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    adata = annotated(np.asarray)
    marked = adata.obs["line"] == "a"
    adata.X[marked, :10] += np.random.default_rng(1).gamma(2, 1, (marked.sum(), 10))
    tested = method != "logreg"
    options = {"pts": True} if tested else {"tol": 1e-2}
    sa.tl.rank_genes_groups(adata, "line", method=method, **options)
    table = sc.get.rank_genes_groups_df(adata, group=None)
    assert table.shape == (4 * 120, 8 if tested else 3)
    one = sc.get.rank_genes_groups_df(adata, group="a")
    assert one["names"].tolist() == adata.uns[KEY]["names"]["a"].tolist()
    if tested:
        few = sc.get.rank_genes_groups_df(adata, group="a", pval_cutoff=0.01, log2fc_min=0)
        assert 0 < len(few) < len(one)
        sc.tl.filter_rank_genes_groups(adata, min_fold_change=0.5, min_in_group_fraction=0.1)
        kept = pd.DataFrame(adata.uns["rank_genes_groups_filtered"]["names"])
        assert 0 < kept.notna().to_numpy().sum() < kept.size
    axes = sc.pl.rank_genes_groups(adata, n_genes=5, show=False)
    assert len(axes) == 4
    sc.pl.rank_genes_groups_dotplot(adata, n_genes=3, dendrogram=False, show=False)
    plt.close("all")


@pytest.mark.real
@pytest.mark.parametrize("method", [*TESTS, "logreg"])
def test_a_real_plate(plates_dir, method):
    adata = ad.read_h5ad(plates_dir / "mix_plate1.h5ad")
    adata = adata[:, np.asarray(adata.X.sum(axis=0)).ravel() > 100].copy()
    adata = adata[:, ::4].copy()
    sc.pp.normalize_total(adata)
    sc.pp.log1p(adata)
    column = "cell_line_called" if "cell_line_called" in adata.obs else "cell_line"
    adata.X = sparse.csr_matrix(adata.X, dtype=np.float64)
    enough = adata.obs[column].value_counts().loc[lambda n: n > 1].index.astype(str).tolist()
    options = {"tol": 1e-10, "max_iter": 5000} if method == "logreg" else {"pts": True}
    ours, theirs = rank_with_both(adata, column, method=method, groups=enough, **options)
    assert len(enough) >= 3
    assert ours.n_vars > 500
    assert_same(ours, theirs, rtol=1e-4 if method == "logreg" else 1e-6)
