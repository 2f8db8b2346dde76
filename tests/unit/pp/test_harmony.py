"""Mixing by Harmony, and what says how well cells are mixed: LISI."""

from __future__ import annotations

import anndata as ad
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import scatlas as sa
import scatlas.tl._lisi as lisi
from scatlas.compute.memory import harmony_bytes
from scatlas.compute.threads import use_threads
from scatlas.errors import InputError, TooLargeError
from scatlas.matrix import harmony

N, DIMS, LINES = 600, 8, 4


@pytest.fixture(scope="module")
def shifted() -> ad.AnnData:
    """Cells of four lines on three plates, each of which moves its cells its own way."""
    rng = np.random.default_rng(0)
    line, plate = rng.integers(0, LINES, N), np.arange(N) % 3
    x = rng.normal(0, 8, (LINES, DIMS))[line] + rng.normal(0, 2, (3, DIMS))[plate]
    x += rng.normal(0, 1, x.shape)
    obs = pd.DataFrame(index=[f"c{i}" for i in range(N)])
    obs["plate"] = pd.Categorical.from_codes(plate, ["p1", "p2", "p3"])
    obs["line"] = pd.Categorical.from_codes(line, list("abcd"))
    obs["donor"] = [f"d{i}" for i in plate // 2]
    return ad.AnnData(obs=obs, obsm={"X_pca": x.astype(np.float32)})


def test_it_is_what_harmonypy_gives(shifted: ad.AnnData):
    from harmonypy import run_harmony

    options = {"theta": 1.5, "max_iter_harmony": 3, "random_state": 7}
    keys = ["plate", "donor"]
    x = shifted.obsm["X_pca"].astype(np.float64)
    theirs = run_harmony(x, shifted.obs, keys, verbose=False, **options).Z_corr
    ours = sa.pp.harmony_integrate(shifted, keys, copy=True, **options)
    assert "X_pca_harmony" not in shifted.obsm
    assert ours.obsm["X_pca_harmony"].dtype == np.float32
    np.testing.assert_array_equal(ours.obsm["X_pca_harmony"], theirs.astype(np.float32))
    other = sa.pp.harmony_integrate(shifted, "plate", copy=True, **options)
    assert not np.array_equal(other.obsm["X_pca_harmony"], ours.obsm["X_pca_harmony"])


def test_threads_and_dask_change_no_bit(shifted: ad.AnnData):
    found = []
    for threads in (1, 2, 5):
        with use_threads(threads):
            found.append(sa.pp.harmony_integrate(shifted, "plate", copy=True))
    lazy = shifted.copy()
    lazy.obsm["X_pca"] = da.from_array(shifted.obsm["X_pca"], chunks=(101, DIMS))
    sa.pp.harmony_integrate(lazy, "plate", adjusted_basis="X_mixed")
    for other in (*(f.obsm["X_pca_harmony"] for f in found[1:]), lazy.obsm["X_mixed"]):
        np.testing.assert_array_equal(other, found[0].obsm["X_pca_harmony"])


def test_as_many_cells_as_components():
    """The library tells one from the other by the number of cells."""
    x = np.random.default_rng(0).normal(size=(60, 60)).astype(np.float32)
    labels = {"plate": pd.Categorical(np.arange(60) % 2)}
    moved = harmony.harmonize(x, labels)
    wide = harmony.harmonize(np.c_[x, np.zeros((60, 1), np.float32)], labels)
    np.testing.assert_allclose(moved, wide[:, :60], atol=1e-4)


def test_refusals(shifted: ad.AnnData, monkeypatch: pytest.MonkeyPatch):
    def refused(match: str, adata: ad.AnnData = shifted, key="plate", error=InputError, **options):
        with pytest.raises(error, match=match):
            sa.pp.harmony_integrate(adata, key, copy=True, **options)

    refused("no 'X_umap' in obsm .basis.: run sa.tl.umap first", basis="X_umap")
    refused(r"no column 'batch' \(key\); it has plate, line, donor", key=["plate", "batch"])
    refused("60 cells and one component, but there are 59 and 8", shifted[:59])
    odd = shifted.copy()
    odd.obs["same"], odd.obs["gap"] = "x", odd.obs["plate"].cat.remove_categories("p1")
    refused(r"obs\['same'\] has the same value, 'x', for all cells", odd, "same")
    refused(r"obs\['gap'\] has no value for 200 cells", odd, "gap")
    odd.obsm["X_pca"][3, 3] = np.nan
    refused("not finite", odd)
    monkeypatch.setattr(harmony, "available_memory", lambda: 100_000)
    refused(r"600 cells in 8 components takes 0.0 GB, but 0.0 GB", error=TooLargeError)
    assert harmony_bytes(1e6, 50) == 1e6 * (40 * 50 + 10 * 100 + 64)


@pytest.mark.parametrize(
    "options",
    [{"max_iter_harmony": n} for n in (0, -1, 2**31, 1.5)]
    + [{"theta": theta} for theta in (-1.0, np.nan, 1e39, [1.0])]
    + [{"key": []}, {"random_state": 1.5}, {"adjusted_basis": None}],
    ids=str,
)
def test_each_option_is_checked_before_the_library_gets_it(shifted: ad.AnnData, options):
    name = next(iter(options))
    with pytest.raises(InputError, match=name):
        sa.pp.harmony_integrate(shifted, **{"key": "plate", "copy": True} | options)


@pytest.mark.parametrize("scale", [1e-45, 1e38, 1e150])
def test_components_that_single_precision_cannot_hold(shifted: ad.AnnData, scale):
    """The library gives zeros, or never returns."""
    x, labels = shifted.obsm["X_pca"].astype(np.float64) * scale, {"plate": shifted.obs["plate"]}
    with pytest.raises(InputError, match="beyond 1e-30 to 1e"):
        harmony.harmonize(x, labels)
    with pytest.raises(InputError, match="60 cells and one component"):
        harmony.harmonize(x[:, :0], labels)


def test_seeds_above_31_bits(shifted: ad.AnnData):
    x, labels = shifted.obsm["X_pca"], {"plate": shifted.obs["plate"]}
    moved = harmony.harmonize(x, labels, random_state=2**32 - 1, max_iter_harmony=1)
    assert not np.array_equal(moved, harmony.harmonize(x, labels, max_iter_harmony=1))


# LISI -------------------------------------------------------------------------------------------


def by_hand(neighbors: sp.csr_matrix, labels: pd.Series) -> list[float]:
    out = []
    for i in range(neighbors.shape[0]):
        near = labels.iloc[neighbors[i].indices].dropna().astype(str)
        shares = near.value_counts(normalize=True)
        out.append(1 / (shares**2).sum() if len(near) else np.nan)
    return out


@pytest.fixture
def graph() -> ad.AnnData:
    """Cells with 0 to 9 neighbours; a third of the cells has no label."""
    rng = np.random.default_rng(1)
    n = 150
    rows = [np.sort(rng.choice(n, i % 10, replace=False)) for i in range(n)]
    indptr = np.r_[0, np.cumsum([len(row) for row in rows])]
    distances = sp.csr_matrix(
        (np.zeros(indptr[-1]), np.concatenate(rows), indptr), shape=(n, n)
    )  # identical cells: explicit zeros
    obs = pd.DataFrame(index=[f"c{i}" for i in range(n)])
    obs["kind"] = pd.Categorical.from_codes(rng.integers(-1, 3, n), ["x", "y", "z"])
    obs["day"] = rng.integers(0, 3, n)
    adata = ad.AnnData(obs=obs, obsp={"distances": distances})
    adata.uns["neighbors"] = {"distances_key": "distances"}
    return adata


@pytest.mark.parametrize("column", ["kind", "day"])
@pytest.mark.parametrize("at_once", [1, 7, 2**22])
def test_lisi_counts_the_neighbours(graph, column, at_once, monkeypatch):
    monkeypatch.setattr(lisi, "_AT_ONCE", at_once)
    expected = by_hand(graph.obsp["distances"], graph.obs[column])
    copy = sa.tl.lisi(graph, column, copy=True)
    assert f"lisi_{column}" not in graph.obs
    np.testing.assert_allclose(copy.obs[f"lisi_{column}"], expected, rtol=1e-15)
    assert np.isnan(copy.obs[f"lisi_{column}"].to_numpy()[::10]).all()
    graph.obs[column] = graph.obs[column].cat.codes if column == "kind" else "same"
    if column == "day":
        sa.tl.lisi(graph, column)
        assert set(graph.obs["lisi_day"].dropna()) == {1.0}


def test_lisi_refuses(graph):
    with pytest.raises(InputError, match="no column 'batch'"):
        sa.tl.lisi(graph, "batch")
    with pytest.raises(InputError, match=r"no neighbours in uns\['harmony'\]"):
        sa.tl.lisi(graph, "day", neighbors_key="harmony")
    del graph.obsp["distances"]
    with pytest.raises(InputError, match=r"and obsp\['distances'\]: run sa.pp.neighbors first"):
        sa.tl.lisi(graph, "day")
