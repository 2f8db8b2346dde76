"""sa.get.aggregate agrees with sc.get.aggregate, except for errors of scanpy 1.11.

scanpy 1.12 mended them, and counts the cells of the groups as scatlas does.

Layers agree up to the rounding of scanpy's arithmetic: sums of products with 1.0 in float64,
squares in the type of X, E[x²] - E[x]² for the variance.
"""

from __future__ import annotations

from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import scatlas as sa
from tests.helpers.scanpy_version import SCANPY_112

sc = pytest.importorskip("scanpy")

FUNCS = ["sum", "mean", "var", "count_nonzero", "median"]
DTYPES = ["int32", "uint16", "float32", "float64"]
FLOAT64 = 1e-11
# For float32 scanpy computes squares and the mean of the two middle values in float32.
FLOAT32 = {"var": 3e-7, "median": 1e-7}


def annotated(make: Any, dtype: str, *, n: int = 300, genes: int = 40, seed: int = 0) -> ad.AnnData:
    """Counts or reals of both signs; three columns to group cells by, one to group genes by."""
    rng = np.random.default_rng(seed)
    x = rng.poisson(rng.gamma(0.5, 3.0, genes), (n, genes)).astype(np.float64)
    if dtype.startswith("float"):
        x *= rng.normal(size=x.shape)
    obs = pd.DataFrame(
        {
            "line": pd.Categorical(rng.choice(list("cab"), n), categories=list("zcba")),
            "drug": rng.choice(["d10", "d2", "d1"], n),
            "dose": rng.choice([0.5, 10, 2], n),
        },
        index=[f"cell{i}" for i in range(n)],
    )
    var = pd.DataFrame(
        {"set": rng.choice(["p", "q", "r"], genes)}, index=[f"g{i}" for i in range(genes)]
    )
    return ad.AnnData(X=make(x.astype(dtype)), obs=obs, var=var)


def assert_same(
    ours: ad.AnnData, theirs: ad.AnnData, dtype: str = "float64", *, columns: str = "obs"
) -> None:
    """Check for equal groups, tables and layers; scanpy 1.11 has no numbers of cells."""
    own, other = getattr(ours, columns), getattr(theirs, columns)
    if not SCANPY_112:
        own = own.drop(columns="n_obs_aggregated")
    pd.testing.assert_frame_equal(own, other)
    pd.testing.assert_frame_equal(
        *(getattr(adata, {"obs": "var", "var": "obs"}[columns]) for adata in (ours, theirs))
    )
    assert sorted(ours.layers) == sorted(theirs.layers)
    assert ours.X is None
    assert theirs.X is None
    for name, layer in theirs.layers.items():
        rtol = FLOAT32.get(name, FLOAT64) if dtype == "float32" else FLOAT64
        atol = rtol * np.abs(layer).max()
        np.testing.assert_allclose(ours.layers[name], layer, rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize("by", ["line", "dose", ["line", "drug"], ["dose", "drug", "line"]])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix, sparse.csc_matrix])
def test_cells(make, dtype, by):
    adata = annotated(make, dtype)
    theirs = sc.get.aggregate(adata, by, FUNCS)
    assert_same(sa.get.aggregate(adata, by, FUNCS), theirs, dtype)
    assert theirs.n_obs in (3, 9, 27), "a premise of this test"


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_dask(block_loads, dtype):
    adata = annotated(sparse.csr_matrix, dtype)
    theirs = sc.get.aggregate(adata, ["line", "drug"], FUNCS)
    adata.X = block_loads.dask(adata.X, 37)
    assert_same(sa.get.aggregate(adata, ["line", "drug"], FUNCS), theirs, dtype)


@pytest.mark.parametrize("func", [*FUNCS, ["var", "mean"], ["sum", "median"]])
def test_one_function_or_some(func):
    adata = annotated(sparse.csr_matrix, "int32")
    assert_same(sa.get.aggregate(adata, "line", func), sc.get.aggregate(adata, "line", func))


@pytest.mark.parametrize("dof", [0, 1, 3])
def test_degrees_of_freedom(dof):
    adata = annotated(sparse.csr_matrix, "float64")
    ours, theirs = (f(adata, "drug", "var", dof=dof) for f in (sa.get.aggregate, sc.get.aggregate))
    assert_same(ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix, sparse.csc_matrix])
def test_genes(make, dtype):
    adata = annotated(make, dtype)
    for axis in (1, "var"):
        theirs = sc.get.aggregate(adata, "set", FUNCS, axis=axis)
        ours = sa.get.aggregate(adata, "set", FUNCS, axis=axis)
        assert_same(ours, theirs, dtype, columns="var")


