"""UMAP beside umap-learn: its bits, and in rounds as many kept neighbours."""

from __future__ import annotations

import warnings
from typing import Any

import anndata as ad
import numpy as np
import pytest
import scipy.sparse as sp

from scatlas import tl
from scatlas.errors import InputError
from scatlas.kernels.graphs import umap_cpu
from scatlas.matrix.projection import project_layout
from scatlas.tl import _umap


@pytest.fixture(scope="module")
def umap_learn() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Tensorflow not installed", ImportWarning)
        import umap.umap_ as umap_learn
    return umap_learn


def graph(
    n_cells: int = 220, *, seed: int = 0, density: float = 0.03, dtype: type = np.float32
) -> sp.csr_matrix:
    """Symmetric random weights with some weak edges that no round uses."""
    rng = np.random.default_rng(seed)
    half = sp.random_array((n_cells, n_cells), density=density, rng=rng, data_sampler=rng.random)
    whole = sp.csr_matrix(half.maximum(half.T), dtype=dtype)
    whole.setdiag(0)
    whole.eliminate_zeros()
    whole.data **= 3
    return whole


def annotated(weights: sp.csr_matrix) -> ad.AnnData:
    adata = ad.AnnData(np.zeros((weights.shape[0], 1), np.float32))
    adata.obsp["connectivities"] = weights
    adata.uns["neighbors"] = {"connectivities_key": "connectivities", "params": {}}
    return adata


DISTANCES = {
    "spread": lambda rng: rng.random((80, 15)) * 10 + 5,
    "tight": lambda rng: rng.random((80, 15)) * 1e-3 + 50,
    "one-far": lambda rng: rng.random((80, 15)) * 1e-4 + rng.choice([50, 90], (80, 15)),
    "ties": lambda rng: rng.integers(0, 3, (80, 15)),
    "equal": lambda rng: np.zeros((80, 15)),
    "two": lambda rng: rng.random((80, 2)),
    "wide": lambda rng: rng.random((80, 60)) ** 8 * 1e6,
    "tiny": lambda rng: rng.random((80, 15)) * 1e-30,
    "huge": lambda rng: rng.random((80, 15)) * 1e30,
}


@pytest.mark.parametrize("kind", DISTANCES)
def test_memberships_bit_for_bit(umap_learn: Any, kind: str) -> None:
    rng = np.random.default_rng(0)
    distances = np.sort(DISTANCES[kind](rng), axis=1).astype(np.float32)
    distances[:, 0] = 0
    n_cells, k = distances.shape
    sigma, rho = umap_learn.smooth_knn_dist(distances, float(k), local_connectivity=1.0)
    cells = np.arange(n_cells)
    neighbours = (cells[:, None] + np.arange(k)) % n_cells
    known = umap_learn.compute_membership_strengths(neighbours, distances, sigma, rho)[2]
    found = umap_cpu.memberships(distances.astype(np.float64))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, known.reshape(n_cells, k))


# With the others umap-learn limits sigma by the mean of all rows, which makes a row depend on them.
@pytest.mark.parametrize("kind", ["spread", "one-far", "two"])
def test_memberships_of_the_transform_bit_for_bit(umap_learn: Any, kind: str) -> None:
    distances = np.sort(DISTANCES[kind](np.random.default_rng(0)), axis=1).astype(np.float32)
    sigma, rho = umap_learn.smooth_knn_dist(
        distances, float(distances.shape[1]), local_connectivity=0.0
    )
    assert (sigma > 2e-3 * distances.mean()).all()
    neighbours = np.tile(np.arange(distances.shape[1]), (distances.shape[0], 1))
    known = umap_learn.compute_membership_strengths(
        neighbours, distances, sigma, rho, bipartite=True
    )[2].reshape(distances.shape)
    np.testing.assert_array_equal(umap_cpu.memberships_in_reference(distances), known)


@pytest.mark.weekly
def test_rounds_keep_as_many_neighbours() -> None:
    """The map and the projection of new cells, beside umap-learn's of the same cells."""
    from sklearn.manifold import trustworthiness
    from sklearn.neighbors import NearestNeighbors
    from umap import UMAP

    rng = np.random.default_rng(0)
    steps, which = rng.normal(size=(8, 20)) * 4, rng.integers(0, 8, 1500)
    x = np.cumsum(steps, axis=0)[which] - rng.random((1500, 1)) * steps[which]
    x = (x + rng.normal(size=x.shape) * np.linspace(1, 0.3, 20)).astype(np.float32)
    cells, new = x[:1000], x[1000:]
    with pytest.warns(UserWarning, match="n_jobs value"):
        theirs = UMAP(n_neighbors=15, random_state=0).fit(cells)
    adata = annotated(theirs.graph_)
    curve = theirs._a, theirs._b
    tl.umap(adata, a=curve[0], b=curve[1])
    scores = [trustworthiness(cells, y) for y in (adata.obsm["X_umap"], theirs.embedding_)]
    assert scores[1] > 0.95
    assert scores[0] > scores[1] - 0.005

    distances, neighbours = NearestNeighbors(n_neighbors=15).fit(cells).kneighbors(new)
    keys = np.arange(500, dtype=np.uint64)
    mine = project_layout(theirs.embedding_, neighbours, distances, curve, keys=keys)
    scores = [
        trustworthiness(x, np.vstack([theirs.embedding_, y])) for y in (mine, theirs.transform(new))
    ]
    assert scores[1] > 0.95
    assert scores[0] > scores[1] - 0.01


