"""Neighbours, UMAP and Leiden: threads, Dask, searches, errors. (Values: tests/parity.)"""

from __future__ import annotations

import random
from contextlib import ExitStack
from functools import partial
from typing import Any

import anndata as ad
import dask
import dask.array as da
import numba
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from threadpoolctl import threadpool_info, threadpool_limits

from scatlas import tl
from scatlas.errors import InputError
from scatlas.matrix import inverted_lists, knn
from scatlas.pp._neighbors import connectivities, neighbors
from scatlas.tl import _spectral


def blobs(n_cells: int, n_blobs: int, *, distance: float, width: int = 12) -> ad.AnnData:
    rng = np.random.default_rng(0)
    which = np.arange(n_cells) % n_blobs
    centres = rng.normal(size=(n_blobs, width)) * distance
    obs = pd.DataFrame({"blob": pd.Categorical(which.astype(str))})
    obs.index = [f"c{i}" for i in range(n_cells)]
    adata = ad.AnnData(np.zeros((n_cells, 51), np.float32), obs=obs)
    noise = rng.normal(size=(n_cells, width))
    adata.obsm["X_pca"] = (centres[which] + noise).astype(np.float32)
    return adata


def with_threads(n: int) -> ExitStack:
    """BLAS, OpenMP, Numba and our own pool on ``n`` threads."""
    stack = ExitStack()
    most = numba.get_num_threads()
    stack.enter_context(threadpool_limits(n))
    stack.enter_context(dask.config.set(num_workers=n))
    stack.callback(numba.set_num_threads, most)
    numba.set_num_threads(min(n, numba.config.NUMBA_NUM_THREADS))
    return stack


@pytest.fixture(scope="module")
def graph() -> ad.AnnData:
    adata = blobs(300, 3, distance=1.0)
    neighbors(adata, n_neighbors=10)
    return adata


