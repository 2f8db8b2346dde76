"""sa.pp.regress_out agrees with sc.pp.regress_out up to scanpy's rounding."""

from __future__ import annotations

import inspect
import warnings

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import scatlas as sa
from tests.helpers.marked import marked_counts

sc = pytest.importorskip("scanpy")

# float32 results have a relative rounding of 6e-8, for values of up to 50.
TOLERANCE = {"float32": {"rtol": 2e-7, "atol": 3e-6}, "float64": {"rtol": 1e-9, "atol": 1e-10}}


def annotated(make, dtype, seed=0):
    """150 cells x 600 genes: counts, or their logarithms."""
    rng = np.random.default_rng(seed)
    counts = marked_counts(rng)[:150]
    x = counts if np.dtype(dtype).kind in "iu" else np.log1p(counts)
    obs = pd.DataFrame(
        {
            "total": counts.sum(axis=1),
            "fraction": rng.random(150),
            "days": rng.integers(0, 30, 150).astype(np.int16),
            "line": pd.Categorical(rng.choice(list("dbc"), 150), categories=list("zdcb")),
            "text": rng.choice(["p", "q"], 150),
            "nothing": 0.0,
        },
        index=[f"cell{i}" for i in range(150)],
    )
    return ad.AnnData(make(x.astype(dtype)), obs=obs)


def scanpy(adata, keys, **options):
    adata = adata.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sc.pp.regress_out(adata, keys, n_jobs=1, **options)
    return adata


def same(ours, theirs):
    assert isinstance(ours, np.ndarray)
    np.testing.assert_allclose(ours, theirs, **TOLERANCE[ours.dtype.name])


def test_signature():
    theirs = inspect.signature(inspect.unwrap(sc.pp.regress_out)).parameters
    ours = inspect.signature(sa.pp.regress_out).parameters
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [
        (p.name, p.kind, p.default) for p in theirs.values()
    ]


# Each type of values and each of X, not all pairs: scanpy and scatlas compile for seconds per pair.
TYPES = [
    *[(np.asarray, dtype) for dtype in ("int32", "float32", "float64")],
    *[(sp.csr_matrix, dtype) for dtype in ("int64", "uint16", "float32", "float64")],
    *[(sp.csc_matrix, dtype) for dtype in ("int32", "float32")],
]


@pytest.mark.parametrize("keys", ["total", ["fraction"], ["total", "fraction", "days"]])
@pytest.mark.parametrize(("make", "dtype"), TYPES)
def test_numbers(make, dtype, keys):
    adata = annotated(make, dtype)
    theirs = scanpy(adata, keys)
    assert sa.pp.regress_out(adata, keys) is None
    assert adata.X.dtype == theirs.X.dtype
    same(adata.X, theirs.X)


@pytest.mark.parametrize("keys", ["line", ["line"], "text"])
@pytest.mark.parametrize(
    ("make", "dtype"),
    [(np.asarray, "int32"), (sp.csr_matrix, "float32"), (np.asarray, "float64")],
)
def test_categories(make, dtype, keys):
    adata = annotated(make, dtype)
    theirs = scanpy(adata, keys)
    sa.pp.regress_out(adata, keys)
    assert theirs.X.dtype == np.float64
    assert adata.X.dtype == ("float64" if dtype == "float64" else "float32")
    # scanpy computes the means in float32.
    np.testing.assert_allclose(adata.X, theirs.X, rtol=1e-6, atol=1e-5)


def test_dask(block_loads):
    adata = annotated(sp.csr_matrix, "float64")
    for keys in (["total", "days"], "line"):
        theirs = scanpy(adata, keys)
        lazy = adata.copy()
        lazy.X = block_loads.dask(adata.X, 37)
        sa.pp.regress_out(lazy, keys)
        tolerance = TOLERANCE["float64"] if keys != "line" else {"rtol": 1e-6, "atol": 1e-5}
        np.testing.assert_allclose(lazy.X.compute(scheduler="sync"), theirs.X, **tolerance)


def test_singular_columns():
    """A constant column, for which scanpy uses statsmodels' GLM."""
    adata = annotated(np.asarray, "float64")
    theirs = scanpy(adata, ["nothing"])
    sa.pp.regress_out(adata, ["nothing"])
    same(adata.X, theirs.X)


def test_layer_and_copy():
    adata = annotated(sp.csr_matrix, "float64")
    adata.layers["log"], adata.X = adata.X, None
    theirs = scanpy(adata, ["total", "fraction"], layer="log")
    ours = sa.pp.regress_out(adata, ["total", "fraction"], layer="log", copy=True)
    assert sp.issparse(adata.layers["log"])
    same(ours.layers["log"], theirs.layers["log"])


def test_constant_genes_become_zero():
    """As in scanpy for numbers; for categories scanpy does not change them."""
    adata = annotated(np.asarray, "float64")
    adata.X[:, 3] = 7.5
    for keys in ("total", "line"):
        ours, theirs = sa.pp.regress_out(adata, keys, copy=True), scanpy(adata, keys)
        np.testing.assert_allclose(ours.X[:, 3], 0, atol=1e-14)
        if keys == "line":
            assert (theirs.X[:, 3] == 7.5).all()
        else:
            np.testing.assert_allclose(theirs.X[:, 3], 0, atol=1e-12)


def test_badly_scaled_columns():
    """scanpy inverts the products of the columns, which squares their condition."""
    adata = annotated(np.asarray, "float64")
    rng = np.random.default_rng(1)
    adata.obs["seconds"] = 1.7e9 + rng.integers(0, 3600, 150)
    adata.obs["later"] = adata.obs["seconds"] + rng.random(150)
    keys = ["seconds", "later"]
    design = np.column_stack([np.ones(150), adata.obs["seconds"] - 1.7e9, adata.obs["later"]])
    design[:, 2] -= adata.obs["seconds"]
    truth = adata.X - design @ np.linalg.lstsq(design, adata.X)[0]
    ours, theirs = sa.pp.regress_out(adata, keys, copy=True), scanpy(adata, keys)
    np.testing.assert_allclose(ours.X, truth, atol=1e-5)
    assert np.abs(ours.X - truth).max() < np.abs(theirs.X - truth).max() / 100


@pytest.mark.real
def test_a_real_plate(plates_dir):
    adata = ad.read_h5ad(plates_dir / "mix_plate3.h5ad")
    adata.X = sp.csr_matrix(adata.X).astype(np.float32)
    sc.pp.log1p(adata)
    adata.obs["total"] = np.asarray(adata.X.sum(axis=1)).ravel()
    theirs = scanpy(adata, ["total"])
    lazy = sa.pp.regress_out(adata, ["total"], copy=True)
    np.testing.assert_allclose(lazy.X, theirs.X, rtol=1e-5, atol=1e-5)
