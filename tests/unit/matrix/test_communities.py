"""Leiden in rounds: modularity beside igraph's, connected communities, bits, kernels."""

from __future__ import annotations

import igraph
import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components
from sklearn.neighbors import kneighbors_graph

from scatlas.compute.threads import use_threads
from scatlas.kernels.graphs import communities_cpu
from scatlas.matrix import communities


@pytest.fixture(scope="module")
def graph() -> sp.csr_matrix:
    """Cells along the branches of a tree: communities without clear borders."""
    rng = np.random.default_rng(0)
    steps, which = rng.normal(size=(9, 12)) * 4, rng.integers(0, 9, 4000)
    x = np.cumsum(steps, axis=0)[which] - rng.random((4000, 1)) * steps[which]
    near = kneighbors_graph(x + rng.normal(size=x.shape), 12, mode="distance")
    near.data = np.exp(-near.data / near.data.mean())
    return sp.csr_matrix(near.maximum(near.T), dtype=np.float32)


def modularity(graph: sp.csr_matrix, labels: np.ndarray, resolution: float) -> float:
    edges, degrees = graph.tocoo(), np.asarray(graph.sum(axis=1), float).ravel()
    inside = edges.data[labels[edges.row] == labels[edges.col]].sum(dtype=float)
    totals = np.bincount(labels, weights=degrees)
    return inside / degrees.sum() - resolution * (totals**2).sum() / degrees.sum() ** 2


def n_parts(graph: sp.csr_matrix, labels: np.ndarray) -> int:
    edges = graph.tocoo()
    inside = labels[edges.row] == labels[edges.col]
    ends = edges.row[inside], edges.col[inside]
    return connected_components(sp.coo_matrix((np.ones(inside.sum()), ends), graph.shape))[0]


@pytest.mark.parametrize("resolution", [0.5, 1.0, 2.0])
def test_modularity_is_within_half_a_percent_of_igraphs(
    graph: sp.csr_matrix, resolution: float
) -> None:
    found = communities.leiden(graph, resolution=resolution, n_iterations=-1, seed=0)
    edges = sp.triu(graph).tocoo()
    theirs = igraph.Graph(4000, np.column_stack([edges.row, edges.col]).tolist())
    known = theirs.community_leiden(
        "modularity", weights=edges.data.tolist(), resolution=resolution, n_iterations=2
    )
    least = modularity(graph, np.asarray(known.membership), resolution)
    assert least > 0.5
    assert modularity(graph, found, resolution) > 0.995 * least
    assert n_parts(graph, found) == found.max() + 1 > 3


def test_bits_depend_neither_on_threads_nor_on_blocks(
    graph: sp.csr_matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(communities, "_SWEEP_UP_TO", 100)
    found = []
    for threads, fewest in ((1, 10_000), (2, 100), (4, 37)):
        monkeypatch.setattr("scatlas.compute.threads._CELLS_PER_BLOCK", fewest)
        with use_threads(threads):
            found.append(communities.leiden(graph, resolution=1, n_iterations=2, seed=3))
    np.testing.assert_array_equal(found[1:], found[:1] * 2)
    other = communities.leiden(graph, resolution=1, n_iterations=2, seed=4)
    assert (other != found[0]).any()


@pytest.mark.parametrize("sweep_up_to", [0, 100])
def test_parts_and_lone_cells_are_communities(
    sweep_up_to: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(communities, "_SWEEP_UP_TO", sweep_up_to)
    blocks = [np.ones((4, 4)), np.ones((9, 9)), np.zeros((2, 2)), np.ones((2, 2))]
    weights = sp.csr_matrix(sp.block_diag(blocks))
    found = communities.leiden(weights, resolution=1, n_iterations=-1, seed=0)
    np.testing.assert_array_equal(found, np.repeat(np.arange(5), [4, 9, 1, 1, 2]))
    none = communities.leiden(sp.csr_matrix((3, 3)), resolution=1, n_iterations=-1, seed=0)
    np.testing.assert_array_equal(none, np.arange(3))


def test_proposals_have_the_largest_gain() -> None:
    rng = np.random.default_rng(0)
    half = rng.integers(0, 9, (30, 30)) * (rng.random((30, 30)) < 0.3)
    dense = half + half.T
    whole = sp.csr_matrix(dense)
    edges = communities_cpu.Edges(
        whole.indptr.astype(np.int64), whole.indices.astype(np.int64), whole.data
    )
    degrees, labels = dense.sum(axis=1), rng.integers(0, 6, 30)
    sizes = np.bincount(labels, minlength=30)
    totals = np.bincount(labels, weights=degrees, minlength=30).astype(np.int64)
    state = communities_cpu.Communities(labels, totals, sizes)
    out, penalty = np.full(30, -1), 1 / degrees.sum()
    options = {"penalty": penalty, "only_single": False, "share": 1, "number": 0, "seed": 0}
    communities_cpu.propose(edges, degrees, state, labels, out, (0, 30), **options)
    others = dense - np.diag(np.diag(dense))
    for i in range(30):
        gains = np.full(30, -np.inf)
        for label in {labels[i], *labels[others[i] > 0]}:
            total = degrees[(labels == label) & (np.arange(30) != i)].sum()
            gains[label] = others[i, labels == label].sum() - penalty * degrees[i] * total
        np.testing.assert_allclose(gains[out[i]], gains.max(), rtol=1e-12)
