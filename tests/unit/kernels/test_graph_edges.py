"""Parts, merged nodes and sums with the transpose are SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from scatlas.compute.threads import use_threads
from scatlas.kernels.graphs import edges_cpu
from scatlas.kernels.graphs.communities_cpu import Edges
from scatlas.matrix import communities

RNG = np.random.default_rng(0)


def graph(n: int, per_node: float, *, dtype: type = np.float32) -> sp.csr_matrix:
    """Random edges in one direction, some of weight zero."""
    found = sp.random(n, n, min(1.0, per_node / n), format="csr", rng=np.random.default_rng(n))
    found.data = np.floor(4 * found.data)
    return found.astype(dtype)


def edges_of(graph: sp.csr_matrix) -> Edges:
    return Edges(graph.indptr.astype(np.int64), graph.indices.astype(np.int64), graph.data)


def graph_of_edges(n: int, starts: np.ndarray, ends: np.ndarray) -> sp.csr_matrix:
    return sp.csr_matrix((np.ones(starts.size, np.float32), (starts, ends)), shape=(n, n))


PATH = np.random.default_rng(1).permutation(20_000)
GRAPHS = {
    "few edges": graph(3000, 1.2),
    "many edges": graph(3000, 20, dtype=np.int64),
    "wide indices": sp.csr_matrix(graph(500, 2)),
    "path": graph_of_edges(
        20_000, PATH[:-1], PATH[1:]
    ),  # one long part, whose nodes are in any order
    "star": graph_of_edges(5000, np.full(4999, 2500), np.delete(np.arange(5000), 2500)),
    "no edge": sp.csr_matrix((40, 40), dtype=np.float32),
    "no node": sp.csr_matrix((0, 0), dtype=np.float32),
}
GRAPHS["wide indices"].indices = GRAPHS["wide indices"].indices.astype(np.int64)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("n_labels", [1, 3])
def test_parts(name: str, n_labels: int):
    whole = GRAPHS[name]
    labels = RNG.integers(0, n_labels, whole.shape[0])
    edges = whole.indptr, whole.indices, whole.data
    parts, n_parts = edges_cpu.find_parts(edges, labels)
    kept = whole.tocoo()
    kept.data = kept.data * (labels[kept.row] == labels[kept.col])
    kept = kept.tocsr()
    kept.eliminate_zeros()
    expected_n, expected = connected_components(kept, directed=False)
    assert n_parts == expected_n
    np.testing.assert_array_equal(parts, expected)


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("n_groups", [1, 7, 4000])
def test_merged_nodes(n_threads: int, n_groups: int):
    whole = graph(9000, 10, dtype=np.int64)
    groups = np.append(np.arange(n_groups), RNG.integers(0, n_groups, 9000 - n_groups))
    edges = edges_of(whole)
    with use_threads(n_threads):
        merged = communities._merge(edges, groups, n_groups)
    members = sp.csr_matrix((np.ones(9000, np.int64), (groups, np.arange(9000))))
    expected = members @ whole @ members.T
    found = sp.csr_matrix((merged.weights, merged.indices, merged.indptr), expected.shape)
    assert found.nnz == expected.nnz
    assert (found != expected).nnz == 0


@pytest.mark.parametrize("symmetric", [True, False])
def test_sums_with_the_transpose(symmetric: bool):
    weights = sp.random(2000, 2000, 0.004, format="csr", dtype=np.float32, rng=RNG)
    if symmetric:
        weights = sp.csr_matrix(weights + weights.T)
        weights.data += np.arange(weights.nnz, dtype=np.float32) % 3  # values are not
    both = (weights.astype(np.float64) + weights.T.astype(np.float64)).tocsr()
    scaled = np.rint(both.data * (communities._SCALE / both.data.max())).astype(np.int64)
    expected = sp.csr_matrix((scaled, both.indices, both.indptr), both.shape)
    for n_threads in (1, 3):
        with use_threads(n_threads):
            edges, degrees = communities._whole_edges(weights)
        found = sp.csr_matrix((edges.weights, edges.indices, edges.indptr), both.shape)
        assert (found != expected).nnz == 0
        np.testing.assert_array_equal(degrees, np.asarray(expected.sum(axis=1)).ravel())


def test_weights_inside():
    whole = graph(3000, 20, dtype=np.int64)
    labels = RNG.integers(0, 5, 3000)
    coo = whole.tocoo()
    expected = coo.data[labels[coo.row] == labels[coo.col]].sum()
    edges = edges_of(whole)
    for n_threads in (1, 3):
        with use_threads(n_threads):
            assert communities._weight_inside(edges, labels) == expected
