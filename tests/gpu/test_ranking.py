"""Ranked genes on the GPU: the CPU's bits for tests, its digits for logistic regression."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

cp = pytest.importorskip("cupy")

import anndata as ad  # noqa: E402

import scatlas as sa  # noqa: E402
from scatlas.errors import InputError  # noqa: E402
from scatlas.kernels.ranking import logreg_cpu, logreg_gpu, rank_sums_cpu, rank_sums_gpu  # noqa: E402
from scatlas.matrix import logistic  # noqa: E402
from scatlas.tl import _rank_sums  # noqa: E402
from tests.gpu.kernel_calls import ranked  # noqa: E402

KEY = "rank_genes_groups"
TESTS = ("t-test", "t-test_overestim_var", "wilcoxon")


def some_block(rng, dtype, n=301, genes=97):
    """Counts, or reals of both signs and many sizes, with ties, empty rows and genes."""
    x = rng.poisson(0.7, (n, genes)).astype(float)
    if np.dtype(dtype).kind in "if":
        x *= rng.choice([-1, 1, 2], x.shape)
    if np.dtype(dtype).kind == "f":
        x *= np.where(rng.random(x.shape) < 0.5, rng.normal(size=x.shape), 0.1)
    x[::9], x[:, ::11] = 0, 0
    return x.astype(dtype)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
def test_ranks_of_several_blocks(gpu_block, rng, dtype):
    x, codes = some_block(rng, dtype), rng.integers(-1, 5, 301)
    wanted = rng.permutation(97)[:40]
    for made in (x, sp.csr_matrix(x)):
        for reference in (None, 0, 3):
            sides = []
            for kernels, copied in ((rank_sums_cpu, lambda part: part), (rank_sums_gpu, gpu_block)):
                spans = [slice(*span) for span in pairwise((0, 100, 100, 301))]
                parts = [(copied(made[rows]), codes[rows]) for rows in spans]
                sides.append(ranked(kernels, parts, (x, codes), wanted, 5, reference))
            assert sides[0].ranks.any()
            assert sides[0].ties.any()
            for expected, got in zip(*sides, strict=True):
                assert isinstance(got, np.ndarray)
                np.testing.assert_array_equal(got, expected)


def test_a_key_holds_gene_and_group():
    for n_groups in (1, 2, 300, 70_000):
        assert rank_sums_gpu.max_genes_at_once(n_groups) * n_groups <= 2**32


# --- logistic regression ----------------------------------------------------------------------


@pytest.mark.parametrize("n_classes", [2, 3, 5, 32, 33, 100])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float32", "float64"])
def test_loss_and_gradient_of_the_cpu(gpu_block, rng, dtype, n_classes):
    x = some_block(rng, dtype)
    codes = rng.integers(-1, n_classes, 301)
    coef = rng.normal(size=(98, 1 if n_classes == 2 else n_classes))
    weights = rng.random(n_classes) + 0.5
    for made in (x, sp.csr_matrix(x)):
        most = logreg_cpu.max_abs_per_gene(made, codes)
        block = gpu_block(made)
        np.testing.assert_array_equal(logreg_gpu.max_abs_per_gene(block, codes), most)
        scales = logreg_cpu.gradient_scales(most, 301, weights.max())
        model = logreg_cpu.LogisticModel(coef, scales, weights)
        expected = logreg_cpu.loss_and_gradient(made, codes, model)
        found = logreg_gpu.loss_and_gradient(block, codes, model)
        np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-13)
        got, want = found.gradient.get() / scales[:, None], expected.gradient / scales[:, None]
        np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-11)
        expected_scores = logreg_cpu.class_scores(made, coef)
        scores = logreg_gpu.class_scores(block, coef)
        np.testing.assert_allclose(scores, expected_scores, rtol=1e-12, atol=1e-12)
        again = logreg_gpu.loss_and_gradient(block, codes, model)
        assert bool((again.gradient == found.gradient).all())
        assert again.loss == found.loss
        halves = [
            logreg_gpu.loss_and_gradient(gpu_block(made[rows]), codes[rows], model)
            for rows in (slice(150), slice(150, 301))
        ]
        merged = logreg_cpu.merge(halves)
        assert bool((merged.gradient == found.gradient).all())
        assert merged.loss == found.loss


def test_values_that_are_not_finite(gpu_block, rng):
    x = some_block(rng, "float32")
    x[4, 5], x[6, 7], x[8, 9] = np.nan, np.inf, -np.inf
    most = logreg_gpu.max_abs_per_gene(gpu_block(x), np.zeros(301, dtype=np.int64))
    assert np.flatnonzero(~np.isfinite(most)).tolist() == [5, 7, 9]


# --- the public function ----------------------------------------------------------------------


def annotated(rng, kind: str, dtype: str) -> tuple[ad.AnnData, ad.AnnData]:
    """The same data on the CPU and on the GPU."""
    x = np.abs(some_block(rng, dtype))
    obs = pd.DataFrame({"g": pd.Categorical.from_codes(rng.integers(-1, 4, 301), list("abcd"))})
    obs.index = [f"c{i}" for i in range(301)]
    var = pd.DataFrame({"some": np.arange(97) % 3 > 0}, index=[f"g{i}" for i in range(97)])
    made: Any = x if kind == "dense" else sp.csr_matrix(x)
    if kind.startswith("dask"):
        import dask.array as da

        made = da.from_array(x if kind == "dask-dense" else made, chunks=(40, -1), asarray=False)
    cpu = ad.AnnData(X=sp.csr_matrix(x), obs=obs, var=var)
    return cpu, ad.AnnData(X=sa.get.X_to_GPU(made, exact=True), obs=obs, var=var)


def bits(adata):
    found = adata.uns[KEY]
    arrays = [found[name].tolist() for name in found if name not in ("params", "pts", "pts_rest")]
    return arrays + [
        found[name].to_numpy().tolist() for name in ("pts", "pts_rest") if name in found
    ]


@pytest.mark.parametrize("kind", ["csr", "dask-csr"])
def test_wilcoxon_in_several_passes(rng, kind, monkeypatch):
    cpu, gpu = annotated(rng, kind, "float32")
    sa.tl.rank_genes_groups(cpu, "g", method="wilcoxon")
    for budget in (1, 40 * 1000):
        monkeypatch.setattr(_rank_sums, "memory_budget", lambda x, n=budget: n)
        sa.tl.rank_genes_groups(gpu, "g", method="wilcoxon")
        assert bits(gpu) == bits(cpu)


def test_less_at_a_time_where_there_is_no_memory(rng, monkeypatch, caplog):
    cpu, gpu = annotated(rng, "csr", "float32")
    sa.tl.rank_genes_groups(cpu, "g", method="wilcoxon")
    bytes_of = rank_sums_gpu.bytes_per_value
    monkeypatch.setattr(_rank_sums, "memory_budget", lambda x: 2**62)
    # All of them would need half a terabyte, more than any GPU has.
    monkeypatch.setattr(rank_sums_gpu, "bytes_per_value", lambda *args: bytes_of(*args) * 10**6)
    sa.tl.rank_genes_groups(gpu, "g", method="wilcoxon")
    assert bits(gpu) == bits(cpu)
    assert "no memory for the values of" in caplog.text
    cp.get_default_memory_pool().free_all_blocks()


@pytest.mark.parametrize("groups", ["all", ["a", "c"]])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logreg(rng, dtype, groups, monkeypatch):
    results = {"dense": [], "csr": []}
    for kind in ("dense", "csr", "dask-csr", "dask-dense"):
        cpu, gpu = annotated(np.random.default_rng(1), kind, dtype)
        options = {"groups": groups, "C": 0.1, "tol": 1e-8, "max_iter": 3000}
        sa.tl.rank_genes_groups_logreg(cpu, "g", **options)
        for budget in (2**40, 0):
            monkeypatch.setattr(logistic, "memory_budget", lambda x, n=budget: n)
            sa.tl.rank_genes_groups_logreg(gpu, "g", **options)
            results[kind.removeprefix("dask-")].append(bits(gpu))
        for group in cpu.uns[KEY]["names"].dtype.names:
            expected, got = (
                pd.Series(a.uns[KEY]["scores"][group], a.uns[KEY]["names"][group])
                for a in (cpu, gpu)
            )
            np.testing.assert_allclose(got.reindex(expected.index), expected, atol=1e-4)
    # The result depends neither on the blocks nor on the values that are kept.
    for found in results.values():
        assert len(found) == 4
        assert all(result == found[0] for result in found[1:])


@pytest.mark.parametrize("method", [*TESTS, "logreg"])
def test_errors(rng, method):
    _, gpu = annotated(rng, "dense", "float32")
    gpu.X[3, 7] = cp.nan
    gpu.obs["g"] = gpu.obs["g"].cat.add_categories("e").fillna("e")
    with pytest.raises(InputError, match="gene 'g7' has NaN"):
        sa.tl.rank_genes_groups(gpu, "g", method=method)
