"""UMAP in rounds: bits, shapes of tiny groups, unusual graphs, eigenvectors of large graphs."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pytest
import scipy.sparse as sp

from scatlas import tl
from scatlas.compute.threads import use_threads
from scatlas.kernels import csr_arrays
from scatlas.matrix import projection
from scatlas.matrix.graph_eigenvectors import eigenvectors, random_vectors
from scatlas.pp import neighbors


def graph_of(x: np.ndarray, n_neighbors: int = 10) -> sp.csr_matrix:
    """Symmetric graph of nearest neighbours with weights that fall with their rank."""
    d = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    np.fill_diagonal(d, np.inf)
    near = np.argsort(d, axis=1)[:, :n_neighbors]
    weights = np.exp(-np.arange(n_neighbors) / 4).astype(np.float32)
    rows = np.repeat(np.arange(len(x)), n_neighbors)
    half = sp.csr_matrix((np.tile(weights, len(x)), (rows, near.ravel())), shape=(len(x), len(x)))
    return sp.csr_matrix(half.maximum(half.T))


def lay_out(start: np.ndarray, weights: sp.csr_matrix, n_epochs: int, seed: int) -> np.ndarray:
    graph = weights.indptr, weights.indices, weights.data
    options = {"gamma": 1.0, "negative_sample_rate": 5, "alpha": 1.0, "seed": seed}
    return projection.lay_out(start, graph, (0.583, 1.334), n_epochs=n_epochs, **options)


def annotated(weights: sp.csr_matrix) -> ad.AnnData:
    adata = ad.AnnData(np.zeros((weights.shape[0], 1), np.float32))
    adata.obsm["X_pca"] = np.random.default_rng(0).normal(size=(weights.shape[0], 4))
    adata.obsp["connectivities"] = weights
    adata.uns["neighbors"] = {"connectivities_key": "connectivities", "params": {}}
    return adata


@pytest.mark.parametrize("n_components", [2, 3])
def test_bits_depend_neither_on_threads_nor_on_blocks(
    n_components: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    weights = graph_of(rng.normal(size=(900, 6)))
    start = (rng.random((900, n_components)) * 10).astype(np.float32)
    kept = start.copy()
    found = []
    for threads, fewest in ((1, 1000), (2, 10), (4, 37)):
        monkeypatch.setattr("scatlas.compute.threads._CELLS_PER_BLOCK", fewest)
        with use_threads(threads):
            found.append(lay_out(start, weights, 30, seed=3))
    np.testing.assert_array_equal(start, kept)
    assert found[0].dtype == np.float32
    assert (found[0] != start).all()
    np.testing.assert_array_equal(found[1:], found[:1] * 2)
    assert (lay_out(start, weights, 30, seed=4) != found[0]).all()


def test_tiny_groups_are_round() -> None:
    """The fourth moment of the angles is 1 for a cross along the axes, -1 along the diagonals.

    Moving all cells at once, with each axis of a force limited by itself, gives -0.4.
    """
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(40), 25)
    x = rng.normal(size=(40, 8))[group] * 30 + rng.normal(size=(1000, 8))
    start = (x[:, :2] - x[:, :2].min(axis=0)).astype(np.float32) / 10
    y = lay_out(start, graph_of(x, 14), 300, seed=0)
    centres = np.array([y[group == g].mean(axis=0) for g in range(40)])
    along, across = (y - centres[group]).T
    assert abs(np.cos(4 * np.arctan2(across, along)).mean()) < 0.1
    radius = np.hypot(along, across)
    assert 0.1 < radius.mean() < 2
    apart = np.linalg.norm(centres[:, None] - centres[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    assert (radius < apart.min(axis=1)[group] / 2).all()


@pytest.mark.parametrize("n_cells", [2, 3, 7])
@pytest.mark.parametrize("weight", [0, 1])
def test_few_cells(n_cells: int, weight: int) -> None:
    adata = annotated(sp.csr_matrix(weight * (1 - np.eye(n_cells, dtype=np.float32))))
    tl.umap(adata, maxiter=50, init_pos="random")
    assert np.abs(adata.obsm["X_umap"]).max() < 100


def test_cells_without_neighbours_stay_where_they_start() -> None:
    weights = graph_of(np.random.default_rng(0).normal(size=(60, 3)))
    weights = sp.csr_matrix(sp.block_diag([weights, sp.csr_matrix((4, 4))]))
    adata = annotated(weights)
    start, end = (tl.umap(adata, maxiter=n, copy=True).obsm["X_umap"] for n in (0, 30))
    assert np.isfinite(end).all()
    np.testing.assert_array_equal(end[60:], start[60:])
    assert (end[:60] != start[:60]).any(axis=1).all()


@pytest.mark.parametrize("n", [3, 11])
def test_eigenvectors_are_lapacks(n: int) -> None:
    rng = np.random.default_rng(0)
    t = rng.random((400, 1))
    weights = graph_of(np.hstack([t * 20, rng.normal(size=(400, 3))]))
    dense = weights.toarray().astype(np.float64)
    root = np.sqrt(dense.sum(axis=0))
    known = np.linalg.eigh(dense / root[:, None] / root)[1][:, ::-1][:, :n]
    matrix = csr_arrays(weights)[::-1], np.asarray(weights.sum(axis=1, dtype=np.float64)).ravel()
    found = eigenvectors(*matrix, random_vectors(400, n), n, tolerance=1e-9)
    with use_threads(3):
        again = eigenvectors(*matrix, random_vectors(401, n)[:-1], n, tolerance=1e-9)
    np.testing.assert_array_equal(again, found)
    np.testing.assert_allclose(np.abs((found * known).sum(axis=0)), 1, atol=1e-9)
    assert (found.max(axis=0) == np.abs(found).max(axis=0)).all()


def test_small_parts_far_away_stay_near_the_map():
    """They press the large part into a small area at the start, where all cells push at once."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(12, 30)) * 2
    large = centres[rng.integers(0, 12, 12_000)] + rng.normal(size=(12_000, 30)) * 1.2
    far = [rng.choice([20, 60, 200]) * rng.normal(size=30) for _ in range(60)]
    small = [place + rng.normal(size=(18, 30)) * 0.1 for place in far]
    adata = ad.AnnData(np.zeros((13_080, 1), np.float32))
    adata.obsm["X_pca"] = np.vstack([large, *small]).astype(np.float32)
    neighbors(adata, use_rep="X_pca")
    tl.umap(adata)
    found = adata.obsm["X_umap"]
    low, high = np.percentile(found[:12_000], [1, 99], axis=0)
    assert (np.ptp(found, axis=0) < 2 * (high - low)).all()
