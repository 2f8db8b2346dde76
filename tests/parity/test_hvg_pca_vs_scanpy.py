"""Highly variable genes, scale and PCA against scanpy, on simulated and on real plates."""

from __future__ import annotations

import warnings

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from scatlas.errors import InputError
from scatlas.matrix.hvg_shares import (
    hvg_of_share_moments,
    share_moments,
    totals_and_share_moments,
)
from scatlas.matrix.size_factors import cell_totals, size_factors
from scatlas.pp._hvg import highly_variable_genes
from scatlas.pp._pca import pca
from scatlas.pp._scale import scale
from tests.helpers.marked import marked_counts

PLATES = [f"mix_plate{i}" for i in range(1, 6)]


def scanpy(name, *args, **kwargs):
    """Call a function of ``scanpy.pp`` and ignore its warnings."""
    import scanpy as sc

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(sc.pp, name)(*args, **kwargs)


def normalised(counts, **log1p):
    adata = ad.AnnData(counts.astype(np.float32))
    scanpy("normalize_total", adata)
    scanpy("log1p", adata, **log1p)
    return adata


@pytest.fixture(scope="module")
def simulated():
    """400 cells x 600 genes with markers of three types and many genes seen in one or two cells."""
    rng = np.random.default_rng(0)
    counts = marked_counts(rng)
    adata = normalised(sp.csr_matrix(counts))
    adata.var_names = [f"g{i}" for i in rng.permutation(600)]  # not in alphabetical order
    adata.obs["batch"] = pd.Categorical(rng.choice(["x", "y", "z"], 400))
    return adata


@pytest.fixture(params=PLATES)
def plate(request, plates_dir):
    adata = ad.read_h5ad(plates_dir / f"{request.param}.h5ad")
    adata = adata[(adata.obs["pass_filter"] == "full").to_numpy()]
    out = normalised(sp.csr_matrix(adata.X))
    out.var_names = adata.var_names
    out.obs["batch"] = (
        pd.Categorical(adata.obs["phase"].to_numpy()) if "phase" in adata.obs else "a"
    )
    out.obs["batch"] = pd.Categorical(np.where(np.arange(out.n_obs) % 2, "odd", "even"))
    return out


def check_hvg(adata, x, *, tol=1e-6, **options):
    """Check for the same genes, and numbers up to the error of scanpy's float32 squares."""
    expected = scanpy("highly_variable_genes", adata, inplace=False, **options)
    expected = expected.loc[adata.var_names]
    ours = ad.AnnData(x, obs=adata.obs, var=adata.var, uns=adata.uns)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`n_top_genes` > number")
        got = highly_variable_genes(ours, inplace=False, **options)
    assert list(got) == list(expected)
    # By name, because scanpy 1.12 names the categories of `mean_bin` as text.
    assert got.dtypes.map(str).tolist() == expected.dtypes.map(str).tolist()
    for column in got.columns:
        if column == "mean_bin":
            # Edges depend on the means; the bin of every gene is the same.
            assert got[column].cat.codes.tolist() == expected[column].cat.codes.tolist()
        elif got[column].dtype == float:
            size = np.nanmax(np.abs(expected[column].replace([np.inf, -np.inf], np.nan)))
            np.testing.assert_allclose(
                got[column], expected[column], rtol=tol, atol=tol * size, err_msg=column
            )
        else:
            assert got[column].tolist() == expected[column].tolist(), column
    assert got["highly_variable"].any()
    return got


CHOICES = [
    {"n_top_genes": 50},
    {"n_top_genes": 2000},
    {"n_bins": 7},
    {"min_mean": 0.05, "max_mean": 2, "min_disp": 0.2, "max_disp": 4},
]


