"""The map's kernels on the GPU against the CPU's: lists, neighbours, graph, layout, votes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

cp = pytest.importorskip("cupy")

import scatlas as sa  # noqa: E402
from scatlas.kernels import csr_arrays  # noqa: E402
from scatlas.kernels.graphs import edges_cpu, edges_gpu, layout_cpu, layout_gpu  # noqa: E402
from scatlas.kernels.graphs.communities_cpu import Edges  # noqa: E402
from scatlas.matrix import (  # noqa: E402
    communities,
    graph_eigenvectors,
    inverted_lists,
    inverted_lists_gpu,
    knn,
    projection,
    reference_map,
)
from scatlas.pp._neighbors import connectivities  # noqa: E402
from scatlas.tl import _spectral  # noqa: E402
from tests.unit.kernels.test_graph_edges import GRAPHS  # noqa: E402

CURVE = (0.583, 1.334)
OPTIONS = {"gamma": 1.0, "negative_sample_rate": 5, "alpha": 1.0}


def points(n_cells: int, width: int, dtype: Any = np.float32, *, apart: float = 2.0) -> np.ndarray:
    """Points like components: a few wide axes, many narrow ones, groups of unequal size."""
    rng = np.random.default_rng(0)
    which = (9 * rng.random(n_cells) ** 3).astype(int)
    groups = rng.normal(size=(9, width))[which]
    wide = np.geomspace(9, 1, width)
    return ((apart * groups + rng.normal(size=groups.shape)) * wide).astype(dtype)


def annotated(x: np.ndarray) -> ad.AnnData:
    names = pd.Index([f"c{i}" for i in range(x.shape[0])])
    adata = ad.AnnData(sp.csr_matrix((x.shape[0], 51), dtype=np.float32), pd.DataFrame(index=names))
    adata.obsm["X_pca"] = x
    return adata


def on_gpu(adata: ad.AnnData) -> ad.AnnData:
    adata = adata.copy()
    adata.obsm["X_pca"] = cp.asarray(adata.obsm["X_pca"])
    return adata


def assert_same(gpu: tuple, cpu: tuple) -> None:
    """Equal numbers and bits."""
    for a, b in zip(gpu, cpu, strict=True):
        np.testing.assert_array_equal(cp.asnumpy(a), b)


def far_and_equal() -> np.ndarray:
    """Tight groups far from the origin, and equal cells."""
    x = points(6000, 30) + np.float32(1e3)
    x[1000:1500] = x[7]
    x[3000:3020] = 0
    return x


# Cells, number of neighbours, options.
LISTS: dict[str, tuple[Callable[[], np.ndarray], int, dict[str, Any]]] = {
    **{
        f"{metric} {dtype}": (partial(points, 12_000, 50, dtype), 15, {"metric": metric})
        for metric in inverted_lists.METRICS
        for dtype in ("float32", "float64")
    },
    **{
        f"{n} cells of {width}": (partial(points, n, width), k, {})
        for n, width, k in ((2, 5, 2), (40, 3, 40), (700, 1, 5))
    },
    **{f"width {n}": (partial(points, 3000, n), 10, {}) for n in (8, 64, 65, 300)},
    **{f"{k} neighbours": (partial(points, 4000, 20), k, {}) for k in (2, 30, 60, 130)},
    **{
        f"far, {metric}": (far_and_equal, 15, {"metric": metric})
        for metric in ("euclidean", "cosine")
    },
    "products that overflow": (lambda: (points(2000, 10) * 1e19).astype(np.float32), 10, {}),
    "many cells": (partial(points, 300_000, 50, apart=1.0), 15, {"recall": 0.95}),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_and_neighbours_have_the_cpus_bits(name):
    make, n_neighbors, options = LISTS[name]
    x = make()
    cpu = inverted_lists.build(x, n_neighbors, **options)
    gpu = inverted_lists.build(cp.asarray(x), n_neighbors, **options)
    assert isinstance(gpu, inverted_lists_gpu.GpuInvertedLists)
    for part in ("order", "bounds", "centre_of"):
        assert_same([getattr(gpu, part)], [getattr(cpu, part)])
    assert_same([gpu.centres.exact], [cpu.centres.x])
    assert (gpu.n_probes, gpu.recall) == (cpu.n_probes, cpu.recall)
    found = gpu.neighbors(n_neighbors)
    assert_same(found, cpu.neighbors(n_neighbors))
    assert found[0].dtype == np.int32
    assert_same(gpu.neighbors(n_neighbors), tuple(map(cp.asnumpy, found)))


def test_new_cells():
    x, new = points(20_000, 50), points(31_000, 50)[20_000:]
    cpu, gpu = inverted_lists.build(x, 15), inverted_lists.build(cp.asarray(x), 15)
    for number in (1, 15, 40):
        assert_same(gpu.search(new, number), cpu.search(new, number))
    whole = [cp.asnumpy(part) for part in gpu.search(new, 15)]
    assert_same(gpu.search(new[:7], 15), [part[:7] for part in whole])


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_exact_search(metric):
    x = points(5000, 30, np.float64)
    expected = knn.exact(x, 15, metric=metric, metric_kwds={})
    indices, distances = map(cp.asnumpy, inverted_lists_gpu.exact(cp.asarray(x), 15, metric=metric))
    np.testing.assert_array_equal(indices, expected[0])
    np.testing.assert_allclose(distances, expected[1], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("equal", [0, 1500])
def test_graph(equal):
    """Equal cells make rows of more edges than a warp sorts."""
    x = points(9000, 30)
    x[:equal] = x[0]
    found = inverted_lists.build(x, 15).neighbors(15)
    cpu = connectivities(*found)
    gpu = connectivities(*map(cp.asarray, (found[0].astype(np.int32), found[1])))
    assert (np.diff(cpu.indptr).max() > 512) == (equal > 0)
    for name in ("indptr", "indices"):
        np.testing.assert_array_equal(getattr(gpu, name), getattr(cpu, name))
        assert getattr(gpu, name).dtype == getattr(cpu, name).dtype
    np.testing.assert_allclose(gpu.data, cpu.data, rtol=1e-5)


@pytest.fixture(scope="module")
def graph():
    x = points(30_000, 20)
    found = inverted_lists.build(x, 15).neighbors(15)
    return x, connectivities(*found)


@pytest.mark.parametrize("n_components", [2, 3])
def test_a_round_is_the_cpus(graph, n_components):
    x, weights = graph
    n = weights.shape[0]
    before = np.ascontiguousarray(x[:, :n_components] / 5)
    keys = np.arange(n, dtype=np.uint64)
    for number, pulls in ((1, 2), (2, 1), (120, 2)):
        cpu, gpu = np.empty_like(before), cp.empty_like(cp.asarray(before))
        options = {"number": number, "rate": 0.7, "damping": 0.4, "pulls": pulls, "seed": 2**63 + 5}
        options |= {"gamma": 1.3, "negative_sample_rate": 5}
        edges = weights.indptr.astype(np.int64), weights.indices, weights.data
        layout_cpu.run_round(before, cpu, before, edges, keys, CURVE, (0, n), **options)
        there = cp.asarray(before)
        on_device = tuple(map(cp.asarray, edges))
        layout_gpu.run_round(there, gpu, there, on_device, None, CURVE, **options)
        move = np.abs(cpu - before).max()
        np.testing.assert_allclose(gpu.get(), cpu, rtol=1e-5, atol=1e-5 * move)
        assert (cpu != before).all(axis=1).mean() > 0.5


def test_layout_keeps_neighbourhoods_as_the_cpus(graph):
    from sklearn.manifold import trustworthiness

    x, weights = graph
    start = np.ascontiguousarray(x[:, :2] / 5)
    edges = weights.indptr.astype(np.int64), weights.indices, weights.data
    options = {"n_epochs": 200, "seed": 0, **OPTIONS}
    cpu = projection.lay_out(start, edges, CURVE, **options)
    there = cp.asarray(start), tuple(map(cp.asarray, edges))
    runs = [projection.lay_out(*there, CURVE, **options) for _ in range(2)]
    assert_same([runs[0]], [runs[1].get()])
    rows = np.random.default_rng(0).choice(x.shape[0], 4000, replace=False)
    scores = [trustworthiness(x[rows], y[rows], n_neighbors=15) for y in (cpu, runs[0].get())]
    assert abs(scores[0] - scores[1]) < 0.005, scores


@pytest.mark.parametrize("resolution", [0.3, 2.0])
def test_clusters_are_the_cpus(graph, resolution, monkeypatch):
    monkeypatch.setattr(edges_gpu, "_EDGES_AT_ONCE", 100_000)
    _, weights = graph
    options = {"resolution": resolution, "n_iterations": 2, "seed": 5}
    cpu = communities.leiden(weights, **options)
    gpu = communities.leiden(weights, to_device=cp.asarray, **options)
    assert cpu.max() > 5
    np.testing.assert_array_equal(gpu, cpu)


def test_projection_votes_and_distances_are_the_cpus(monkeypatch):
    monkeypatch.setattr(projection, "N_EPOCHS", 2)
    x, new = points(9000, 30), points(12_000, 30)[9000:]
    new[:100] = x[:100]
    rng = np.random.default_rng(1)
    index = inverted_lists.build(x, 15)
    neighbours, distances = index.search(new, 15)
    places = (x[:, :2] / 5).copy()
    codes, usual = rng.integers(-1, 6, 9000), rng.random(9000) + 0.1
    keys = np.arange(3000, dtype=np.uint64) + 77
    there = [cp.asarray(part) for part in (places, neighbours, distances, codes, usual, keys)]
    options = {"seed": 5}
    cpu = projection.project_layout(places, neighbours, distances, CURVE, keys=keys, **options)
    gpu = projection.project_layout(*there[:3], CURVE, keys=there[5], **options)
    np.testing.assert_allclose(gpu.get(), cpu, rtol=1e-5, atol=1e-5)
    winners, shares = projection.vote_labels(codes, neighbours, distances)
    found = projection.vote_labels(there[3], *there[1:3])
    np.testing.assert_allclose(found[1].get(), shares, rtol=1e-5)
    assert (found[0].get() == winners).mean() > 0.999
    np.testing.assert_allclose(
        projection.novelty(*there[1:3], there[4]).get(),
        projection.novelty(neighbours, distances, usual),
        rtol=1e-12,
    )
    with pytest.raises(sa.errors.InputError, match="has 50 cells"):
        projection.vote_labels(there[3][:50], *there[1:3])


def test_map_of_all_cells():
    x = points(20_000, 30)
    rows = np.arange(0, 20_000, 4)
    sample = reference_map.Sample(
        rows, x[rows, :2] / 5, np.arange(rows.size) % 7, np.ones(rows.size), CURVE, 15, 3
    )
    found = []
    for cells in (x[rows], cp.asarray(x[rows])):
        index = inverted_lists.build(cells, 15)
        parts = list(reference_map.map_cells(sample, index, [x[:6000], x[6000:]]))
        columns = {name: np.concatenate([p[1][name] for p in parts]) for name in parts[0][1]}
        found.append((np.concatenate([p[0] for p in parts]), columns))
    cpu, gpu = found
    assert isinstance(gpu[0], np.ndarray)
    np.testing.assert_array_equal(gpu[0][rows], sample.coordinates)
    assert np.median(np.abs(gpu[0] - cpu[0])) < 1e-4
    for name in ("leiden_share", "map_distance"):
        np.testing.assert_allclose(gpu[1][name], cpu[1][name], rtol=1e-5)
    assert (gpu[1]["leiden"] == cpu[1]["leiden"]).mean() > 0.999


@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("weight_dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_blocks", [1, 2])
def test_steps_of_filters_have_the_same_bits(index_dtype, weight_dtype, n_blocks):
    rng = np.random.default_rng(0)
    n = 3001
    graph = sp.random(n, n, 0.005, format="csr", dtype=weight_dtype, rng=rng) + sp.eye(n)
    edges = (
        graph.indptr.astype(np.int64),
        graph.indices.astype(index_dtype),
        graph.data.astype(weight_dtype),
    )
    degrees = rng.random(n) + 1
    vectors, before = rng.normal(size=(2, n_blocks, n, edges_cpu.WIDTH))
    on_device = cp.asarray(vectors), cp.asarray(before)
    edges_there, degrees_there = tuple(map(cp.asarray, edges)), cp.asarray(degrees)
    factors = (2.7, -0.3, 1.0)
    edges_cpu.run_step(vectors, before, before, edges, degrees, factors, (0, n))
    edges_gpu.run_step(*on_device, on_device[1], edges_there, degrees_there, factors)
    np.testing.assert_array_equal(on_device[1].get(), before)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("label_dtype", [np.int8, np.int64])
def test_connected_parts(name, label_dtype):
    graph = GRAPHS[name]
    labels = np.random.default_rng(0).integers(0, 3, graph.shape[0]).astype(label_dtype)
    edges = graph.indptr.astype(np.int64), graph.indices, graph.data
    expected, n_expected = edges_cpu.find_parts(edges, labels)
    there = tuple(map(cp.asarray, edges))
    for _ in range(3):  # trees are joined in any order
        parts, n_parts = edges_gpu.find_parts(there, cp.asarray(labels))
        assert n_parts == n_expected
        np.testing.assert_array_equal(parts.get(), expected)
    assert parts.dtype == expected.dtype
    one = np.zeros_like(labels)
    np.testing.assert_array_equal(
        edges_gpu.find_parts(there, cp.asarray(one))[0].get(),
        edges_cpu.find_parts(edges, one)[0],
    )


@pytest.mark.parametrize("name", GRAPHS)
def test_sums_with_the_transpose(name):
    for graph in (GRAPHS[name].copy(), sp.csr_matrix(GRAPHS[name] + GRAPHS[name].T)):
        graph.data = np.random.default_rng(0).random(graph.nnz).astype(np.float32)
        edges, rows, out = csr_arrays(graph)[::-1], (0, graph.shape[0]), np.empty(graph.nnz)
        if graph.nnz:
            there = tuple(map(cp.asarray, edges)), cp.asarray(out), rows
            complete = edges_gpu.add_transposed(*there)
            assert edges_cpu.add_transposed(edges, out, rows) == complete
            assert not complete or (there[1].get() == out).all()
        gpu, cpu = (communities._whole_edges(graph, to) for to in (cp.asarray, np.asarray))
        assert_same((*gpu.edges, gpu.degrees), (*cpu.edges, cpu.degrees))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_centres_of_parts_have_numpys_bits(dtype):
    x, labels = points(9000, 30, dtype), np.random.default_rng(0).integers(0, 7, 9000)
    parts = _spectral._Parts(None, *edges_cpu.positions_by_label(labels, 7), *6 * [None])
    found = [_spectral._centres(parts, labels, 2, lambda x=x: x) for x in (x, cp.asarray(x))]
    np.testing.assert_array_equal(*found)


def test_weights_inside_communities():
    graph = GRAPHS["many edges"]
    wide = [part.astype(np.int64) for part in (graph.indptr, graph.indices, graph.data)]
    labels = np.random.default_rng(0).integers(0, 3, graph.shape[0])
    expected = edges_cpu.weigh_inside(Edges(*wide), labels, (0, labels.size))
    found = edges_gpu.weigh_inside(Edges(*map(cp.asarray, wide)), cp.asarray(labels))
    assert found == expected


def test_eigenvectors_of_a_graph():
    cpu = annotated(points(20_000, 30))
    sa.pp.neighbors(cpu, n_pcs=20)
    graph = cpu.obsp["connectivities"]
    degrees = graph.sum(axis=1, dtype=np.float64).A1
    vectors = graph_eigenvectors.random_vectors(20_000, 3)
    expected, *runs = (
        graph_eigenvectors.eigenvectors(
            tuple(map(to, csr_arrays(graph)[::-1])), to(degrees), to(vectors), 3, tolerance=1e-8
        )
        for to in (np.array, cp.asarray, cp.asarray)
    )
    np.testing.assert_array_equal(*runs)
    np.testing.assert_allclose(np.abs((runs[0] * expected).sum(axis=0)), 1, atol=1e-9)


@pytest.mark.parametrize("transformer", [None, "sklearn", "ivf"])
def test_public_functions(transformer, caplog):
    caplog.set_level("INFO")
    cpu = annotated(points(12_000, 30))
    gpu, again = on_gpu(cpu), on_gpu(cpu)
    for adata in (cpu, gpu, again):
        sa.pp.neighbors(adata, n_pcs=20, transformer=transformer)
        sa.tl.umap(adata, maxiter=30)
    assert "UMAP of 12000 cells: on the GPU" in caplog.text
    assert gpu.uns["neighbors"] == cpu.uns["neighbors"]
    assert gpu.uns["umap"] == cpu.uns["umap"]
    for key in ("distances", "connectivities"):
        a, b = gpu.obsp[key], cpu.obsp[key]
        np.testing.assert_array_equal(a.indices, b.indices)
        # A weight is exp(-e), and bisection finds the width in e to 1e-5; the CPU's exact search
        # rounds distances otherwise.
        np.testing.assert_allclose(a.data, b.data, rtol=1e-5 if transformer != "sklearn" else 1e-3)
        assert [part.dtype for part in (a.data, a.indices, a.indptr)] == [
            part.dtype for part in (b.data, b.indices, b.indptr)
        ]
    x = gpu.obsm["X_umap"]
    assert (type(x), x.dtype, x.shape) == (np.ndarray, np.float32, (12_000, 2))
    np.testing.assert_array_equal(again.obsm["X_umap"], x)


def test_sparse_cells_and_other_metrics_are_the_cpus(caplog):
    x = sp.random(200, 30, density=0.3, format="csr", dtype=np.float32, random_state=0)
    cpu, gpu = ad.AnnData(x), ad.AnnData(sa.get.X_to_GPU(x))
    for adata in (cpu, gpu):
        sa.pp.neighbors(adata)
    assert "these are sparse: neighbours on the CPU" in caplog.text
    np.testing.assert_array_equal(gpu.obsp["distances"].data, cpu.obsp["distances"].data)
    cpu = annotated(points(300, 10))
    gpu = on_gpu(cpu)
    for adata in (cpu, gpu):
        sa.pp.neighbors(adata, metric="manhattan")
    assert "not 'manhattan': neighbours on the CPU" in caplog.text
    np.testing.assert_array_equal(gpu.obsp["distances"].data, cpu.obsp["distances"].data)