LAYOUTS = [
    # the graph, whether cells start at one place, options
    ({}, False, {"n_components": 1}),
    ({}, False, {"maxiter": 30, "n_components": 40}),
    ({}, False, {"maxiter": 0}),
    ({}, True, {"maxiter": 9, "negative_sample_rate": 1}),
    ({"dtype": np.float64}, True, {"maxiter": 41, "gamma": 0.0, "alpha": 0.01}),
    ({}, False, {"maxiter": 700, "negative_sample_rate": 9, "a": 0.1, "b": 1.5, "gamma": -0.5}),
    ({"seed": 5}, False, {"maxiter": 30, "alpha": 3.0, "a": 5.0, "b": 0.3, "gamma": 4.0}),
    ({"n_cells": 10_300, "density": 4e-4}, False, {}),  # 200 rounds beyond 10,000 cells, not 500
]


@pytest.mark.parametrize(("of_graph", "coincide", "options"), LAYOUTS)
def test_layout_bit_for_bit(umap_learn: Any, of_graph: dict, coincide: bool, options: dict) -> None:
    weights = graph(**of_graph)
    options = {"n_components": 2, "a": 1.2, "b": 0.8, "gamma": 1.0, "alpha": 1.0} | options
    options = {"maxiter": None, "negative_sample_rate": 5} | options
    shape = weights.shape[0], options["n_components"]
    init = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    if coincide:
        init[10:40] = init[5]
    state, same = np.random.RandomState(3), np.random.RandomState(3)
    renamed = {"alpha": "initial_alpha", "maxiter": "n_epochs"}
    known, _ = umap_learn.simplicial_set_embedding(
        None,
        weights.tocoo(),
        init=init,
        random_state=state,
        metric="euclidean",
        metric_kwds={},
        densmap=False,
        densmap_kwds={},
        output_dens=False,
        **{renamed.get(name, name): value for name, value in options.items()},
    )
    assert np.isfinite(known).all()
    adata = annotated(weights)
    tl.umap(adata, init_pos=init, method="umap-learn", random_state=same, **options)
    np.testing.assert_array_equal(adata.obsm["X_umap"], known)
    # The same random numbers were drawn.
    assert state.random_sample() == same.random_sample()


@pytest.mark.parametrize("method", ["umap", "umap-learn"])
def test_layout_takes_wide_and_unsorted_indices(method: str) -> None:
    weights = graph()
    options = {"maxiter": 15, "init_pos": "random", "method": method, "copy": True}
    known = tl.umap(annotated(weights), **options)
    other = weights.copy()
    other.indices, other.indptr = other.indices.astype(np.int64), other.indptr.astype(np.int64)
    for lo, hi in zip(other.indptr[:-1], other.indptr[1:], strict=True):
        other.indices[lo:hi] = other.indices[lo:hi][::-1]
        other.data[lo:hi] = other.data[lo:hi][::-1]
    other.has_sorted_indices = False
    found = tl.umap(annotated(other), **options)
    np.testing.assert_array_equal(found.obsm["X_umap"], known.obsm["X_umap"])


@pytest.mark.parametrize("spread", [0.5, 1.0, 2.5])
@pytest.mark.parametrize("min_dist", [0.0, 0.1, 0.5])
def test_curve_bit_for_bit(umap_learn: Any, spread: float, min_dist: float) -> None:
    assert _umap._curve(spread, min_dist) == umap_learn.find_ab_params(spread, min_dist)


@pytest.mark.parametrize("fault", [np.nan, np.inf, None])
def test_a_start_that_cannot_be_scaled_is_refused(fault: float | None) -> None:
    init = np.random.default_rng(0).normal(size=(220, 2))
    if fault is None:
        init[:, 1] = 3.0
    else:
        init[7, 0] = fault
    with pytest.raises(InputError, match="not finite, or the same along an axis"):
        tl.umap(annotated(graph()), init_pos=init)