def test_layer_obsm_varm():
    adata = annotated(sparse.csr_matrix, "int32")
    rng = np.random.default_rng(1)
    adata.layers["twice"] = adata.X * 2
    adata.obsm["array"] = rng.normal(size=(300, 5))
    adata.obsm["table"] = pd.DataFrame(adata.obsm["array"], adata.obs_names, list("vwxyz"))
    adata.varm["loadings"] = rng.normal(size=(40, 3))
    for options in ({"layer": "twice"}, {"obsm": "array"}, {"obsm": "table"}):
        by = ["line", "dose"]
        ours, theirs = (
            f(adata, by, FUNCS, **options) for f in (sa.get.aggregate, sc.get.aggregate)
        )
        assert_same(ours, theirs)
    for options in ({"varm": "loadings"}, {"layer": "twice", "axis": 1}):
        ours, theirs = (
            f(adata, "set", FUNCS, **options) for f in (sa.get.aggregate, sc.get.aggregate)
        )
        assert_same(ours, theirs, columns="var")


@pytest.mark.parametrize("dtype", ["int32", "float64"])
@pytest.mark.parametrize("name", [None, "chosen"])
def test_mask(dtype, name):
    """Sums and nonzero values as scanpy's; others as scanpy's for the remaining cells."""
    adata = annotated(sparse.csr_matrix, dtype)
    mask = np.random.default_rng(2).random(300) < 0.6
    adata.obs["chosen"] = mask
    ours = sa.get.aggregate(adata, ["line", "drug"], FUNCS, mask=name or mask)
    masked = sc.get.aggregate(adata, ["line", "drug"], ["sum", "count_nonzero"], mask=name or mask)
    left = sc.get.aggregate(adata[mask].copy(), ["line", "drug"], FUNCS)
    for theirs in (masked, left):
        assert theirs.obs_names.tolist() == ours.obs_names.tolist()
        for key, layer in theirs.layers.items():
            atol = FLOAT64 * np.abs(layer).max()
            np.testing.assert_allclose(ours.layers[key], layer, rtol=FLOAT64, atol=atol)
    sizes = adata.obs[mask].groupby(["line", "drug"], observed=True).size()
    assert ours.obs["n_obs_aggregated"].tolist() == sizes.tolist()


def test_masked_means_of_scanpy_divide_by_all_cells():
    """Reason of the difference: scverse/scanpy #4178, mended in 1.12."""
    adata = annotated(sparse.csr_matrix, "int32")
    mask = np.arange(300) % 2 == 0
    theirs = sc.get.aggregate(adata, "line", ["mean", "sum"], mask=mask)
    ours = sa.get.aggregate(adata, "line", ["mean", "sum"], mask=mask)
    everyone = adata.obs["line"].cat.remove_unused_categories().value_counts(sort=False).to_numpy()
    divided = ours.layers["mean" if SCANPY_112 else "sum"]
    if not SCANPY_112:
        divided = divided / everyone[:, None]
        assert not np.allclose(divided, ours.layers["mean"])
    np.testing.assert_allclose(theirs.layers["mean"], divided)


def test_missing_values():
    """As scanpy for cells without missing values; scanpy puts the others into wrong groups."""
    adata = annotated(sparse.csr_matrix, "int32")
    rng = np.random.default_rng(3)
    adata.obs.loc[rng.random(300) < 0.2, "line"] = np.nan
    adata.obs.loc[rng.random(300) < 0.2, "dose"] = np.nan
    known = adata.obs[["line", "dose"]].notna().all(axis=1).to_numpy()
    theirs = sc.get.aggregate(adata[known].copy(), ["line", "dose"], FUNCS)
    assert_same(sa.get.aggregate(adata, ["line", "dose"], FUNCS), theirs)


def test_deep_cells_are_summed_exactly():
    """With a mask scanpy sums float32 in float32: wrong above 2^24."""
    x = np.full((3, 1), 2**24 + 2, dtype=np.float32)
    x[1] = 1
    adata = ad.AnnData(X=x, obs=pd.DataFrame({"g": ["a"] * 3}, index=list("xyz")))
    mask = np.ones(3, dtype=bool)
    assert sa.get.aggregate(adata, "g", "sum", mask=mask).layers["sum"] == 2**25 + 5
    theirs = sc.get.aggregate(adata, "g", "sum", mask=mask).layers["sum"]
    assert (theirs == 2**25 + 5) == SCANPY_112


@pytest.mark.real
def test_a_real_plate(plates_dir):
    adata = ad.read_h5ad(plates_dir / "mix_plate1.h5ad")
    column = next(name for name in adata.obs if 1 < adata.obs[name].nunique() < 20)
    adata.obs["half"] = np.where(np.arange(adata.n_obs) % 2, "odd", "even")
    theirs = sc.get.aggregate(adata, [column, "half"], FUNCS)
    ours = sa.get.aggregate(adata, [column, "half"], FUNCS)
    assert_same(ours, theirs, "float32")
    lazy = sa.read_lazy(plates_dir / "mix_plate1.h5ad", block_budget="4MB")
    lazy.obs["half"] = adata.obs["half"]
    again = sa.get.aggregate(lazy, [column, "half"], FUNCS)
    for name in FUNCS:
        np.testing.assert_array_equal(again.layers[name], ours.layers[name])
