"""highly_variable_genes, scale and pca: every kind of X, passes, errors, keys and dtypes."""

from __future__ import annotations

import warnings

import anndata as ad
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from scatlas.arrays.kinds import is_dask
from scatlas.errors import InputError
from scatlas.matrix import gram
from scatlas.matrix.components import components
from scatlas.matrix.gram import GramAccumulator, GramStats, gram_stats
from scatlas.matrix.hvg_dispersion import Cutoffs, dispersion_table
from scatlas.pp._hvg import highly_variable_genes
from scatlas.pp._pca import pca
from scatlas.pp._scale import scale


@pytest.fixture
def logged(make_counts):
    """Log-normalised float32 CSR, 61 cells x 50 genes, with empty cells and an empty gene."""
    counts = make_counts(61, 50).astype(np.float64)
    totals = np.asarray(counts.sum(axis=1)).ravel()
    x = sp.diags(100 / np.maximum(totals, 1)) @ counts
    return sp.csr_matrix(x.log1p().astype(np.float32))


def two_pass(x):
    x = x.astype(np.float64)
    mean = x.mean(axis=0)
    return mean, ((x - mean) ** 2).sum(axis=0) / (len(x) - 1)


@pytest.fixture
def zarr3():
    """Lets anndata write Zarr v3.

    zarr warns about its consolidated metadata, anndata 0.13 about settings that 0.12 needs.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata")
        warnings.filterwarnings("ignore", "This setting will be removed")
        with ad.settings.override(zarr_write_format=3, auto_shard_zarr_v3=True):
            yield


# --- highly variable genes --------------------------------------------------------------------


@pytest.mark.parametrize("batch_key", [None, "batch"])
def test_hvg_takes_one_pass(dask_type, block_loads, logged, make_adata, batch_key):
    adata = make_adata(dask_type(logged))
    highly_variable_genes(adata, n_top_genes=10, batch_key=batch_key)
    assert block_loads.passes() == highly_variable_genes.passes == 1
    block_loads.assert_unchanged()


def test_hvg_min_cells_is_filter_genes_first(logged, make_adata):
    n_cells = np.asarray((logged > 0).sum(axis=0)).ravel()
    min_cells = int(np.median(n_cells))
    keep = n_cells >= min_cells
    adata = make_adata(logged)
    for batch_key in (None, "batch"):
        options = {"n_top_genes": 7, "inplace": False, "batch_key": batch_key}
        table = highly_variable_genes(adata, min_cells=min_cells, **options)
        expected = highly_variable_genes(adata[:, keep].copy(), **options)
        pd.testing.assert_frame_equal(table.loc[keep], expected, check_exact=True)
        assert table.loc[~keep, "dispersions_norm"].isna().all()
        assert not table.loc[~keep, "highly_variable"].any()
        assert table.index.equals(adata.var_names)


def test_hvg_batches_equal_one_by_one(logged, make_adata):
    adata = make_adata(logged)
    adata.obs["batch"] = adata.obs["batch"].cat.add_categories(["unused"])
    adata.obs.loc[adata.obs_names[-4:], "batch"] = np.nan
    table = highly_variable_genes(adata, n_top_genes=8, batch_key="batch", inplace=False)
    alone = []
    for batch in ("b0", "b1", "b2"):
        part = adata[adata.obs["batch"] == batch].copy()
        alone.append(highly_variable_genes(part, n_top_genes=8, inplace=False, min_cells=1))
        unseen = np.asarray((part.X > 0).sum(axis=0)).ravel() == 0
        columns = ["means", "dispersions", "dispersions_norm"]
        alone[-1].loc[unseen, columns] = 0.0
    n_selected = sum(part["highly_variable"].astype(int) for part in alone)
    assert table["highly_variable_nbatches"].tolist() == n_selected.tolist()
    assert table["highly_variable_nbatches"].dtype == np.int64
    assert table["highly_variable_intersection"].tolist() == (n_selected == 3).tolist()
    assert table["highly_variable_intersection"].any()
    for column in ("means", "dispersions", "dispersions_norm"):
        mean = np.nanmean([part[column] for part in alone], axis=0)
        np.testing.assert_allclose(table[column], mean, rtol=1e-12)
    assert table["highly_variable"].sum() == 8
    worst_in = n_selected[table["highly_variable"]].min()
    assert worst_in >= n_selected[~table["highly_variable"]].max()


def test_hvg_subset_layer_and_base(logged, make_adata):
    adata = make_adata(sp.csr_matrix(logged.shape, dtype=np.float32))
    adata.layers["log"] = logged
    expected = highly_variable_genes(adata, layer="log", n_top_genes=6, inplace=False)
    assert "hvg" not in adata.uns
    assert "means" not in adata.var
    names = expected.index[expected["highly_variable"]]
    some = highly_variable_genes(adata, layer="log", n_top_genes=6, inplace=False, subset=True)
    assert some.index.equals(names)
    adata.layers["log2"] = logged / np.float32(np.log(2))
    adata.uns["log1p"] = {"base": 2}
    highly_variable_genes(adata, layer="log2", n_top_genes=6, subset=True)
    assert adata.var_names.equals(names)
    np.testing.assert_allclose(adata.var["means"], expected.loc[names, "means"], rtol=1e-6)


@pytest.mark.parametrize("flavor", ["seurat", "cell_ranger"])
def test_hvg_of_batches_keeps_the_genes_it_names_in_any_order_of_names(logged, make_adata, flavor):
    adata = make_adata(logged)
    adata.var_names = [f"g{i}" for i in np.random.default_rng(0).permutation(adata.n_vars)]
    options = {"batch_key": "batch", "flavor": flavor}
    table = highly_variable_genes(adata, inplace=False, **options)
    assert table.index.equals(adata.var_names)
    highly_variable_genes(adata, subset=True, **options)
    assert adata.var_names.equals(table.index[table["highly_variable"]])


@pytest.mark.parametrize(
    "flavor", ["seurat", "cell_ranger", "seurat_v3", "seurat_v3_paper", "pearson_residuals"]
)
@pytest.mark.parametrize("masked", [False, True])
def test_hvg_leaves_out_batches_of_one_cell(counts_of_batches, flavor, masked):
    """Also those of which the size factors leave one cell."""
    adata = counts_of_batches
    options = {"flavor": flavor, "n_top_genes": 30, "inplace": False, "batch_key": "donor"}
    if masked:
        adata.obs["factor"] = np.where(adata.obs["donor"].isin(["pair"]), np.nan, 1.0)
        adata.obs.loc[adata.obs_names[1], ["donor", "factor"]] = ["lonely", np.nan]
        options["size_factors"] = "factor"
    else:
        adata.obs.loc[adata.obs_names[1:3], "donor"] = "x"
    with pytest.warns(
        UserWarning, match="batches of one cell rank no genes, 1 are left out: lonely"
    ):
        found = highly_variable_genes(adata, **options)
    adata.obs["donor"] = adata.obs["donor"].cat.remove_categories("lonely")
    pd.testing.assert_frame_equal(found, highly_variable_genes(adata, **options))
    adata.obs["donor"] = [f"d{i}" for i in range(90)]
    with pytest.raises(InputError, match=r"each batch in obs.'donor'.*: leave out batch_key"):
        highly_variable_genes(adata, **options)


@pytest.mark.parametrize(
    ("flavor", "message"),
    [
        ("seurat", "batch 'pair': no gene has a normalised dispersion"),
        ("cell_ranger", "batch 'pair': .*same mean: choose flavor='seurat'"),
        ("seurat_v3", "0 genes vary in batch 'pair'.*: give cells that differ"),
    ],
)
def test_hvg_names_the_batch_that_cannot_be_ranked(counts_of_batches, flavor, message):
    adata = counts_of_batches[1:].copy()
    adata.X = sp.vstack([adata.X[[0, 0]], adata.X[2:]], "csr")
    with pytest.raises(InputError, match=message):
        highly_variable_genes(adata, flavor=flavor, n_top_genes=30, batch_key="donor")


@pytest.fixture
def counts_of_batches() -> ad.AnnData:
    """A batch of one cell, one of two, and two of many."""
    rng = np.random.default_rng(3)
    x = rng.poisson(rng.gamma(1.0, 4.0, 300), (90, 300)).astype(np.float32)
    donors = ["lonely", "pair", "pair", *["x"] * 43, *["y"] * 44]
    return ad.AnnData(
        sp.csr_matrix(x),
        obs=pd.DataFrame({"donor": pd.Categorical(donors)}, [f"c{i}" for i in range(90)]),
    )


def test_hvg_errors(logged, make_adata):
    adata = make_adata(logged)
    with pytest.raises(InputError, match=r"mvp.*seurat, cell_ranger, seurat_v3"):
        highly_variable_genes(adata, flavor="mvp")
    with pytest.raises(InputError, match=r"no layers.'raw'"):
        highly_variable_genes(adata, layer="raw")
    with pytest.raises(InputError, match="no column 'lane'"):
        highly_variable_genes(adata, batch_key="lane")
    with pytest.raises(InputError, match="n_top_genes=0"):
        highly_variable_genes(adata, n_top_genes=0)
    with pytest.raises(InputError, match="min_cells=62"):
        highly_variable_genes(adata, min_cells=62)
    with pytest.raises(InputError, match="at least one cell"):
        highly_variable_genes(adata[:0].copy())
    with pytest.raises(InputError, match="two cells that differ"):
        highly_variable_genes(adata[:1].copy(), n_top_genes=3)
    unseen = ad.AnnData(np.hstack([logged.toarray(), np.zeros((61, 40), np.float32)]))
    with pytest.raises(InputError, match="min_cells=1"):
        highly_variable_genes(unseen, flavor="cell_ranger")
    adata.obs["none"] = pd.Categorical([None] * 61, categories=["a"])
    with pytest.raises(InputError, match="empty for every cell"):
        highly_variable_genes(adata, batch_key="none")
    adata.obs["odd"] = ["small"] * 2 + ["many"] * 59
    empty = adata.copy()
    empty.X = sp.diags((np.arange(61) > 1).astype(np.float32)) @ empty.X
    with pytest.raises(InputError, match="batch 'small': no gene is expressed"):
        highly_variable_genes(empty, batch_key="odd")
    for bad, column in ((np.nan, 3), (200.0, 8)):
        x = logged.toarray()
        x[4, column] = bad
        with pytest.raises(InputError, match=rf"gene.*gene{column}.*log-normalised"):
            highly_variable_genes(make_adata(x))
    with pytest.warns(UserWarning, match="all cutoffs are ignored"):
        highly_variable_genes(adata, n_top_genes=3, min_disp=1.0)
    with pytest.warns(UserWarning, match="number of normalized dispersions"):
        highly_variable_genes(adata, n_top_genes=50)
    known = adata.var["dispersions_norm"].notna()
    assert adata.var["highly_variable"].tolist() == known.tolist()
    import dask.array as da

    cut = da.from_array(logged.toarray(), chunks=(10, 25))
    for function in (highly_variable_genes, scale, pca):
        with pytest.raises(InputError, match=r"rechunk\(\{1: -1\}\)"):
            function(ad.AnnData(cut))


def test_dispersion_table_from_moments_alone():
    # log1p(mean) in 3 bins: f alone (and without a dispersion), a to d together, e alone.
    mean = np.array([2.0, 2.0, 2.0, 2.5, 9.0, 0.0])
    var = np.array([1.0, 2.0, 4.0, 3.0, 5.0, 0.0])
    table = dispersion_table(mean, var, n_bins=3, n_top_genes=2, index=pd.Index(list("abcdef")))
    d = np.log(var[:4] / mean[:4])
    np.testing.assert_allclose(table["means"], np.log1p(np.append(mean[:5], 1e-12)), rtol=1e-15)
    np.testing.assert_allclose(table["dispersions"].iloc[:4], d, rtol=1e-15)
    expected = (d - d.mean()) / d.std(ddof=1)
    np.testing.assert_allclose(table["dispersions_norm"].iloc[:4], expected, rtol=1e-12)
    assert table.loc["e", "dispersions_norm"] == 1.0
    assert np.isnan(table.loc["f", "dispersions_norm"])
    assert table.index[table["highly_variable"]].tolist() == ["c", "e"]
    columns = ["means", "dispersions", "mean_bin", "dispersions_norm", "highly_variable"]
    assert list(table) == columns
    cutoffs = Cutoffs(min_mean=0, max_mean=3, min_disp=0.9, max_disp=1.05)
    cut = dispersion_table(mean, var, n_bins=3, cutoffs=cutoffs)
    assert cut.index[cut["highly_variable"]].tolist() == [4]


# --- scale ------------------------------------------------------------------------------------


def scaled_reference(x, *, zero_center, max_value, mask=None):
    x = x.astype(np.float64)
    rows = np.ones(len(x), bool) if mask is None else mask
    mean, variance = two_pass(x[rows])
    sd = np.sqrt(variance)
    sd[sd == 0] = 1
    out = x.copy()
    out[rows] = (x[rows] - (mean if zero_center else 0)) / sd
    if max_value is not None:
        out[rows] = np.clip(out[rows], -max_value if zero_center else None, max_value)
    return out, mean, sd


@pytest.mark.filterwarnings("ignore:zero-centering a sparse:UserWarning")
def test_scale_takes_one_pass_and_keeps_the_blocks(dask_type, block_loads, logged, make_adata):
    adata = make_adata(dask_type(logged))
    original = adata.X
    once = scale(adata, copy=True)
    assert adata.X is original
    assert is_dask(once.X)
    assert once.X.chunks == original.chunks
    assert block_loads.passes() == scale.passes == 1
    block_loads.assert_unchanged()


def test_scale_of_counts_arrays_layers_obsm_and_views(counts, make_adata):
    expected, _, sd = scaled_reference(counts.toarray(), zero_center=False, max_value=None)
    for x in (counts, counts.toarray(), counts.astype(np.uint8)):
        before = x.copy()
        got = scale(x, zero_center=False)
        assert got.dtype == np.float64
        np.testing.assert_allclose(got.toarray() if sp.issparse(got) else got, expected, rtol=1e-14)
        assert (x != before).sum() == 0
    adata = make_adata(np.zeros((60, 50)))
    adata.layers["counts"] = counts
    adata.obsm["emb"] = counts.toarray()[:, :3].astype(np.float64)
    adata.obs["use"] = np.arange(60) < 50
    scale(adata, layer="counts", zero_center=False)
    np.testing.assert_allclose(adata.layers["counts"].toarray(), expected, rtol=1e-14)
    np.testing.assert_allclose(adata.var["std"], sd, rtol=1e-14)
    scale(adata, obsm="emb", mask_obs="use", zero_center=False)
    part = scaled_reference(
        counts.toarray()[:, :3], zero_center=False, max_value=None, mask=np.arange(60) < 50
    )[0]
    np.testing.assert_allclose(adata.obsm["emb"], part, rtol=1e-14)
    assert list(adata.var) == ["mt", "mean", "std"]
    scale(adata, layer="counts", mask_obs="use", zero_center=False)
    assert list(adata.var)[-2:] == ["mean of use", "std of use"]

    parent = make_adata(counts.toarray().astype(np.float32))
    view = parent[:30]
    scale(view)
    assert not view.is_view
    np.testing.assert_array_equal(parent.X, counts.toarray())
    np.testing.assert_allclose(view.X.mean(axis=0), 0, atol=1e-6)


def test_scale_warns_and_refuses(counts, make_adata):
    with pytest.warns(UserWarning, match="densifies"):
        assert isinstance(scale(counts), np.ndarray)
    adata = make_adata(counts)
    for options, message in (
        ({"layer": "raw"}, "no layers.'raw'"),
        ({"obsm": "raw"}, "no 'raw' in obsm"),
        ({"obsm": "raw", "layer": "raw"}, "not both"),
        ({"mask_obs": "raw"}, "no column 'raw'"),
        ({"mask_obs": np.ones(60)}, "boolean"),
        ({"mask_obs": np.ones(59, bool)}, "60 cells"),
        ({"mask_obs": np.zeros(60, bool)}, "selects no cell"),
    ):
        with pytest.raises(InputError, match=message):
            scale(adata, zero_center=False, **options)
    with pytest.raises(InputError, match="names a column"):
        scale(counts, mask_obs="use")
    with pytest.raises(InputError, match="at least one cell"):
        scale(counts[:0], zero_center=False)
    with pytest.raises(InputError, match="list, but a NumPy array"):
        scale([[1.0]])


# --- PCA --------------------------------------------------------------------------------------


def svd_reference(x, n_comps, *, zero_center):
    """Components, variance, ratio and projected cells by a full SVD in float64."""
    x = x.astype(np.float64)
    centred = x - x.mean(axis=0) if zero_center else x
    _, s, vt = np.linalg.svd(centred, full_matrices=False)
    PCs = vt[:n_comps].T
    PCs = PCs * np.sign(PCs[np.abs(PCs).argmax(axis=0), np.arange(n_comps)])
    cells = centred @ PCs
    if zero_center:
        variance, total = s[:n_comps] ** 2 / (len(x) - 1), x.var(axis=0, ddof=1).sum()
    else:
        variance, total = cells.var(axis=0), x.var(axis=0).sum()
    return PCs, variance, variance / total, cells


def test_pca_takes_one_pass_and_keeps_the_blocks(dask_type, block_loads, logged, make_adata):
    adata = make_adata(dask_type(logged))
    adata.var["highly_variable"] = mask = np.arange(50) % 3 > 0
    pca(adata, n_comps=8)
    assert block_loads.passes() == pca.passes == 1
    assert adata.obsm["X_pca"].chunks == (adata.X.chunks[0], (8,))
    adata.obsm["X_pca"].compute()
    assert block_loads.passes() == 2
    assert not adata.varm["PCs"][~mask].any()
    block_loads.assert_unchanged()


def test_pca_keys_options_and_files(logged, make_adata, tmp_path, zarr3):
    adata = make_adata(sp.csr_matrix(logged.shape, dtype=np.float32))
    adata.layers["log"] = logged
    mask = np.arange(50) % 2 == 0
    out = pca(
        adata, 4, layer="log", mask_var=mask, key_added="p", copy=True, dtype="float64",
        svd_solver="arpack", random_state=3,
    )  # fmt: skip
    assert "p" not in adata.obsm
    assert out.obsm["p"].dtype == np.float64
    assert out.uns["p"]["params"]["layer"] == "log"
    assert out.uns["p"]["params"]["mask_var"].tolist() == mask.tolist()
    PCs, _, _, cells = svd_reference(logged.toarray()[:, mask], 4, zero_center=True)
    np.testing.assert_allclose(out.obsm["p"], cells, atol=1e-11)
    np.testing.assert_allclose(out.varm["p"][mask], PCs, atol=1e-9)
    pca(adata, layer="log")
    assert adata.obsm["X_pca"].shape == (61, 49)
    pca(adata, layer="log", mask_var=mask)
    assert adata.obsm["X_pca"].shape == (61, 24)
    adata.var["highly_variable"] = mask
    with pytest.warns(FutureWarning, match="deprecated"):
        pca(adata, layer="log", use_highly_variable=False)
    assert adata.obsm["X_pca"].shape == (61, 49)
    adata.write_zarr(tmp_path / "a.zarr")
    assert ad.read_zarr(tmp_path / "a.zarr").uns["pca"]["params"]["zero_center"]

    x_pca, PCs, ratio, variance = pca(logged, 3, return_info=True)
    assert (x_pca.shape, PCs.shape, ratio.shape, variance.shape) == ((61, 3), (3, 50), (3,), (3,))
    np.testing.assert_array_equal(pca(logged, 3), x_pca)


def test_pca_of_a_dask_x_writes_lazily(block_loads, logged, make_adata, tmp_path, zarr3):
    adata = make_adata(block_loads.dask(logged))
    pca(adata, n_comps=5)
    expected = adata.obsm["X_pca"].compute()
    adata.write_zarr(tmp_path / "a.zarr")
    np.testing.assert_array_equal(ad.read_zarr(tmp_path / "a.zarr").obsm["X_pca"], expected)


@pytest.mark.parametrize("zero_center", [True, False])
def test_pca_of_rank_deficient_data(zero_center, tmp_path, zarr3):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 2)) @ rng.normal(size=(2, 12)) + 5
    x[:, 7] = 0
    adata = ad.AnnData(x)
    pca(adata, n_comps=12, zero_center=zero_center)
    variance = adata.uns["pca"]["variance"]
    rank = 2 if zero_center else 3
    assert (variance[:rank] > 1e-3).all()
    assert not variance[rank:].any()
    np.testing.assert_allclose(adata.uns["pca"]["variance_ratio"].sum(), 1, rtol=1e-12)
    for values in (adata.obsm["X_pca"], adata.varm["PCs"], adata.uns["pca"]["variance_ratio"]):
        assert np.isfinite(values).all()
    np.testing.assert_allclose(adata.varm["PCs"].T @ adata.varm["PCs"], np.eye(12), atol=1e-12)
    adata.write_zarr(tmp_path / "a.zarr")

    constant = pca(np.full((5, 4), 3.3), 4, zero_center=zero_center, return_info=True)
    assert not constant[2].any()
    assert not constant[3].any()
    assert np.isfinite(constant[0]).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pca_with_a_large_mean_and_a_small_spread(dtype, block_loads):
    x = (8 + 0.05 * np.random.default_rng(0).normal(size=(3000, 20))).astype(dtype)
    x[:, 0] += (0.2 * np.random.default_rng(1).normal(size=3000)).astype(dtype)
    _, variance, _, cells = svd_reference(x, 3, zero_center=True)
    for matrix in (x, block_loads.dask(x, 701), block_loads.dask(sp.csr_matrix(x), 701)):
        x_pca, _, _, got = pca(matrix, 3, return_info=True)
        np.testing.assert_allclose(got, variance, rtol=1e-9)
        np.testing.assert_allclose(np.asarray(x_pca), cells, atol=1e-5 * np.abs(cells).max())
    gram32 = x.astype(np.float32).T @ x.astype(np.float32) / np.float32(3000)
    mean = x.mean(axis=0, dtype=np.float32)
    lost = np.linalg.eigvalsh(gram32 - np.outer(mean, mean))[-1]
    assert abs(lost / variance[0] - 1) > 1e-6, "the data do not show the loss of float32"


def test_pca_refuses(logged, make_adata, monkeypatch):
    adata = make_adata(logged)
    adata.var["text"] = "a"
    for options, message in (
        ({"n_comps": 51}, "61 cells x 50 genes: choose 1 to 50"),
        ({"n_comps": 0}, "n_comps=0"),
        ({"mask_var": np.arange(50) < 3, "n_comps": 4}, "3 genes"),
        ({"mask_var": np.zeros(50, bool)}, "n_comps=-1"),
        ({"mask_var": "text"}, "boolean"),
        ({"mask_var": "absent"}, "no column 'absent'"),
        ({"mask_var": np.ones(49, bool)}, "50 genes"),
        ({"mask_var": None, "use_highly_variable": True}, "not both"),
        ({"svd_solver": "lobpcg"}, "lobpcg.*unknown"),
        ({"chunked": True}, "approximation"),
        ({"chunk_size": 10}, "approximation"),
        ({"dtype": "int32"}, "float32 or float64"),
        ({"layer": "raw"}, "no layers.'raw'"),
    ):
        with pytest.raises(InputError, match=message):
            pca(adata, **options)
    with pytest.raises(InputError, match="two cells"):
        pca(logged[:1], 1)
    with pytest.raises(InputError, match="names a column"):
        pca(logged, mask_var="highly_variable")
    with pytest.raises(InputError, match="refers to an AnnData"):
        pca(logged, layer="log")
    bad = logged.toarray()
    bad[3, 4] = np.inf
    with pytest.raises(InputError, match="infinite"):
        pca(bad, 2)
    with pytest.raises(InputError, match=r"31000 genes.*7\.7 GB.*mask_var"):
        pca(da.from_array(sp.csr_matrix((60, 31_000), dtype=np.float32), chunks=(30, 31_000)))
    monkeypatch.setattr(gram, "MAX_GENES", 49)
    with pytest.raises(InputError, match="at most 49"):
        gram_stats(logged)


# --- Gram statistics --------------------------------------------------------------------------


def test_gram_stats_merge_equals_one_block(logged):
    parts = [gram_stats(logged[a:b]) for a, b in ((0, 10), (10, 11), (11, 61))]
    before = [part.gram.copy() for part in parts]
    merged = GramStats.merge(parts)
    whole = gram_stats(logged)
    assert merged.n_cells == whole.n_cells == 61
    np.testing.assert_allclose(merged.sums, whole.sums, rtol=1e-14)
    np.testing.assert_allclose(merged.gram, whole.gram, rtol=1e-13)
    for part, unchanged in zip(parts, before, strict=True):
        np.testing.assert_array_equal(part.gram, unchanged)
    expected = pca(logged, 5, return_info=True)
    got = components(merged, 5)
    np.testing.assert_allclose(got.PCs.T, expected[1], atol=1e-12)
    np.testing.assert_allclose(got.variance, expected[3], rtol=1e-12)
    np.testing.assert_allclose(got.mean, logged.toarray().mean(axis=0, dtype=float), rtol=1e-14)
    with pytest.raises(InputError, match="no Gram"):
        GramStats.merge([])
    with pytest.raises(InputError, match=r"\[49, 50\] genes"):
        GramStats.merge([whole, gram_stats(logged[:, :49])])


def test_gram_accumulator_folds_groups_of_16_blocks(logged):
    """The tree is fixed, so that groups may be summed apart; what comes of it equals one block."""
    rows = [slice(i, i + 1) for i in range(41)] + [slice(41, 41), slice(41, 61)]
    with GramAccumulator(50) as total:
        for part in rows:
            total.add(logged[part])
    stats = total.result()
    groups = []
    for i in range(0, len(rows), 16):
        with GramAccumulator(50) as group:
            for part in rows[i : i + 16]:
                group.add(logged[part])
        groups.append(group.result())
    assert len(groups) == 3
    apart = GramStats.merge_in_place(groups)
    whole = gram_stats(logged)
    assert stats.n_cells == apart.n_cells == whole.n_cells == 61
    for name in ("sums", "gram"):
        np.testing.assert_array_equal(getattr(apart, name), getattr(stats, name))
        np.testing.assert_allclose(getattr(stats, name), getattr(whole, name), rtol=1e-13)
    np.testing.assert_array_equal(stats.gram, stats.gram.T)


def test_gram_accumulator_of_nothing():
    with GramAccumulator(3) as total:
        pass
    stats = total.result()
    assert (stats.n_cells, stats.sums.tolist(), stats.gram.any()) == (0, [0.0] * 3, False)


def test_results_do_not_depend_on_threads(logged, make_adata, block_loads):
    import dask

    found = []
    for workers in (1, 4):
        with dask.config.set(num_workers=workers), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            adata = make_adata(block_loads.dask(logged, 3))
            highly_variable_genes(adata, n_top_genes=20)
            scale(adata, max_value=2)
            pca(adata, 5)
            found.append((adata.var, adata.varm["PCs"], adata.obsm["X_pca"].compute()))
    pd.testing.assert_frame_equal(found[0][0], found[1][0], check_exact=True)
    np.testing.assert_array_equal(found[0][1], found[1][1])
    np.testing.assert_array_equal(found[0][2], found[1][2])