@pytest.mark.parametrize("batch_key", [None, "batch"])
@pytest.mark.parametrize("options", CHOICES, ids=str)
@pytest.mark.parametrize("flavor", ["seurat", "cell_ranger"])
def test_hvg_simulated(simulated, block_loads, flavor, options, batch_key):
    adata = simulated.copy()
    if flavor == "cell_ranger":  # scanpy bins no genes without expression
        adata = adata[:, np.asarray((adata.X > 0).sum(axis=0)).ravel() > 0].copy()
    options = {"flavor": flavor, "batch_key": batch_key, **options}
    for x in (adata.X, adata.X.toarray(), block_loads.dask(adata.X, 57)):
        check_hvg(adata, x, **options)
    if batch_key is None:
        adata.X = adata.X.astype(np.float64)
        check_hvg(adata, adata.X, tol=1e-11, **options)


@pytest.mark.parametrize("base", [2, 10])
def test_hvg_knows_the_base(base):
    rng = np.random.default_rng(1)
    counts = sp.csr_matrix(rng.poisson(rng.gamma(0.5, 2.0, 300), (150, 300)))
    adata = normalised(counts, base=base)
    check_hvg(adata, adata.X, n_top_genes=40)


@pytest.mark.parametrize("flavor", ["seurat", "cell_ranger"])
def test_hvg_ties_at_the_cut(flavor, block_loads):
    """Genes with the same values in other cells are ties; all of them pass or none."""
    rng = np.random.default_rng(2)
    x = np.log1p(rng.poisson(rng.gamma(0.5, 2.0, 200), (90, 200))).astype(np.float32)
    x = x[:, x.any(axis=0)]
    for _ in range(2):
        x = np.hstack([x, np.vstack([rng.permutation(column) for column in x.T]).T])
    adata = ad.AnnData(sp.csr_matrix(x))
    sizes = []
    for n in range(20, 40):
        for matrix in (adata.X, block_loads.dask(adata.X, 11)):
            got = check_hvg(adata, matrix, flavor=flavor, n_top_genes=n)
        sizes.append(int(got["highly_variable"].sum()))
    assert len(set(sizes)) < 20, "no ties at any cut"


def test_hvg_in_place_is_scanpys(simulated):
    for options in ({}, {"batch_key": "batch", "n_top_genes": 60}):
        expected, got = simulated.copy(), simulated.copy()
        scanpy("highly_variable_genes", expected, **options)
        highly_variable_genes(got, **options)
        assert got.uns["hvg"] == expected.uns["hvg"]
        pd.testing.assert_frame_equal(got.var, expected.var, rtol=1e-6, atol=1e-6)
        scanpy("highly_variable_genes", expected, subset=True, n_top_genes=30)
        highly_variable_genes(got, subset=True, n_top_genes=30)
        assert got.var_names.equals(expected.var_names)


def test_hvg_warns_as_scanpy(simulated):
    import scanpy as sc

    for function in (sc.pp.highly_variable_genes, highly_variable_genes):
        with pytest.warns(UserWarning, match="returning all genes with normalized dispersions"):
            function(simulated, n_top_genes=599, inplace=False)
        with pytest.warns(UserWarning, match="all cutoffs are ignored"):
            function(simulated, n_top_genes=9, max_mean=2, inplace=False)


@pytest.mark.real
@pytest.mark.parametrize("options", [{}, {"n_top_genes": 2000}], ids=["cutoffs", "top"])
def test_hvg_real_plates(plate, block_loads, options):
    seen = np.asarray((plate.X > 0).sum(axis=0)).ravel()
    for flavor in ("seurat", "cell_ranger"):
        for batch_key in (None, "batch"):
            # As after filter_genes(min_cells=3), which min_cells replaces.
            some = plate[:, seen >= 3].copy()
            got = check_hvg(some, some.X, flavor=flavor, batch_key=batch_key, **options)
            whole = ad.AnnData(block_loads.dask(plate.X, 100), obs=plate.obs, var=plate.var)
            table = highly_variable_genes(
                whole, flavor=flavor, batch_key=batch_key, min_cells=3, inplace=False, **options
            )
            assert table.index[table["highly_variable"]].equals(got.index[got["highly_variable"]])
    check_hvg(plate, plate.X, flavor="seurat", **options)


