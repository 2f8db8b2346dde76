"""sa.tl.score_genes and score_genes_cell_cycle have scanpy's control genes and scores."""

from __future__ import annotations

import inspect
import logging

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import scatlas as sa
from tests.helpers.marked import marked_counts
from tests.helpers.scanpy_version import SCANPY_112

sc = pytest.importorskip("scanpy")

# Sums of up to 600 float64 values in another order.
FLOAT64 = {"rtol": 1e-12, "atol": 1e-13}
# scanpy sums float32 values of CSR in float32.
FLOAT32 = {"rtol": 1e-5, "atol": 2e-6}


def annotated(make, dtype, seed=0):
    """400 cells x 600 genes, counts or their logarithms; names not in alphabetical order."""
    rng = np.random.default_rng(seed)
    x = marked_counts(rng).astype(np.float64)
    if np.dtype(dtype).kind == "f":
        x = np.log1p(1e3 * x / np.maximum(x.sum(axis=1, keepdims=True), 1))
    names = [f"g{i}" for i in rng.permutation(600)]
    return ad.AnnData(make(x.astype(dtype)), var=pd.DataFrame(index=names))


@pytest.fixture
def adata():
    return annotated(sp.csr_matrix, "float64")


def some_genes(adata, n=12, seed=1):
    return np.random.default_rng(seed).choice(adata.var_names, n, replace=False).tolist()


@pytest.fixture
def controls(monkeypatch):
    """Control genes of all calls of scatlas and scanpy, as sets of names."""
    from scanpy.tools import _score_genes as theirs

    from scatlas.tl import _score as ours

    found = {"ours": [], "scanpy": []}
    bins, control_genes = theirs._score_genes_bins, ours._control_genes
    cuts, names = ours._bins, []

    def of_scanpy(*args, **options):
        union = set()
        for genes in bins(*args, **options):
            union |= set(genes)
            yield genes
        found["scanpy"].append(union)

    def named(means, of_genes, *args):
        names[:] = of_genes
        return cuts(means, of_genes, *args)

    def of_ours(*args):
        control = control_genes(*args)
        found["ours"].append({names[i] for i in control})
        return control

    monkeypatch.setattr(theirs, "_score_genes_bins", of_scanpy)
    monkeypatch.setattr(ours, "_bins", named)
    monkeypatch.setattr(ours, "_control_genes", of_ours)
    return found


def same(ours, theirs, genes, controls, tolerance=FLOAT64, **options):
    """Check for equal columns of obs and the same control genes, at least one of them drawn."""
    for key in controls:
        controls[key].clear()
    sc.tl.score_genes(theirs, genes, **options)
    assert sa.tl.score_genes(ours, genes, **options) is None
    assert controls["ours"] == controls["scanpy"]
    assert controls["ours"][0]
    name = options.get("score_name", "score")
    assert list(ours.obs) == list(theirs.obs)
    assert ours.obs[name].dtype == theirs.obs[name].dtype == np.float64
    np.testing.assert_allclose(ours.obs[name], theirs.obs[name], **tolerance)


def test_signatures():
    for name in ("score_genes", "score_genes_cell_cycle"):
        theirs = inspect.signature(inspect.unwrap(getattr(sc.tl, name))).parameters
        ours = inspect.signature(getattr(sa.tl, name)).parameters
        for parameter in theirs.values():
            if parameter.kind is parameter.VAR_KEYWORD:  # parameters of score_genes
                continue
            assert ours[parameter.name].kind is parameter.kind
            assert ours[parameter.name].default == parameter.default


