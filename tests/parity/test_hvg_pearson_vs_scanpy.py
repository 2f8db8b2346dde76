"""Flavour pearson_residuals against scanpy.experimental.pp.highly_variable_genes."""

from __future__ import annotations

import warnings
from importlib import import_module

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from scatlas.pp import highly_variable_genes
from tests.helpers.marked import marked_counts
from tests.helpers.stable_sort import numpy_with_stable_argsort

sc = pytest.importorskip("scanpy")

FLAVOR = {"flavor": "pearson_residuals"}
FLOATS = ("means", "variances", "residual_variances")


@pytest.fixture
def scanpy(monkeypatch):
    """scanpy's function without its warnings, with ties in the order of ``var``.

    Genes with the same counts in cells of the same totals are ties, which scanpy's rounding hides.
    """
    theirs = import_module("scanpy.experimental.pp._highly_variable_genes")

    def call(adata, **options):
        with warnings.catch_warnings(), monkeypatch.context() as patch:
            warnings.simplefilter("ignore")
            patch.setattr(theirs, "np", numpy_with_stable_argsort(digits=12))
            return sc.experimental.pp.highly_variable_genes(adata, **options)

    return call


@pytest.fixture(scope="module")
def simulated():
    """400 cells x 600 genes with markers of three types, in batches of equal size."""
    rng = np.random.default_rng(0)
    counts = marked_counts(rng)
    counts[5, 7] = 100_000
    adata = ad.AnnData(sp.csr_matrix(counts.astype(np.float64)))
    adata.var_names = [f"g{i}" for i in rng.permutation(600)]
    adata.obs["batch"] = pd.Categorical(rng.permutation(np.repeat(["x", "y", "z", "w"], 100)))
    return adata


def same(got, expected, rtol=1e-11):
    assert list(got) == list(expected)
    assert got.dtypes.tolist() == expected.dtypes.tolist()
    assert got.index.equals(expected.index)
    for column in got:
        ours, theirs = got[column], expected[column]
        if column in FLOATS:
            room = 1e-14 * expected[column].max()
            np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=room, err_msg=column)
        else:
            assert ours.equals(theirs), column


OPTIONS = [
    {"n_top_genes": 50},
    {"n_top_genes": 150, "theta": 7.5},
    {"n_top_genes": 1000, "clip": 3.0},
    {"n_top_genes": 20, "theta": np.inf, "clip": np.inf},
]


@pytest.mark.parametrize("batch_key", [None, "batch"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_simulated(simulated, scanpy, block_loads, options, batch_key):
    options = {"batch_key": batch_key, "inplace": False, **FLAVOR, **options}
    expected = scanpy(simulated, **options)
    for x in (
        simulated.X,
        simulated.X.tocsc(),
        simulated.X.toarray(),
        simulated.X.astype(np.int32),
        simulated.X.astype(np.float32),
        block_loads.dask(simulated.X, 57),
    ):
        ours = ad.AnnData(x, obs=simulated.obs, var=simulated.var)
        same(highly_variable_genes(ours, **options), expected)


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_other_types_of_scanpy(simulated, scanpy, dtype):
    """scanpy multiplies float32 in float32, and has other code for dense X."""
    for make in (np.asarray, sp.csr_matrix):
        adata = simulated.copy()
        adata.X = make(simulated.X.toarray()).astype(dtype)
        for batch_key in (None, "batch"):
            options = {"batch_key": batch_key, "inplace": False, "n_top_genes": 40, **FLAVOR}
            rtol = 1e-11 if dtype == "int64" else 1e-4
            same(highly_variable_genes(adata, **options), scanpy(adata, **options), rtol)


def test_in_place_subset_and_layer(simulated, scanpy):
    for batch_key in (None, "batch"):
        options = {"batch_key": batch_key, "n_top_genes": 60, **FLAVOR}
        expected, got = simulated.copy(), simulated.copy()
        scanpy(expected, **options)
        assert highly_variable_genes(got, **options) is None
        assert got.uns["hvg"] == expected.uns["hvg"]
        same(got.var, expected.var)
        same(
            highly_variable_genes(got, subset=True, inplace=False, **options),
            scanpy(expected, subset=True, inplace=False, **options),
        )
        for adata in (expected, got):
            adata.layers["counts"] = adata.X
        options["layer"] = "counts"
        scanpy(expected, subset=True, **options)
        highly_variable_genes(got, subset=True, **options)
        assert got.uns["hvg"] == expected.uns["hvg"]
        assert got.shape == (400, 60)
        same(got.var, expected.var)


def test_batches_of_other_sizes_are_clipped_at_their_own_bound(simulated, scanpy):
    """scanpy clips later batches at the first one's bound, unlike batches alone."""
    adata = simulated.copy()
    adata.obs["batch"] = np.where(np.arange(400) < 30, "a", "b")
    options = {"n_top_genes": 40, "inplace": False, **FLAVOR}
    alone = [scanpy(adata[adata.obs["batch"] == b].copy(), **options) for b in "ab"]
    mean = np.mean([part["residual_variances"] for part in alone], axis=0)
    ours = highly_variable_genes(adata, batch_key="batch", **options)["residual_variances"]
    theirs = scanpy(adata, batch_key="batch", **options)["residual_variances"]
    np.testing.assert_allclose(ours, mean, rtol=1e-11, atol=1e-12)
    assert np.abs(theirs - mean).max() > 0.1


def test_values_that_are_no_counts(simulated, scanpy):
    """Both give the same warning and continue."""
    adata = simulated[:, :200].copy()
    adata.X.data *= np.random.default_rng(1).gamma(3.0, 0.4, adata.X.nnz)
    options = {"n_top_genes": 40, "inplace": False, **FLAVOR}
    with pytest.warns(UserWarning, match="expects raw count data") as theirs:
        sc.experimental.pp.highly_variable_genes(adata, **options)
    with pytest.warns(UserWarning, match="expects raw count data") as ours:
        got = highly_variable_genes(adata, **options)
    assert [str(w.message) for w in ours] == [str(w.message) for w in theirs]
    same(got, scanpy(adata, check_values=False, **options))


@pytest.mark.real
@pytest.mark.parametrize("plate", [1, 2, 3, 4, 5])
def test_real_plates(plates_dir, scanpy, plate):
    adata = ad.read_h5ad(plates_dir / f"mix_plate{plate}.h5ad")
    adata.X = sp.csr_matrix(adata.X).astype(np.float64)
    keep = adata.n_obs // 2 * 2
    adata = adata[:keep].copy()
    adata.obs["half"] = pd.Categorical(np.where(np.arange(keep) % 2, "odd", "even"))
    for batch_key in (None, "half"):
        options = {"batch_key": batch_key, "n_top_genes": 2000, "inplace": False, **FLAVOR}
        same(highly_variable_genes(adata, **options), scanpy(adata, **options))