@pytest.mark.real
@pytest.mark.parametrize("name", PLATES)
@pytest.mark.parametrize("flavor", ["seurat", "cell_ranger"])
def test_hvg_of_counts_on_real_plates(name, plates_dir, block_loads, flavor):
    """Moments taken from counts and size factors choose scanpy's genes."""
    adata = ad.read_h5ad(plates_dir / f"{name}.h5ad")
    adata = adata[(adata.obs["pass_filter"] == "full").to_numpy()]
    counts = sp.csr_matrix(adata.X)
    check_hvg_of_counts(
        counts[:, np.asarray((counts > 0).sum(axis=0)).ravel() >= 3], block_loads, flavor
    )


@pytest.mark.parametrize("flavor", ["seurat", "cell_ranger"])
def test_hvg_of_counts_simulated(block_loads, flavor):
    rng = np.random.default_rng(4)
    depth = rng.lognormal(0, 0.6, (900, 1))
    counts = sp.csr_matrix(rng.negative_binomial(0.7, 1 / (1 + rng.gamma(0.2, 2.0, 1500) * depth)))
    seen = np.asarray((counts > 0).sum(axis=0)).ravel() > 0
    check_hvg_of_counts(counts[:, seen], block_loads, flavor)


def check_hvg_of_counts(counts, block_loads, flavor):
    expected = normalised(counts)
    totals = np.asarray(counts.sum(axis=1)).ravel()
    factors, target = size_factors(totals, target_sum=float(np.median(totals)))
    shares = share_moments(counts, np.arange(totals.size), totals, target)
    for n in (None, 500, 1000, 2000, 2001):
        options = {"flavor": flavor, "n_top_genes": n, "inplace": False}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`n_top_genes` > number")
            want = scanpy("highly_variable_genes", expected, **options)["highly_variable"]
            for x in (block_loads.dask(counts.astype(np.uint16), 70), counts.astype(np.float32)):
                adata = ad.AnnData(x, var=expected.var)
                got = highly_variable_genes(adata, size_factors=factors, **options)
                assert got["highly_variable"].tolist() == want.tolist()
                if flavor == "seurat":
                    found = hvg_of_share_moments(shares, expected.var_names, target, n_top_genes=n)
                    assert found["highly_variable"].tolist() == want.tolist()
                    # As far from scanpy as those of values normalised to this target.
                    for column in ("means", "dispersions"):
                        np.testing.assert_allclose(found[column], got[column], rtol=3e-7, atol=3e-7)
        assert want.any()


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_totals_and_share_moments_take_one_pass(block_loads, dtype):
    """The same bits as two passes, for any blocks, with cells that are left out or empty."""
    rng = np.random.default_rng(5)
    dense = rng.negative_binomial(0.7, 1 / (1 + rng.gamma(0.2, 2.0, 300)), (400, 300))
    dense[[7, 200]] = 0
    keep = rng.random(400) < 0.6
    keep[[7, 399]] = True
    keep[100:150] = False  # whole blocks
    x = sp.csr_matrix(dense.astype(dtype))
    expected = cell_totals(x)
    rows = np.flatnonzero(keep)
    want = share_moments(x, rows, expected[rows], 1.0)
    for matrix in (x, x.toarray(), block_loads.dask(x, 23), block_loads.dask(x, 70)):
        totals, found = totals_and_share_moments(matrix, keep)
        assert totals.dtype == expected.dtype
        np.testing.assert_array_equal(totals, expected)
        for name, values in want._asdict().items():
            np.testing.assert_array_equal(getattr(found, name), values, err_msg=name)
    assert block_loads.passes() == totals_and_share_moments.passes == 1
    with pytest.raises(InputError, match="none is left"):
        totals_and_share_moments(x, np.zeros(400, bool))


