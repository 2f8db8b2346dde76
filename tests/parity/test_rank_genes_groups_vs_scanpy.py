"""sa.tl.rank_genes_groups gives what sc.tl.rank_genes_groups gives, and scanpy's readers read it.

scanpy keeps scores and fold changes as float32, so that these are compared to 1e-6; p-values, which
are float64, to the rounding of means and variances (1e-9 relative, of p-values above 1e-250).
Genes of equal scores stand in no order of scanpy's: they are compared gene by gene.
"""

from __future__ import annotations

from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import scatlas as sa

sc = pytest.importorskip("scanpy")

TESTS = ("t-test", "t-test_overestim_var", "wilcoxon")
SCORES = {"rtol": 1e-6, "atol": 1e-6}


def annotated(x: sparse.csr_matrix) -> ad.AnnData:
    n_cells, n_genes = x.shape
    labels = pd.Categorical([f"g{i % 4}" for i in range(n_cells)])
    obs = pd.DataFrame({"group": labels}, index=[f"cell{i}" for i in range(n_cells)])
    adata = ad.AnnData(x, obs, pd.DataFrame(index=[f"gene{j}" for j in range(n_genes)]))
    adata.uns["log1p"] = {"base": None}
    return adata


def logarithms(dtype: str = "float64") -> sparse.csr_matrix:
    rng = np.random.default_rng(0)
    counts = rng.poisson(rng.gamma(0.6, 2.0, 90), (320, 90)).astype(np.float64)
    counts[::4, :9] += rng.poisson(2.0, (80, 9))
    totals = counts.sum(axis=1, keepdims=True)
    return sparse.csr_matrix(np.log1p(counts / totals * 100).astype(dtype))


def by_gene(adata: ad.AnnData, group: str, reader=sc.get.rank_genes_groups_df) -> pd.DataFrame:
    table = reader(adata, group)
    assert (np.diff(table["scores"]) <= 0).all(), "the best first"
    return table.set_index("names").sort_index()


def assert_same(ours: ad.AnnData, theirs: ad.AnnData, *, reference: str = "rest") -> None:
    a, b = (adata.uns["rank_genes_groups"] for adata in (ours, theirs))
    assert a.keys() == b.keys()
    assert a["params"] == b["params"]
    for key in a.keys() - {"params", "pts", "pts_rest"}:
        assert a[key].dtype == b[key].dtype, key
    for key in a.keys() & {"pts", "pts_rest"}:
        pd.testing.assert_frame_equal(a[key], b[key], check_names=False)
    for group in a["names"].dtype.names:
        assert group != reference
        mine, scanpys = by_gene(ours, group), by_gene(theirs, group)
        assert list(mine.index) == list(scanpys.index)
        for column in ("scores", "logfoldchanges"):
            np.testing.assert_allclose(mine[column], scanpys[column], **SCORES, err_msg=column)
        for column in ("pvals", "pvals_adj"):
            kept = scanpys[column] > 1e-250
            close = {"rtol": 1e-9, "err_msg": column}
            np.testing.assert_allclose(mine[column][kept], scanpys[column][kept], **close)


@pytest.mark.parametrize("correction", ["benjamini-hochberg", "bonferroni"])
@pytest.mark.parametrize("reference", ["rest", "g2"])
@pytest.mark.parametrize("method", TESTS)
def test_scores_pvalues_and_fold_changes(method: str, reference: str, correction: str):
    ours, theirs = annotated(logarithms()), annotated(logarithms())
    options = {"method": method, "reference": reference, "corr_method": correction, "pts": True}
    sa.tl.rank_genes_groups(ours, "group", **options)
    sc.tl.rank_genes_groups(theirs, "group", **options)
    assert_same(ours, theirs, reference=reference)


# scanpy divides zero by zero where no cell expresses a gene.
@pytest.mark.filterwarnings("ignore:invalid value encountered in divide:RuntimeWarning")
@pytest.mark.parametrize("reference", ["rest", "g2"])
def test_ranks_corrected_for_ties(reference: str):
    ours, theirs = annotated(logarithms()), annotated(logarithms())
    options = {"method": "wilcoxon", "reference": reference, "tie_correct": True}
    sa.tl.rank_genes_groups(ours, "group", **options)
    sc.tl.rank_genes_groups(theirs, "group", **options)
    assert_same(ours, theirs, reference=reference)


@pytest.mark.parametrize("options", [
    {"groups": ["g0", "g3"]}, {"n_genes": 7}, {"rankby_abs": True}, {"key_added": "other"},
    {"mask_var": np.arange(90) % 3 == 0}, {"layer": "twice"},
])  # fmt: skip
def test_options(options: dict):
    found = []
    for tools in (sa.tl, sc.tl):
        adata = annotated(logarithms())
        adata.layers["twice"] = adata.X * 2
        tools.rank_genes_groups(adata, "group", method="t-test", **options)
        found.append(adata.uns[options.get("key_added", "rank_genes_groups")])
    ours, theirs = found
    assert ours["params"] == theirs["params"]
    assert ours["names"].dtype.names == theirs["names"].dtype.names
    for group in theirs["names"].dtype.names:
        np.testing.assert_allclose(ours["scores"][group], theirs["scores"][group], **SCORES)
        assert set(ours["names"][group]) == set(theirs["names"][group])


def test_coefficients_of_logistic_regression():
    """L-BFGS stops where float64 shows no fall of the loss, Newton's method at the least loss.

    So ours are compared with the latter, and have to be as near to it as scikit-learn's default.
    """

    def coefficients(tools, **options) -> pd.DataFrame:
        adata = annotated(logarithms())
        options |= {"method": "logreg", "max_iter": 10_000}
        tools.rank_genes_groups(adata, "group", **options)
        found = adata.uns["rank_genes_groups"]
        return pd.DataFrame(
            {
                group: pd.Series(found["scores"][group], index=found["names"][group])
                for group in found["names"].dtype.names
            }
        ).sort_index()

    least = coefficients(sc.tl, tol=1e-12, solver="newton-cg")
    off, scanpys_off = (
        np.abs(coefficients(tools, tol=1e-10) - least).to_numpy().max() for tools in (sa.tl, sc.tl)
    )
    assert 0 < off <= min(scanpys_off, 1e-5)


@pytest.mark.real
@pytest.mark.parametrize("method", TESTS)
def test_a_real_plate(plates_dir: Path, method: str):
    adata = ad.read_h5ad(sorted(plates_dir.glob("*.h5ad"))[0])[:400, ::20].copy()
    adata.obs["group"] = pd.Categorical([f"g{i % 3}" for i in range(adata.n_obs)])
    adata.X = sparse.csr_matrix(adata.X, dtype=np.float64)
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    ours, theirs = adata, adata.copy()
    sa.tl.rank_genes_groups(ours, "group", method=method)
    sc.tl.rank_genes_groups(theirs, "group", method=method)
    assert_same(ours, theirs)
