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


def test_plates_mix_and_lines_stay_apart(shifted: ad.AnnData):
    options = {"theta": [1.5, 2.0], "max_iter_harmony": 3, "random_state": 7}
    ours = sa.pp.harmony_integrate(shifted, ["plate", "donor"], copy=True, **options)
    assert "X_pca_harmony" not in shifted.obsm
    moved = ours.obsm["X_pca_harmony"]
    assert moved.dtype == np.float32
    means = {
        key: pd.DataFrame(ours.obsm[key]).groupby([list(ours.obs["line"]), list(ours.obs["plate"])])
        for key in ("X_pca", "X_pca_harmony")
    }
    spread = {key: m.mean().groupby(level=0).std().to_numpy().mean() for key, m in means.items()}
    assert spread["X_pca_harmony"] < 0.25 * spread["X_pca"]
    # A seed changes the first clusters, and little of the result.
    other = sa.pp.harmony_integrate(
        shifted, ["plate", "donor"], copy=True, **options | {"random_state": 8}
    ).obsm["X_pca_harmony"]
    assert 0 < np.abs(other - moved).mean() < 0.05 * np.abs(moved - shifted.obsm["X_pca"]).mean()


def test_each_option_changes_the_result(shifted: ad.AnnData):
    def moved(**options):
        return sa.pp.harmony_integrate(
            shifted, "plate", copy=True, max_iter_harmony=2, **options
        ).obsm["X_pca_harmony"]

    first = moved()
    changes = {"n_clusters": 5, "max_iter_clustering": 7, "sigma": 0.2, "theta": 1.0, "tau": 20.0}
    changes |= {"ridge_lambda": 1.0, "alpha": 0.9, "block_proportion": 0.2, "random_state": 1}
    changes |= {"batch_prune_threshold": 0.05, "tol_harmony": 10.0}
    for name, value in changes.items():
        assert not np.array_equal(moved(**{name: value}), first), name
    # The passes of a round are more than four only if allowed, and end by themselves.
    many, endless = (moved(max_iter_clustering=50, tol_clustering=tol) for tol in (1e-3, 0.0))
    assert not np.array_equal(many, endless)


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
    refused(r"the components of cell 3 \(counted from 0\) are not finite, or beyond 1e\+30", odd)
    odd = shifted.copy()
    odd.obs["same_as_plate"] = odd.obs["plate"].cat.codes
    refused(
        "'plate'.* and .*'same_as_plate'.* divide the cells alike", odd, ["plate", "same_as_plate"]
    )
    many = sa.pp.sample(shifted, n=1100, replace=True, copy=True)
    many.obs["cell"] = np.arange(1100)
    refused("has 1,100 values, but Harmony mixes at most 1,000", many, "cell")
    with monkeypatch.context() as patch:
        patch.setattr(harmony, "_MAX_COMBINATIONS", 2)
        refused(
            "'plate'.* have 3 combinations of values, but .* at most 2", odd, ["donor", "plate"]
        )
    monkeypatch.setattr(harmony, "available_memory", lambda: 10_000)
    refused(r"600 cells in 8 components takes 0.0 GB, but 0.0 GB", error=TooLargeError)
    assert harmony_bytes(1e6, 50) == 1e6 * (8 * 50 + 32)
    assert harmony_bytes(1e6, 50, streamed=True) == 2**18 * 8 * 50 + 1e6 * 32


@pytest.mark.parametrize(
    "options",
    [{"max_iter_harmony": n} for n in (0, -1, 1.5)]
    + [{"theta": theta} for theta in (-1.0, np.nan, None, 1e39, [1.0, 2.0], [np.nan])]
    + [{"key": []}, {"random_state": 1.5}, {"adjusted_basis": None}, {"n_clusters": 0}]
    + [{name: 0} for name in ("sigma", "alpha", "ridge_lambda", "block_proportion")]
    + [{"batch_prune_threshold": 2}, {"tau": -1}, {"tol_harmony": None}, {"tol_clustering": -1}]
    + [{"max_iter_clustering": 0}],
    ids=str,
)
def test_each_option_is_checked(shifted: ad.AnnData, options):
    name = next(iter(options))
    with pytest.raises(InputError, match=name):
        sa.pp.harmony_integrate(shifted, **{"key": "plate", "copy": True} | options)


@pytest.mark.parametrize(
    ("scale", "message"), [(1e-45, "below 1e-30"), (1e38, "beyond 1e"), (1e150, "beyond 1e")]
)
def test_components_that_single_precision_cannot_hold(shifted: ad.AnnData, scale, message):
    x, labels = shifted.obsm["X_pca"].astype(np.float64) * scale, {"plate": shifted.obs["plate"]}
    with pytest.raises(InputError, match=message):
        harmony.harmonize(x, labels)
    with pytest.raises(InputError, match="60 cells and one component"):
        harmony.harmonize(x[:, :0], labels)


def test_a_batch_of_one_cell_is_told(shifted: ad.AnnData, caplog: pytest.LogCaptureFixture):
    shifted = shifted.copy()
    shifted.obs["odd"] = np.where(np.arange(N) == 5, "lone", shifted.obs["plate"])
    sa.pp.harmony_integrate(shifted, "odd")
    assert "obs['odd']: 1 batches have a single cell" in caplog.text
    assert np.isfinite(shifted.obsm["X_pca_harmony"]).all()


def test_cells_that_are_alike_or_at_the_origin(shifted: ad.AnnData):
    for x in (np.zeros((N, 3)), np.ones((N, 3))):
        shifted = ad.AnnData(obs=shifted.obs, obsm={"X_pca": x})
        sa.pp.harmony_integrate(shifted, "plate")
        np.testing.assert_allclose(shifted.obsm["X_pca_harmony"], x, atol=1e-6)


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
