"""Logistic regression of rank_genes_groups: loss and gradient, passes, options, errors."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import scatlas as sa
from scatlas.kernels.ranking import logreg_cpu
from scatlas.matrix import logistic

KEY = "rank_genes_groups"


def values(rng: np.random.Generator, dtype: str, shape: tuple[int, int] = (70, 9)) -> np.ndarray:
    x = rng.poisson(0.9, shape) * (rng.normal(size=shape) if dtype.startswith("f") else 1)
    x[:, 4], x[5] = 0, 0
    return x.astype(dtype)


def reference_loss(
    x: np.ndarray, codes: np.ndarray, coef: np.ndarray, weights: np.ndarray
) -> tuple[float, np.ndarray]:
    """Loss and gradient [genes + 1, columns] of the cells with a class, in float64."""
    x, codes = x[codes >= 0].astype(float), codes[codes >= 0]
    x = np.column_stack([x, np.ones(len(x))])
    scores = x @ coef
    if coef.shape[1] == 1:
        scores = np.column_stack([np.zeros(len(x)), scores])
    of_all = np.logaddexp.reduce(scores, axis=1)
    rows = np.arange(len(x))
    residuals = np.exp(scores - of_all[:, None])
    residuals[rows, codes] -= 1
    residuals *= weights[codes][:, None]
    gradient = x.T @ residuals
    loss = (weights[codes] * (of_all - scores[rows, codes])).sum()
    return loss, gradient[:, 1:] if coef.shape[1] == 1 else gradient


def marked(make_adata: Any, x: Any) -> ad.AnnData:
    """Three groups of 60 cells, of which x differs."""
    adata = make_adata(x)
    adata.obs["pair"] = pd.Categorical(np.where(np.arange(60) % 2, "p", "q"), ["q", "p"])
    return adata


def logged(counts: Any, dtype: Any = np.float64) -> np.ndarray:
    return np.log1p(counts.toarray()).astype(dtype)


def coefs(adata: ad.AnnData) -> pd.DataFrame:
    found = adata.uns[KEY]
    groups = found["names"].dtype.names
    series = {g: pd.Series(found["scores"][g], found["names"][g]) for g in groups}
    return pd.DataFrame(series).reindex(adata.var_names)


# --- loss and gradient ------------------------------------------------------------------------


@pytest.mark.parametrize("n_classes", [2, 3, 6, 8, 9])
@pytest.mark.parametrize("kind", ["dense", "csr", "uint16"])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64", "bool"])
def test_loss_and_gradient(dtype, kind, n_classes):
    rng = np.random.default_rng(0)
    x = values(rng, dtype)
    codes = rng.integers(-1, n_classes, 70)
    coef = rng.normal(size=(10, 1 if n_classes == 2 else n_classes))
    weights = rng.random(n_classes) + 0.5
    made = x if kind == "dense" else sparse.csr_matrix(x)
    if kind == "uint16":
        made.indices = made.indices.astype(np.uint16)
    most = logreg_cpu.max_abs_per_gene(made, codes)
    np.testing.assert_array_equal(most, np.abs(x[codes >= 0].astype(float)).max(axis=0))
    scales = logreg_cpu.gradient_scales(most, 70, weights.max())
    found = logreg_cpu.loss_and_gradient(
        made, codes, logreg_cpu.LogisticModel(coef, scales, weights)
    )
    loss, gradient = reference_loss(x, codes, coef, weights)
    np.testing.assert_allclose(found.loss, loss, rtol=1e-14)
    np.testing.assert_allclose(found.gradient / scales[:, None], gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n_classes", [2, 5, 11])
def test_cells_and_classes_at_once_do_not_show(n_classes, monkeypatch):
    rng = np.random.default_rng(0)
    x, codes = values(rng, "float32"), rng.integers(-1, n_classes, 70)
    coef = rng.normal(size=(10, 1 if n_classes == 2 else n_classes))
    scales = logreg_cpu.gradient_scales(logreg_cpu.max_abs_per_gene(x, codes), 70, 1.0)
    model = logreg_cpu.LogisticModel(coef, scales, np.ones(n_classes))
    whole = logreg_cpu.loss_and_gradient(x, codes, model)
    for n_scores, n_bytes in ((1, 2**20), (60, 250), (100, 80)):
        monkeypatch.setattr(logreg_cpu, "_SCORES_AT_ONCE", n_scores)
        monkeypatch.setattr(logreg_cpu, "_TILE_BYTES", n_bytes)
        found = logreg_cpu.loss_and_gradient(x, codes, model)
        np.testing.assert_array_equal(found.gradient, whole.gradient)
        assert found.loss == whole.loss


def test_scores_that_are_far_apart():
    """No probability overflows, and none that is 0 or 1 is not a number."""
    x = np.array([[1.0], [-1.0]])
    for n_classes in (2, 3):
        coef = np.zeros((2, 1 if n_classes == 2 else 3))
        coef[0, -1] = 5000.0
        model = logreg_cpu.LogisticModel(coef, np.ones(2) * 2.0**40, np.ones(n_classes))
        for code, expected in ((0, 5000.0), (n_classes - 1, 0.0)):
            found = logreg_cpu.loss_and_gradient(x, np.array([code, -1]), model)
            assert found.loss == expected
            assert found.gradient[0, -1] == (2**40 if code == 0 else 0)


@pytest.mark.parametrize("n_cells", [1, 60, 10**5, 10**8])
@pytest.mark.parametrize("most", [0.0, 1e-320, 0.3, 1.0, 1e6, 1e300])
def test_sums_fit_64_bits(most, n_cells):
    scales = logreg_cpu.gradient_scales(np.array([most, 1.0]), n_cells, 3.7)
    assert np.isfinite(scales).all()
    for size, scale in zip((most, 1.0, 1.0), scales, strict=True):
        assert np.log2(scale) % 1 == 0
        one = size * 3.7 * scale
        assert one < 2**51
        assert one * n_cells < 2**62
        # Finer than a part in 2^24 of a mean even of 10^8 cells.
        assert size < 1e-200 or one * n_cells > 2**48


# --- the public functions ---------------------------------------------------------------------


def test_two_groups_have_one_set_of_coefficients(counts, make_adata):
    """The second category's, under the first group's name, as scanpy has it."""
    x = logged(counts)
    x[:, 7] = np.arange(60) % 2 == 1  # marks p, the second category
    adata = marked(make_adata, x)
    for groups in ("all", ["q", "p"], ["p", "q"]):
        sa.tl.rank_genes_groups_logreg(adata, "pair", groups=groups)
        first = "p" if groups == ["p", "q"] else "q"
        assert adata.uns[KEY]["names"].dtype.names == (first,)
        assert adata.uns[KEY]["names"][first][0] == adata.var_names[7]


def test_one_name_for_both(counts, make_adata):
    adata = marked(make_adata, logged(counts))
    options = {"C": 0.2, "tol": 1e-6, "fit_intercept": False, "class_weight": "balanced"}
    options |= {"n_genes": 9, "rankby_abs": True, "groups": ["b2", "b0", "b1"], "penalty": "l2"}
    one = sa.tl.rank_genes_groups_logreg(adata, "batch", copy=True, key_added="k", **options)
    other = sa.tl.rank_genes_groups(
        *(adata, "batch"),
        **{"copy": True, "method": "logreg", "solver": "lbfgs", "random_state": 3, **options},
    )
    assert KEY not in adata.uns
    for name in ("names", "scores"):
        np.testing.assert_array_equal(one.uns["k"][name], other.uns[KEY][name])
    assert one.uns["k"]["params"] == other.uns[KEY]["params"]
    assert other.uns[KEY]["params"]["method"] == "logreg"
    assert set(other.uns[KEY]) == {"params", "names", "scores"}
    assert one.uns["k"]["scores"].dtype.names == ("b2", "b0", "b1")
    plain_one = sa.tl.rank_genes_groups_logreg(adata, "batch", copy=True)
    assert plain_one.uns[KEY]["names"].shape == (50,)


def test_passes(dask_type, counts, make_adata, block_loads, monkeypatch, caplog):
    """One where the cells fit the memory; one for each evaluation where they do not."""
    caplog.set_level(logging.INFO, "scatlas")
    x = logged(counts, np.float32)
    results = []
    for groups in ("all", ["b0", "b2"]):
        for budget, kept in ((10**6, True), (1000, False), (0, False)):
            block_loads.reset()
            caplog.clear()
            monkeypatch.setattr(logistic, "memory_budget", lambda x, n=budget: n)
            adata = marked(make_adata, dask_type(x))
            sa.tl.rank_genes_groups_logreg(adata, "batch", groups=groups)
            evaluations = int(caplog.text.partition("logreg: ")[2].split()[0])
            n = block_loads.per_block()[-1]
            assert n == (1 if kept else 1 + evaluations)
            assert f"{evaluations} evaluations, {n} passes" in caplog.text
            assert evaluations > 3
            results.append(adata.uns[KEY]["scores"].tobytes())
            block_loads.assert_unchanged()
    assert results[0] == results[1] == results[2]
    assert results[3] == results[4] == results[5] != results[0]
    assert sa.tl.rank_genes_groups_logreg.passes == 1


def test_a_matrix_in_memory_is_not_copied(counts, make_adata, monkeypatch):
    monkeypatch.setattr(logistic, "memory_budget", lambda x: pytest.fail("asked"))
    for x in (logged(counts), sparse.csr_matrix(logged(counts))):
        sa.tl.rank_genes_groups_logreg(marked(make_adata, x), "batch")


def test_it_says_when_it_has_not_converged(counts, make_adata):
    adata = marked(make_adata, logged(counts))
    with pytest.warns(UserWarning, match="not converged after 2 iterations .*raise max_iter=2"):
        sa.tl.rank_genes_groups_logreg(adata, "batch", max_iter=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sa.tl.rank_genes_groups_logreg(adata, "batch")


def test_less_penalty_makes_larger_coefficients(counts, make_adata):
    adata = marked(make_adata, logged(counts))
    sizes = []
    for options in ({"C": 0.01}, {"C": 1.0}, {"penalty": None, "max_iter": 20}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sa.tl.rank_genes_groups_logreg(adata, "batch", **options)
        sizes.append(float((coefs(adata) ** 2).to_numpy().sum()))
    assert sizes[0] < sizes[1] < sizes[2]


def test_pts_are_not_there_and_the_log_says_so(counts, make_adata, caplog):
    adata = marked(make_adata, logged(counts))
    sa.tl.rank_genes_groups(adata, "batch", method="logreg", pts=True)
    assert "pts" not in adata.uns[KEY]
    assert "pts are not computed" in caplog.text
