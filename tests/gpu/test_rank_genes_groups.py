"""Genes ranked on the GPU as on the CPU: the same ranks to the bit, tests to rounding."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

cp = pytest.importorskip("cupy")

import anndata as ad  # noqa: E402

import scatlas as sa  # noqa: E402

METHODS = ("t-test", "t-test_overestim_var", "wilcoxon", "logreg")
EXACT = "wilcoxon"


def annotated(x) -> ad.AnnData:
    n_cells, n_genes = x.shape
    labels = pd.Categorical([f"g{i % 4}" for i in range(n_cells)])
    obs = pd.DataFrame({"group": labels}, index=[f"cell{i}" for i in range(n_cells)])
    return ad.AnnData(x, obs, pd.DataFrame(index=[f"gene{j}" for j in range(n_genes)]))


def logarithms(rng, dtype) -> sp.csr_matrix:
    """Some genes mark a group, many values tie, and some are negative."""
    counts = rng.poisson(0.8, (240, 61)).astype(dtype)
    counts[::4, :6] += rng.poisson(2.0, (60, 6)).astype(dtype)
    x = np.log1p(counts)
    x[:, 7] -= 0.5
    return sp.csr_matrix(x.astype(dtype))


def on_gpu(x, kind: str):
    if kind == "dense":
        return cp.asarray(x.toarray())
    moved = sa.get.anndata_to_GPU(annotated(x), copy=True).X
    if kind == "csr":
        return moved
    import dask.array as da

    lazy = da.from_array(x, chunks=(71, x.shape[1]), asarray=False)
    return sa.get.anndata_to_GPU(annotated(lazy), copy=True).X


@pytest.mark.parametrize("kind", ["dense", "csr", "dask"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("reference", ["rest", "g1"])
@pytest.mark.parametrize("method", METHODS)
def test_the_cpus_ranking(rng, method, reference, dtype, kind):
    x = logarithms(rng, dtype)
    options = {"reference": reference, "method": method, "pts": method != "logreg"}
    options |= {"tie_correct": True} if method == "wilcoxon" else {}
    cpu, gpu = annotated(x), annotated(on_gpu(x, kind))
    for adata in (cpu, gpu):
        sa.tl.rank_genes_groups(adata, "group", **options)
    theirs, ours = (adata.uns["rank_genes_groups"] for adata in (cpu, gpu))
    assert theirs.keys() == ours.keys()
    for key in theirs.keys() - {"params"}:
        a, b = theirs[key], ours[key]
        if isinstance(a, pd.DataFrame):
            pd.testing.assert_frame_equal(a, b)
            continue
        assert a.dtype == b.dtype
        for group in a.dtype.names:
            if key == "names" and method == "logreg":
                continue  # coefficients that differ in the last place may change places
            if a[group].dtype.kind == "O" or method == EXACT:
                np.testing.assert_array_equal(a[group], b[group], f"{key} of {group}")
            else:
                tolerance = {"rtol": 1e-4, "atol": 1e-5} if method == "logreg" else {"rtol": 1e-6}
                np.testing.assert_allclose(a[group], b[group], **tolerance, err_msg=key)


def test_ranks_do_not_depend_on_the_memory(rng, monkeypatch):
    from scatlas.tl import _rank_sums

    x = logarithms(rng, "float32")
    found = []
    for part in (_rank_sums._PART, 1e-9):  # all genes at once, one at a time
        monkeypatch.setattr(_rank_sums, "_PART", part)
        adata = annotated(on_gpu(x, "csr"))
        sa.tl.rank_genes_groups(adata, "group", method="wilcoxon")
        found.append(adata.uns["rank_genes_groups"]["scores"].tobytes())
    assert found[0] == found[1]