def test_blocks_and_threads_do_not_change_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(1).normal(size=(700, 20)).astype(np.float32)
    x[500:540] = x[3]  # ties
    kwargs = {"metric": "euclidean", "metric_kwds": {}}
    monkeypatch.setattr(knn, "_ROWS_PER_BLOCK", 256)
    with with_threads(1):
        one = knn.exact(x, 15, **kwargs)
    with with_threads(4):
        four = knn.exact(x, 15, **kwargs)
    monkeypatch.setattr(knn, "_ROWS_PER_BLOCK", 2048)
    whole = knn.exact(x, 15, **kwargs)
    for a, b in zip(one, four, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(one[1], whole[1])


@pytest.mark.parametrize("rows", [256, 2048])  # several blocks, and one in this thread
def test_exact_search_leaves_thread_limits_as_they_were(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    def limits() -> dict[str, int]:
        return {library["filepath"]: library["num_threads"] for library in threadpool_info()}

    x = np.random.default_rng(1).normal(size=(300, 5))
    knn.exact(x, 5, metric="euclidean", metric_kwds={})  # loads libraries
    monkeypatch.setattr(knn, "_ROWS_PER_BLOCK", rows)
    with threadpool_limits(3):
        before = limits()
        assert 3 in before.values()
        knn.exact(x, 5, metric="euclidean", metric_kwds={})
        assert limits() == before


def test_threads_change_neither_graph_nor_picture() -> None:
    results = []
    for n in (1, 2):
        with with_threads(n):
            # Blobs far apart: the eigenvectors of parts, and their places, are in it.
            adata = blobs(280, 7, distance=8.0)
            adata.obsm["X_pca"][::20] = adata.obsm["X_pca"][0]
            neighbors(adata, n_neighbors=8)
            tl.umap(adata, maxiter=20)
            tl.leiden(adata, flavor="igraph", n_iterations=2)
            results.append(adata)
    one, two = results
    for key in ("distances", "connectivities"):
        np.testing.assert_array_equal(one.obsp[key].data, two.obsp[key].data)
        np.testing.assert_array_equal(one.obsp[key].indices, two.obsp[key].indices)
    np.testing.assert_array_equal(one.obsm["X_umap"], two.obsm["X_umap"])
    assert list(one.obs["leiden"]) == list(two.obs["leiden"])


def test_twins_keep_themselves_as_first_neighbour() -> None:
    x = np.repeat(np.random.default_rng(0).normal(size=(3, 5)), 20, axis=0)
    indices, distances = knn.exact(x, 6, metric="euclidean", metric_kwds={})
    np.testing.assert_array_equal(indices[:, 0], np.arange(60))
    assert all(len(set(row)) == 6 for row in indices)
    np.testing.assert_allclose(distances, 0, atol=1e-6)
    weights = connectivities(indices, distances)
    assert np.isfinite(weights.data).all()
    assert weights.diagonal().sum() == 0


@pytest.mark.parametrize("kind", ["dense", "csr"])
def test_dask_representation_is_read_once(kind: str, block_loads) -> None:
    plain = blobs(90, 3, distance=2.0)
    x = plain.obsm["X_pca"]
    lazy = plain.copy()
    lazy.obsm["X_pca"] = block_loads.dask(sp.csr_matrix(x) if kind == "csr" else x, rows=20)
    plain.obsm["X_pca"] = sp.csr_matrix(x) if kind == "csr" else x
    neighbors(plain, n_neighbors=6, n_pcs=8, use_rep="X_pca")
    neighbors(lazy, n_neighbors=6, n_pcs=8, use_rep="X_pca")
    assert block_loads.passes() == neighbors.passes == 1
    for key in ("distances", "connectivities"):
        np.testing.assert_array_equal(plain.obsp[key].data, lazy.obsp[key].data)


@pytest.mark.parametrize(("n_blobs", "reads"), [(3, 0), (6, 1)])
def test_umap_reads_the_cells_only_for_a_graph_in_many_parts(
    n_blobs: int, reads: int, block_loads
) -> None:
    adata = blobs(120, n_blobs, distance=10.0)
    neighbors(adata, n_neighbors=6)
    adata.obsm["X_pca"] = block_loads.dask(adata.obsm["X_pca"], rows=40)
    tl.umap(adata, maxiter=11)
    assert block_loads.passes() == reads <= tl.umap.passes


def test_copy_leaves_the_original_alone() -> None:
    adata = blobs(60, 2, distance=1.0)
    with_graph = neighbors(adata, n_neighbors=5, copy=True)
    assert "neighbors" not in adata.uns
    assert not adata.obsp
    with_umap = tl.umap(with_graph, maxiter=11, copy=True)
    assert "X_umap" in with_umap.obsm
    assert "X_umap" not in with_graph.obsm
    with_leiden = tl.leiden(with_graph, copy=True)
    assert "leiden" in with_leiden.obs
    assert "leiden" not in with_graph.obs
    assert neighbors(adata, n_neighbors=5) is None
    assert tl.umap(adata, maxiter=11) is None
    assert tl.leiden(adata) is None


def test_result_survives_h5ad(tmp_path, graph: ad.AnnData) -> None:
    adata = tl.umap(graph, maxiter=11, copy=True)
    tl.leiden(adata)
    adata.write_h5ad(tmp_path / "a.h5ad")
    back = ad.read_h5ad(tmp_path / "a.h5ad")
    assert back.uns["umap"]["params"] == adata.uns["umap"]["params"]
    assert list(back.obs["leiden"].cat.categories) == list(adata.obs["leiden"].cat.categories)
    np.testing.assert_array_equal(
        back.obsp["connectivities"].data, adata.obsp["connectivities"].data
    )


def test_method_none_gives_distances_alone() -> None:
    adata = blobs(40, 2, distance=1.0)
    neighbors(adata, n_neighbors=5, method=None, key_added="d")
    assert set(adata.obsp) == {"d_distances"}


def test_picture_keeps_many_parts_apart() -> None:
    adata = blobs(210, 7, distance=10.0)
    neighbors(adata, n_neighbors=10)
    tl.umap(adata, maxiter=50)
    coordinates = pd.DataFrame(adata.obsm["X_umap"])
    centres = coordinates.groupby(adata.obs["blob"].to_numpy()).mean().to_numpy()
    nearest = ((adata.obsm["X_umap"][:, None] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest.astype(str) == adata.obs["blob"]).mean() > 0.99


@pytest.mark.parametrize("arpack_below", [1000, 0], ids=["arpack", "filters"])
def test_start_is_the_laplacians_eigenvectors(arpack_below: int) -> None:
    adata = blobs(120, 2, distance=0.5)
    neighbors(adata, n_neighbors=8)
    weights = adata.obsp["connectivities"]
    dense = weights.toarray().astype(np.float64)
    root = np.sqrt(dense.sum(axis=0))
    _, vectors = np.linalg.eigh(np.eye(120) - dense / root[:, None] / root[None])
    state = np.random.RandomState(0)
    found = _spectral.start(weights, 2, state, lambda: None, arpack_below=arpack_below)
    overlap = np.abs((vectors[:, 1:3] * found).sum(axis=0)) / np.linalg.norm(found, axis=0)
    np.testing.assert_allclose(overlap, 1, atol=1e-3)


def test_start_falls_back_to_random_when_the_solver_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args, **kwargs):
        raise _spectral.ArpackError(3)

    monkeypatch.setattr(_spectral, "eigsh", fail)
    graph = sp.csr_matrix(np.ones((9, 9)))
    found = _spectral.start(graph, 2, np.random.RandomState(0), lambda: None, arpack_below=1000)
    assert found.shape == (9, 2)
    assert "did not converge" in caplog.text


def test_start_of_tiny_and_coinciding_parts() -> None:
    graph = sp.block_diag([np.ones((2, 2))] * 6, format="csr")
    same = np.ones((12, 4))
    found = _spectral.start(graph, 2, np.random.RandomState(0), lambda: same, arpack_below=1000)
    assert np.isfinite(found).all()
    assert np.abs(found).max() == pytest.approx(10, abs=0.01)


def test_umap_starts_where_it_is_told(graph: ad.AnnData) -> None:
    start = np.random.default_rng(0).normal(size=(300, 2))
    graph.obsm["start"] = start
    by_key = tl.umap(graph, maxiter=11, init_pos="start", copy=True).obsm["X_umap"]
    by_array = tl.umap(graph, maxiter=11, init_pos=start, copy=True).obsm["X_umap"]
    np.testing.assert_array_equal(by_key, by_array)
    other = tl.umap(graph, maxiter=11, init_pos=start, random_state=1, copy=True)
    assert other.uns["umap"]["params"]["random_state"] == 1
    assert (other.obsm["X_umap"] != by_key).any()


@pytest.mark.parametrize("flavor", ["leidenalg", "igraph", "rounds"])
def test_leiden_finds_the_blobs(flavor: str) -> None:
    adata = blobs(360, 12, distance=10.0)
    neighbors(adata, n_neighbors=10)
    state = random.getstate()
    tl.leiden(adata, 0.5, flavor=flavor, n_iterations=2)
    assert random.getstate() == state
    table = pd.crosstab(adata.obs["leiden"], adata.obs["blob"])
    assert ((table > 0).sum(axis=0) == 1).all()
    assert ((table > 0).sum(axis=1) == 1).all()
    assert list(adata.obs["leiden"].cat.categories) == [str(i) for i in range(12)]
    assert adata.uns["leiden"] == {
        "params": {"resolution": 0.5, "random_state": 0, "n_iterations": 2}
    }


def test_leiden_takes_other_graphs(graph: ad.AnnData) -> None:
    adata = graph.copy()
    adata.obsp["mine"] = adata.obsp["connectivities"].copy()
    want = list(tl.leiden(adata, copy=True).obs["leiden"])
    for options in (
        {"obsp": "mine"},
        {"neighbors_key": "neighbors"},
        {"adjacency": sp.csc_array(adata.obsp["mine"])},
        {"adjacency": adata.obsp["mine"].toarray()},
        {"n_iterations": -1.0, "random_state": np.int64(0)},
    ):
        assert list(tl.leiden(adata, **options, copy=True).obs["leiden"]) == want


ERRORS = [
    (neighbors, {"n_neighbors": 1}, "n_neighbors=1 .* whole number from 2 on"),
    (neighbors, {"method": "gauss"}, "method='umap'"),
    (neighbors, {"knn": False}, "knn=True"),
    (neighbors, {"transformer": "rapids"}, "'pynndescent'"),
    (neighbors, {"transformer": "ivf", "metric": "manhattan"}, "leave transformer out"),
    (neighbors, {"recall": 1.2}, "at most 1"),
    (neighbors, {"use_rep": "X_other"}, "no 'X_other' in obsm"),
    (neighbors, {"n_pcs": 13}, "n_pcs=13 .* from 1 to 12"),
    (neighbors, {"n_neighbors": 5.5}, "n_neighbors=5.5 is not possible: give a whole number"),
    (neighbors, {"transformer": "pynndescent", "random_state": -1}, "random_state=-1 is not poss"),
    (tl.umap, {"method": "rapids"}, "method='umap' or 'umap-learn'"),
    (tl.umap, {"negative_sample_rate": 2.5}, "a whole number from 0 on"),
    (tl.umap, {"n_components": 0}, "n_components=0 is not possible: give a whole number from 1 on"),
    (tl.umap, {"maxiter": -1}, "maxiter=-1"),
    (tl.umap, {"min_dist": np.nan}, "min_dist=nan is not possible: give a finite number from 0 on"),
    (tl.umap, {"random_state": "0"}, "random_state='0' is not possible"),
    (tl.umap, {"init_pos": "paga"}, "neither 'spectral', 'random' nor a key"),
    (tl.umap, {"init_pos": np.zeros((3, 2))}, "cells x n_components"),
    (tl.umap, {"neighbors_key": "other"}, r"run sa\.pp\.neighbors first"),
    (tl.leiden, {"flavor": "louvain"}, "'igraph', 'leidenalg' or 'rounds'"),
    (tl.leiden, {"flavor": "igraph", "directed": True}, "directed=False"),
    (tl.leiden, {"flavor": "igraph", "partition_type": object}, "partition_type"),
    (tl.leiden, {"flavor": "rounds", "beta": 0.1}, "does not offer beta"),
    (tl.leiden, {"flavor": "rounds", "resolution": None}, "does not offer resolution=None"),
    (tl.leiden, {"obsp": "mine"}, "no 'mine' in obsp"),
    (tl.leiden, {"obsp": "distances", "neighbors_key": "neighbors"}, "pass one of them"),
    (tl.leiden, {"neighbors_key": "other"}, r"run sa\.pp\.neighbors first"),
    (tl.leiden, {"flavor": "rounds", "resolution": np.nan}, "resolution=nan is not possible"),
    (tl.leiden, {"resolution": "1"}, "resolution='1' is not possible: give a finite number from 0"),
    (tl.leiden, {"random_state": -1}, "random_state=-1 is not possible"),
    (tl.leiden, {"adjacency": np.eye(3)}, r"shape \(3, 3\), but there are"),
    (tl.leiden, {"adjacency": sp.eye(300, format="csr") * -1}, "negative weights"),
    (tl.leiden, {"restrict_to": ("blobs", ["0"])}, "obs has no column 'blobs'"),
    (tl.leiden, {"restrict_to": ("blob", ["0", "9"])}, "which are not all in obs"),
]


@pytest.mark.parametrize(("function", "options", "message"), ERRORS)
def test_errors(graph: ad.AnnData, function: Any, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        function(graph, **options)


def test_neighbors_needs_components_cells_and_numbers() -> None:
    adata = blobs(30, 2, distance=1.0)
    with pytest.raises(InputError, match="at least 3 cells"):
        neighbors(adata[:2].copy())
    adata.obsm["X_pca"][3, 3] = np.nan
    with pytest.raises(InputError, match="not finite"):
        neighbors(adata)
    del adata.obsm["X_pca"]
    with pytest.raises(InputError, match=r"run sa\.pp\.pca first"):
        neighbors(adata)


def test_dask_cut_along_the_components_is_refused() -> None:
    adata = blobs(30, 2, distance=1.0)
    adata.obsm["X_pca"] = da.from_array(adata.obsm["X_pca"], chunks=(10, 5))
    with pytest.raises(InputError, match="rechunk"):
        neighbors(adata)


def test_size_and_metric_choose_the_search(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(knn, "EXACT_UP_TO", 20)
    monkeypatch.setattr(inverted_lists, "FASTER_FROM", 29)
    exact = partial(knn.exact, metric="euclidean", metric_kwds={})
    monkeypatch.setattr(knn, "approximate", lambda x, n, **_: exact(x, n))
    caplog.set_level("INFO")

    def params(n_cells: int, **options: Any) -> dict:
        adata = blobs(n_cells, 2, distance=1.0)
        neighbors(adata, 5, **options)
        return adata.uns["neighbors"]["params"]

    assert params(30, recall=0.9)["recall"] >= 0.9
    assert "inverted lists" in caplog.records[-1].message
    assert "recall" not in params(29)
    assert "exact search" in caplog.records[-1].message
    assert "recall" not in params(30, transformer="sklearn")
    assert "exact search" in caplog.records[-1].message
    params(20, metric="manhattan")
    assert "exact search" in caplog.records[-1].message
    params(30, metric="manhattan")
    assert "NN-descent on one thread (the exact search is for up to 20)" in caplog.text
    params(20, transformer="ivf", metric="cosine")
    assert "inverted lists" in caplog.records[-1].message


def test_inverted_lists_do_not_depend_on_blocks(block_loads) -> None:
    plain = blobs(900, 3, distance=2.0)
    lazy = plain.copy()
    lazy.obsm["X_pca"] = block_loads.dask(plain.obsm["X_pca"], rows=130)
    for adata in (plain, lazy):
        neighbors(adata, n_pcs=8, transformer="ivf", random_state=3)
    assert block_loads.passes() == 1
    assert plain.uns["neighbors"] == lazy.uns["neighbors"]
    for key in ("distances", "connectivities"):
        np.testing.assert_array_equal(plain.obsp[key].indices, lazy.obsp[key].indices)
        np.testing.assert_array_equal(plain.obsp[key].data, lazy.obsp[key].data)


def test_graph_gone_missing(graph: ad.AnnData) -> None:
    adata = graph.copy()
    del adata.obsp["connectivities"]
    with pytest.raises(InputError, match=r"run sa\.pp\.neighbors again"):
        tl.leiden(adata)