@pytest.mark.parametrize("dtype", ["int32", "uint16", "float32", "float64"])
@pytest.mark.parametrize("make", [np.asarray, sp.csr_matrix, sp.csc_matrix])
@pytest.mark.parametrize("ctrl_as_ref", [True, False])
def test_every_kind_of_x(controls, make, dtype, ctrl_as_ref):
    ours, theirs = annotated(make, dtype), annotated(make, dtype)
    tolerance = FLOAT32 if dtype == "float32" else FLOAT64
    for seed in (0, 7):
        options = {"ctrl_as_ref": ctrl_as_ref, "random_state": seed, "ctrl_size": 5}
        same(ours, theirs, some_genes(ours), controls, tolerance, **options)


@pytest.mark.parametrize("dtype", ["int32", "float64"])
def test_dask(controls, block_loads, dtype):
    theirs, ours = annotated(sp.csr_matrix, dtype), annotated(sp.csr_matrix, dtype)
    ours.X = block_loads.dask(ours.X, 37)
    same(ours, theirs, some_genes(theirs), controls, ctrl_size=9)


OPTIONS = [
    {},
    {"ctrl_size": 1},
    {"ctrl_size": 10_000},
    {"n_bins": 2},
    {"n_bins": 7, "score_name": "other"},
    {"n_bins": 100},
    {"n_bins": 5000, "ctrl_size": 20},  # all genes in one bin
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("n", [1, 30, 400])
def test_options(adata, controls, options, n):
    for ctrl_as_ref in (True, False):
        if n == 1 and ctrl_as_ref and options.get("ctrl_size") == 1:
            continue
        if n == 400 and options.get("n_bins") == 100:
            continue  # a bin with only these four genes
        other = adata.copy()
        same(
            adata.copy(), other, some_genes(adata, n), controls, ctrl_as_ref=ctrl_as_ref, **options
        )


def test_pool(adata, controls):
    """The drawn genes depend on the order of the pool, which may contain unknown genes."""
    genes = some_genes(adata)
    rest = [name for name in adata.var_names if name not in genes]
    for pool in (
        rest[200:0:-1] + genes,
        pd.Index([*genes, "nobody", *rest[:50], *rest[:5]]),
        np.array(rest[:300] + genes[::-1]),
    ):
        same(adata.copy(), adata.copy(), genes, controls, gene_pool=pool, ctrl_size=3)


def test_a_pool_of_all_genes_in_another_order(adata, controls):
    """scanpy then gives each gene another gene's mean, but not for a pool with one gene less."""
    genes = some_genes(adata)
    order = np.random.default_rng(2).permutation(600)
    pool = adata.var_names[order]
    other = adata.copy()
    sc.tl.score_genes(other, genes, gene_pool=pool, ctrl_size=3)
    sa.tl.score_genes(adata, genes, gene_pool=pool, ctrl_size=3)
    assert controls["ours"] != controls["scanpy"]
    assert not np.allclose(other.obs["score"], adata.obs["score"])
    names = pd.DataFrame(index=[*adata.var_names, "not in the pool"])
    extended = ad.AnnData(sp.hstack([adata.X, adata.X[:, :1]]).tocsr(), var=names)
    for found in controls.values():
        found.clear()
    sc.tl.score_genes(extended, genes, gene_pool=pool, ctrl_size=3)
    np.testing.assert_allclose(adata.obs["score"], extended.obs["score"], **FLOAT64)


def test_missing_genes_are_left_out(adata, controls, caplog):
    genes = [*some_genes(adata), "nobody"]
    with caplog.at_level(logging.WARNING, "scatlas"):
        same(adata.copy(), adata.copy(), genes * 2, controls)
    assert "['nobody'" in caplog.text
    same(adata.copy(), adata.copy(), pd.Index(genes), controls)
    same(adata.copy(), adata.copy(), genes[0], controls)


@pytest.mark.parametrize("make", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nan(controls, make, dtype):
    """Excluded from every mean; genes with only NaN are excluded from the pool."""
    adata = annotated(np.asarray, dtype)
    genes = some_genes(adata)
    rng = np.random.default_rng(3)
    adata.X[rng.random(adata.shape) < 0.2] = np.nan
    rest = [name for name in adata.var_names if name not in genes]
    adata.X[:, adata.var_names.get_indexer(rest[:30])] = np.nan
    adata.X[7, adata.var_names.get_indexer(rest[30:40])] = np.inf
    adata.X[9, adata.var_names.get_indexer(genes)] = np.nan  # no score
    adata.X = make(adata.X)
    tolerance = FLOAT32 if dtype == "float32" else FLOAT64
    options = {"ctrl_size": 7, "ctrl_as_ref": False}
    ours, theirs = adata.copy(), adata.copy()
    if make is np.asarray:
        with pytest.warns(RuntimeWarning, match="Mean of empty slice"):
            same(ours, theirs, genes, controls, tolerance, **options)
    elif SCANPY_112:  # divides in compiled code
        same(ours, theirs, genes, controls, tolerance, **options)
    else:
        with pytest.warns(RuntimeWarning, match="invalid value"):
            same(ours, theirs, genes, controls, tolerance, **options)
    assert ours.obs["score"].isna().sum() == 1


def test_layer_raw_and_copy(adata, controls):
    genes = some_genes(adata)
    adata.layers["squared"] = adata.X.multiply(adata.X).tocsr()
    same(adata.copy(), adata.copy(), genes, controls, layer="squared", ctrl_size=4)
    by_layer = controls["ours"][0]
    adata.raw = adata.copy()
    adata.X = adata.layers["squared"].copy()
    small = adata[:, genes + [name for name in adata.var_names[:150] if name not in genes]].copy()
    for options in ({}, {"use_raw": True}, {"use_raw": False}, {"layer": "squared"}):
        same(small.copy(), small.copy(), genes, controls, ctrl_size=4, **options)
    same(adata.copy(), adata.copy(), genes, controls, use_raw=False, ctrl_size=4)
    assert controls["ours"][0] == by_layer
    before = adata.obs.copy()
    ours = sa.tl.score_genes(adata, genes, copy=True)
    theirs = sc.tl.score_genes(adata, genes, copy=True)
    pd.testing.assert_frame_equal(adata.obs, before)
    np.testing.assert_allclose(ours.obs["score"], theirs.obs["score"], **FLOAT64)


@pytest.mark.parametrize("dtype", ["int32", "float64"])
@pytest.mark.parametrize("n_s, n_g2m", [(10, 25), (30, 3)])
def test_cell_cycle(controls, dtype, n_s, n_g2m):
    ours, theirs = annotated(sp.csr_matrix, dtype), annotated(sp.csr_matrix, dtype)
    genes = [*some_genes(ours, n_s + n_g2m), "nobody"]
    for options in ({}, {"random_state": 4, "n_bins": 10, "ctrl_as_ref": False}):
        sets = {"s_genes": genes[:n_s], "g2m_genes": genes[n_s:]}
        assert sa.tl.score_genes_cell_cycle(ours, **sets, **options) is None
        sc.tl.score_genes_cell_cycle(theirs, **sets, **options)
        assert controls["ours"] == controls["scanpy"]
        pd.testing.assert_frame_equal(ours.obs, theirs.obs, check_exact=False, rtol=1e-12)
        assert set(ours.obs["phase"]) == {"S", "G2M", "G1"}
    assert sa.tl.score_genes_cell_cycle(ours, copy=True, **sets).obs.columns.size == 3


@pytest.mark.real
@pytest.mark.parametrize("plate", [1, 3, 5])
def test_a_real_plate(plates_dir, controls, plate):
    """Log-normalised in float64, so scanpy's means are as exact as scatlas's."""
    adata = ad.read_h5ad(plates_dir / f"mix_plate{plate}.h5ad")
    adata.X = sp.csr_matrix(adata.X).astype(np.float64)
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    for seed in (0, 1):
        ours, theirs = adata.copy(), adata.copy()
        same(ours, theirs, some_genes(adata, 60, seed), controls, random_state=seed)