# --- scale ------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:zero-centering a sparse:UserWarning")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("max_value", [None, 2.0])
@pytest.mark.parametrize("zero_center", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_scale_simulated(simulated, block_loads, dtype, zero_center, max_value, masked):
    matrix = simulated.X[:150, :80].astype(dtype)
    options = {"zero_center": zero_center, "max_value": max_value}
    if masked:
        options["mask_obs"] = "use"
    obs = pd.DataFrame({"use": np.arange(150) % 4 > 0}, index=[str(i) for i in range(150)])
    expected = ad.AnnData(matrix.toarray(), obs=obs)
    scanpy("scale", expected, **options)
    for x in (matrix, matrix.tocsc(), matrix.toarray(), block_loads.dask(matrix, 40)):
        got = ad.AnnData(x, obs=obs)
        scale(got, **options)
        values = got.X.compute() if hasattr(got.X, "compute") else got.X
        values = values.toarray() if sp.issparse(values) else values
        assert values.dtype == expected.X.dtype
        # scanpy rounds float32 twice and computes the variance as a difference.
        rtol, atol = (1e-6, 1e-6) if dtype == "float32" else (1e-11, 1e-11)
        np.testing.assert_allclose(values, expected.X, rtol=rtol, atol=atol)
        pd.testing.assert_frame_equal(got.var, expected.var, rtol=max(rtol, 1e-11))


# --- PCA --------------------------------------------------------------------------------------


def check_pca(adata, x, *, n_comps, x_rtol, **options):
    """Check components and variance against scanpy's for float64, up to sign."""
    wide = adata.copy()
    wide.X = wide.X.astype(np.float64)
    solver = "arpack"
    scanpy("pca", wide, n_comps=n_comps, svd_solver=solver, dtype="float64", **options)
    got = ad.AnnData(x, obs=adata.obs, var=adata.var)
    pca(got, n_comps=n_comps, **options)
    cosines = (got.varm["PCs"] * wide.varm["PCs"]).sum(axis=0)
    assert (np.abs(cosines) >= 1 - 1e-8).all()
    sign = np.sign(cosines)
    for key in ("variance", "variance_ratio"):
        np.testing.assert_allclose(got.uns["pca"][key], wide.uns["pca"][key], rtol=1e-8)
    assert got.uns["pca"]["params"] == wide.uns["pca"]["params"]
    cells = np.asarray(got.obsm["X_pca"])
    assert cells.dtype == np.float32
    size = np.abs(wide.obsm["X_pca"]).max(axis=0)
    np.testing.assert_allclose(cells * sign / size, wide.obsm["X_pca"] / size, rtol=0, atol=x_rtol)


@pytest.mark.parametrize("zero_center", [True, False])
def test_pca_simulated(simulated, block_loads, zero_center):
    adata = simulated.copy()
    scanpy("highly_variable_genes", adata, n_top_genes=120)
    for x in (adata.X, adata.X.tocsc(), adata.X.toarray(), block_loads.dask(adata.X, 57)):
        check_pca(adata, x, n_comps=12, x_rtol=1e-6, zero_center=zero_center)
    check_pca(adata, adata.X, n_comps=12, x_rtol=1e-6, zero_center=zero_center, mask_var=None)


def test_pca_default_number_of_components(simulated):
    for n_genes in (20, 50, 51, 90):
        adata = ad.AnnData(simulated.X[:, :n_genes].toarray())
        expected = adata.copy()
        scanpy("pca", expected)
        pca(adata)
        assert adata.obsm["X_pca"].shape == expected.obsm["X_pca"].shape
        assert adata.varm["PCs"].shape == expected.varm["PCs"].shape


@pytest.mark.real
def test_pca_real_plates(plate, block_loads):
    scanpy("highly_variable_genes", plate, n_top_genes=1000)
    check_pca(plate, block_loads.dask(plate.X, 100), n_comps=30, x_rtol=1e-5)
