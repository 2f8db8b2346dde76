"""scale, pca and Gram statistics: passes, blocks, errors, keys and dtypes."""

from __future__ import annotations

import warnings

import anndata as ad
import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp

from scatlas.errors import InputError
from scatlas.matrix import gram
from scatlas.matrix.gram import GramAccumulator, GramStats, gram_stats
from scatlas.pp._pca import pca
from scatlas.pp._scale import scale


@pytest.fixture
def logged(make_counts):
    """Log-normalised float32 CSR, 61 cells x 50 genes, with empty cells and an empty gene."""
    counts = make_counts(61, 50).astype(np.float64)
    totals = np.asarray(counts.sum(axis=1)).ravel()
    x = sp.diags(100 / np.maximum(totals, 1)) @ counts
    return sp.csr_matrix(x.log1p().astype(np.float32))


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


# --- scale ------------------------------------------------------------------------------------


def test_scale_of_layers_and_obsm(counts, make_adata):
    scaled = scale(counts, zero_center=False)
    assert scaled.dtype == np.float64
    few = counts.toarray()[:, :3].astype(np.float64)
    use = np.arange(60) < 50
    adata = make_adata(np.zeros((60, 50)))
    adata.layers["counts"], adata.obsm["few"], adata.obs["use"] = counts, few.copy(), use
    scale(adata, layer="counts", zero_center=False)
    assert (adata.layers["counts"] != scaled).nnz == 0
    assert list(adata.var) == ["mt", "mean", "std"]
    scale(adata, obsm="few", mask_obs="use", zero_center=False)
    np.testing.assert_array_equal(adata.obsm["few"], scale(few, mask_obs=use, zero_center=False))
    assert list(adata.var) == ["mt", "mean", "std"]
    scale(adata, layer="counts", mask_obs="use", zero_center=False)
    assert list(adata.var)[-2:] == ["mean of use", "std of use"]


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
    cells, PCs, _, _ = pca(logged[:, mask], 4, dtype="float64", return_info=True)
    np.testing.assert_array_equal(out.obsm["p"], cells)
    np.testing.assert_array_equal(out.varm["p"][mask], PCs.T)
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
    centred = x.astype(np.float64) - x.mean(axis=0, dtype=np.float64)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    variance, cells = sizes[:3] ** 2 / 2999, centred @ axes[:3].T
    for matrix in (x, block_loads.dask(x, 701), block_loads.dask(sp.csr_matrix(x), 701)):
        x_pca, _, _, got = pca(matrix, 3, return_info=True)
        np.testing.assert_allclose(got, variance, rtol=1e-9)
        room = 1e-5 * np.abs(cells).max()
        np.testing.assert_allclose(np.abs(np.asarray(x_pca)), np.abs(cells), atol=room)
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
