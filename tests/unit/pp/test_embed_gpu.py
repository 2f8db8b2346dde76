"""Neighbours, UMAP and Leiden on GPUs, without one: device, library and log.

CuPy is stood in for by NumPy, cuVS's searches by products in float32 that break ties at random: the
arithmetic is done, by other means. Results of the libraries themselves are tested in tests/gpu.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import scatlas.kernels
from scatlas import blocks, tl
from scatlas.errors import InputError
from scatlas.kernels.build.rapids import load_library
from scatlas.matrix import knn
from scatlas.pp import _neighbors, neighbors
from scatlas.tl import _leiden, _umap

ROOT = Path(__file__).parents[3]


class OnGpu(np.ndarray):
    """A NumPy array that passes for CuPy's."""

    def get(self) -> np.ndarray:
        return np.array(self)


OnGpu.__module__ = "cupy"


def as_cupy() -> ModuleType:
    """NumPy under CuPy's name, as far as ``knn_gpu`` goes."""

    def on_gpu(function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            return np.asarray(function(*args, **options)).view(OnGpu)

        return call

    fake = ModuleType("cupy")
    fake.__dict__.update({name: getattr(np, name) for name in np.__all__})
    for name in ("arange", "array", "concatenate", "empty", "flatnonzero", "sort", "where"):
        setattr(fake, name, on_gpu(getattr(np, name)))
    for name in ("asarray", "ascontiguousarray", "clip", "sqrt", "take_along_axis"):
        setattr(fake, name, on_gpu(getattr(np, name)))
    fake.argsort = on_gpu(lambda x, axis=-1: np.argsort(x, axis=axis, kind="stable"))
    stream = SimpleNamespace(synchronize=lambda: None)
    fake.cuda = SimpleNamespace(
        get_current_stream=lambda: stream, get_allocator=lambda: None, set_allocator=print
    )
    return fake


def kernel_of_pairs(file: str, name: str, dtype: Any) -> Any:
    """``knn.cu``, with the arguments checked that its pointers do not check."""
    assert file == "graphs/knn"
    terms = {"squared_distances": lambda a, b: (a - b) ** 2, "products": lambda a, b: a * b}

    def run(grid: Any, block: Any, args: tuple) -> None:
        x, n_dims, rows, n_rows, columns, n_columns, out = args
        assert x.flags.c_contiguous
        assert (x.dtype, n_dims) == (dtype, x.shape[1])
        assert (rows.dtype, rows.shape) == (np.int64, (n_rows,))
        assert (out.dtype, out.shape) == (np.float64, (n_rows, n_columns))
        if columns is scatlas.kernels.build.cuda.NULL:
            columns = np.broadcast_to(np.arange(n_columns), out.shape)
        else:
            assert columns.flags.c_contiguous
            assert (columns.dtype, columns.shape) == (np.int64, (n_rows, n_columns))
        x = np.asarray(x, np.float64)
        out[:] = terms[name](x[np.asarray(rows)][:, None], x[np.asarray(columns)]).sum(axis=2)

    return run


class BruteForce:
    """cuVS's exact search, in float32; which of equal candidates come first changes."""

    rng = np.random.default_rng()

    @staticmethod
    def build(x: np.ndarray, metric: str) -> tuple[np.ndarray, str]:
        assert x.dtype == np.float32
        assert x.flags.c_contiguous
        return np.asarray(x), metric

    @classmethod
    def search(cls, index: Any, queries: Any, k: int, neighbors: Any, distances: Any) -> None:
        x, metric = index
        rough = np.asarray(queries) @ x.T
        if metric == "sqeuclidean":
            rough = (x**2).sum(axis=1) - 2 * rough + (np.asarray(queries) ** 2).sum(axis=1)[:, None]
        key = -rough if metric == "inner_product" else rough
        order = np.lexsort((cls.rng.random(key.shape), key))[:, :k]
        neighbors[:], distances[:] = order, np.take_along_axis(rough, order, axis=1)


class NNDescent:
    """cuVS's NN-descent, with some places not filled."""

    IndexParams = SimpleNamespace
    lacking = slice(0, 0)

    @classmethod
    def build(cls, params: SimpleNamespace, x: np.ndarray) -> SimpleNamespace:
        shape = x.shape[0], params.graph_degree
        found, rough = np.empty(shape, np.int64), np.empty(shape, np.float32)
        BruteForce.search((np.asarray(x), params.metric), x, shape[1], found, rough)
        found[cls.lacking, 3:] = np.iinfo(np.uint32).max
        return SimpleNamespace(graph=found.astype(np.uint32))


CUVS = SimpleNamespace(brute_force=BruteForce, nn_descent=NNDescent)


@pytest.fixture
def knn_gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, over the stand-ins."""
    names = ("scatlas.kernels.build.cuda", "scatlas.kernels.graphs.knn_gpu")

    def forget() -> dict[str, ModuleType | None]:
        for name in names:
            package, _, module = name.rpartition(".")
            vars(importlib.import_module(package)).pop(module, None)
        return {name: sys.modules.pop(name, None) for name in names}

    before = forget()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cupy", as_cupy())
        patch.setattr(blocks, "on_host", np.asarray)
        module = importlib.import_module("scatlas.kernels.graphs.knn_gpu")
        patch.setattr(module.cuda, "kernel", kernel_of_pairs)
        yield module
    forget()
    for name, real in before.items():  # where there is a CuPy
        if real is not None:
            sys.modules[name] = real
            package, _, module = name.rpartition(".")
            setattr(importlib.import_module(package), module, real)


@pytest.fixture
def without_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    packages = {"cuvs", "cuml", "pylibcugraph"}

    class Nowhere:
        @staticmethod
        def find_spec(name: str, *_: Any) -> None:
            if name in packages:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Nowhere, *sys.meta_path])


def cells(n_cells: int, *, width: int = 12, n_groups: int = 4) -> ad.AnnData:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(n_groups, width))[np.arange(n_cells) % n_groups] * 3
    names = pd.Index([f"c{i}" for i in range(n_cells)])
    adata = ad.AnnData(np.zeros((n_cells, 51), np.float32), obs=pd.DataFrame(index=names))
    adata.obsm["X_pca"] = (x + rng.normal(size=x.shape)).astype(np.float32)
    return adata


def moved(adata: ad.AnnData) -> ad.AnnData:
    adata = adata.copy()
    adata.obsm["X_pca"] = adata.obsm["X_pca"].view(OnGpu)
    return adata


def plain_scores(x: np.ndarray, metric: str) -> np.ndarray:
    x = x.astype(np.float64)
    if metric == "cosine":
        lengths = np.linalg.norm(x, axis=1, keepdims=True)
        x = x / np.where(lengths > 0, lengths, 1)
        return 1 - x @ x.T
    squares = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    return squares if metric == "sqeuclidean" else np.sqrt(squares)


def plain_neighbours(x: np.ndarray, k: int, metric: str) -> tuple[np.ndarray, np.ndarray]:
    scores = plain_scores(x, metric)
    np.fill_diagonal(scores, -1)
    order = np.argsort(scores, axis=1, kind="stable")[:, :k]
    np.fill_diagonal(scores, 0)
    return order, np.take_along_axis(scores, order, axis=1)


# --- the libraries -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("cuvs.neighbors", "cuVS"),
        ("cuml.manifold.umap", "cuML"),
        ("pylibcugraph", "cuGraph (pylibcugraph)"),
    ],
)
def test_what_is_not_installed_is_named(without_libraries, caplog, module: str, name: str):
    assert load_library(module, "something") is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"{name} is not installed: something on the CPU" in record.message
    assert "scatlas[gpu-embed-cu12] or scatlas[gpu-embed-cu13]" in record.message


@pytest.mark.parametrize(
    "error", ["ImportError('no symbol')", "OSError('no symbol')", "ImportError('no symbol') from e"]
)
def test_what_does_not_load_says_why(tmp_path, monkeypatch, caplog, error: str):
    text = f"try:\n    import no_such_thing\nexcept ImportError as e:\n    raise {error}\n"
    (tmp_path / "cuvs.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cuvs", raising=False)
    assert load_library("cuvs", "neighbours") is None
    assert "cuVS does not load (no symbol): neighbours on the CPU" in caplog.text


def test_a_library_that_lacks_another_is_not_called_missing(tmp_path, monkeypatch, caplog):
    (tmp_path / "cuml.py").write_text("import no_such_thing\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cuml", raising=False)
    assert load_library("cuml", "UMAP") is None
    assert "cuML does not load (No module named 'no_such_thing')" in caplog.text


def test_cupys_allocator_stays_whose_it_was(tmp_path, monkeypatch):
    """cuML sets it when it is imported."""
    fake, now = ModuleType("cupy"), ["pool"]
    fake.cuda = SimpleNamespace(get_allocator=lambda: now[-1], set_allocator=now.append)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    (tmp_path / "cuml.py").write_text("import cupy\ncupy.cuda.set_allocator('rmm')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cuml", raising=False)
    assert load_library("cuml", "UMAP").__name__ == "cuml"
    monkeypatch.delitem(sys.modules, "cuml")
    assert now == ["pool", "rmm", "pool"]


# --- without them --------------------------------------------------------------------------------


def test_without_the_libraries_all_is_the_cpus(knn_gpu, without_libraries, caplog):
    cpu = cells(90)
    gpu = moved(cpu)
    for adata in (cpu, gpu):
        caplog.clear()
        neighbors(adata, n_neighbors=8)
        tl.umap(adata, maxiter=11)
        tl.leiden(adata, flavor="igraph", n_iterations=2)
    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert [text.partition(" is not installed: ")[0] for text in warned] == [
        *("cuVS", "cuML", "cuGraph (pylibcugraph)")
    ]
    for key in ("distances", "connectivities"):
        np.testing.assert_array_equal(gpu.obsp[key].data, cpu.obsp[key].data)
    np.testing.assert_array_equal(gpu.obsm["X_umap"], cpu.obsm["X_umap"])
    assert list(gpu.obs["leiden"]) == list(cpu.obs["leiden"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "manhattan"}, "not 'manhattan': neighbours on the CPU"),
        ({"metric_kwds": {"squared": False}}, "without metric_kwds"),
        ({"transformer": "ivf"}, "transformer='ivf' has no GPU kernels: neighbours on the CPU"),
    ],
)
def test_what_cuvs_is_not_asked_for(knn_gpu, caplog, options: dict, message: str):
    x = moved(cells(30)).obsm["X_pca"]
    given = {"metric": "euclidean", "metric_kwds": {}} | options
    assert _neighbors._cuvs(x, **given) is None
    assert message in caplog.text


def test_nothing_is_said_where_the_cells_are_not_on_a_gpu(without_libraries, caplog):
    adata = cells(60)
    neighbors(adata, n_neighbors=6)
    tl.umap(adata, maxiter=11)
    tl.leiden(adata, n_iterations=2)
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_a_graph_follows_the_cells_it_was_made_of(knn_gpu, without_libraries, caplog):
    """Components gone, or another matrix on the GPU than the graph's: the CPU's, without a word."""
    adata = cells(60)
    adata.obsm["other"] = adata.obsm["X_pca"].copy()
    neighbors(adata, n_neighbors=6, use_rep="other")
    adata.obsm["X_pca"] = adata.obsm["X_pca"].view(OnGpu)
    tl.leiden(adata, n_iterations=2)
    neighbors(adata, n_neighbors=6, key_added="gone")
    del adata.obsm["X_pca"]
    caplog.clear()
    tl.leiden(adata, n_iterations=2, neighbors_key="gone")
    tl.leiden(adata, n_iterations=2, adjacency=adata.obsp["gone_connectivities"])
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_a_missing_gpu_is_an_error_whatever_is_installed(tmp_path):
    cells(40).write_h5ad(tmp_path / "subset.h5ad")
    paths = {"subset": "subset.h5ad", "neighbors": "new.h5ad", "manifest": "new.json"}
    options = [text for name, path in paths.items() for text in (f"--{name}", tmp_path / path)]
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "neighbors.py", *options, "--backend", "gpu"],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "error: backend: gpu cannot be used" in done.stderr
    assert not (tmp_path / "new.h5ad").exists()


# --- neighbours ----------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["euclidean", "l2", "sqeuclidean", "cosine"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
@pytest.mark.parametrize("shift", [0, 100])
def test_candidates_in_float32_give_exact_neighbours(knn_gpu, metric, dtype, shift, monkeypatch):
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(400, 20)) * np.linspace(900, 30, 20) + 10 * shift).astype(dtype)
    monkeypatch.setattr(knn_gpu, "_ROWS", 150)
    indices, distances = knn_gpu.exact(x.view(OnGpu), 12, metric=metric, cuvs=CUVS)
    order, scores = plain_neighbours(x, 12, metric)
    assert (indices.dtype, distances.dtype) == (np.int64, np.float64)
    assert type(indices) is type(distances) is np.ndarray
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_allclose(distances, scores, rtol=1e-12, atol=4e-16)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_more_twins_than_candidates(knn_gpu, metric, caplog):
    """Which of them cuVS proposes is chance; the neighbours are those of least number."""
    caplog.set_level("INFO")
    x = np.random.default_rng(0).normal(size=(300, 10)).astype(np.float32)
    x[100:200] = x[5]
    x[250] = 0
    runs = [knn_gpu.exact(x.view(OnGpu), 6, metric=metric, cuvs=CUVS) for _ in range(2)]
    assert "compared with all" in caplog.text
    for a, b in zip(*runs, strict=True):
        np.testing.assert_array_equal(a, b)
    indices, distances = runs[0]
    np.testing.assert_array_equal(
        indices[[5, 150]], [[5, *range(100, 105)], [150, 5, *range(100, 104)]]
    )
    np.testing.assert_allclose(distances[5], 0, atol=1e-15)
    np.testing.assert_array_equal(indices[:, 0], np.arange(300))
    _, scores = plain_neighbours(x, 6, metric)
    np.testing.assert_allclose(distances, scores, atol=1e-15, rtol=1e-12)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("value", [0, 3])
def test_cells_that_are_all_the_same(knn_gpu, metric, value):
    x = np.full((100, 5), value, np.float32)
    indices, distances = knn_gpu.exact(x.view(OnGpu), 4, metric=metric, cuvs=CUVS)
    np.testing.assert_array_equal(indices[[0, 1, 50]], [[0, 1, 2, 3], [1, 0, 2, 3], [50, 0, 1, 2]])
    apart = metric == "cosine" and value == 0
    np.testing.assert_allclose(distances[:, 1:], float(apart), atol=1e-15)


@pytest.mark.parametrize("n_cells", [3, 20])
def test_few_cells(knn_gpu, n_cells):
    x = np.random.default_rng(0).normal(size=(n_cells, 4))
    indices, distances = knn_gpu.exact(x.view(OnGpu), n_cells, metric="euclidean", cuvs=CUVS)
    order, scores = plain_neighbours(x, n_cells, "euclidean")
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_allclose(distances, scores, rtol=1e-12)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_what_nn_descent_finds_is_ranked_exactly(knn_gpu, metric, monkeypatch):
    x = np.random.default_rng(0).normal(size=(300, 10)).astype(np.float32)
    monkeypatch.setattr(knn_gpu, "_ROWS", 128)
    monkeypatch.setattr(NNDescent, "lacking", slice(7, 9))
    indices, distances = knn_gpu.approximate(x.view(OnGpu), 3, metric=metric, cuvs=CUVS)
    order, scores = plain_neighbours(x, 3, metric)
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_allclose(distances, scores, rtol=1e-12, atol=4e-16)
    with pytest.raises(InputError, match="fewer than 15 neighbours for 2 cells"):
        knn_gpu.approximate(x.view(OnGpu), 15, metric=metric, cuvs=CUVS)


def test_neighbors_are_written_as_from_the_cpu(knn_gpu, monkeypatch, caplog):
    caplog.set_level("INFO")
    asked = []
    monkeypatch.setattr(_neighbors, "load_library", lambda *names: asked.append(names) or CUVS)
    cpu = cells(200)
    gpu = moved(cpu)
    neighbors(cpu, n_pcs=10)
    neighbors(gpu, n_pcs=10)
    assert asked == [("cuvs.neighbors", "neighbours")]
    assert "200 cells in 10 dimensions: exact search on the GPU" in caplog.text
    assert gpu.uns["neighbors"] == cpu.uns["neighbors"]
    for key, rtol in (("distances", 1e-6), ("connectivities", 1e-4)):
        a, b = gpu.obsp[key], cpu.obsp[key]
        assert type(a) is type(b)
        assert [part.dtype for part in (a.data, a.indices, a.indptr)] == [
            part.dtype for part in (b.data, b.indices, b.indptr)
        ]
        np.testing.assert_array_equal(a.indices, b.indices)
        np.testing.assert_array_equal(a.indptr, b.indptr)
        np.testing.assert_allclose(a.data, b.data, rtol=rtol)


def test_which_search_a_gpu_makes(knn_gpu, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(_neighbors, "load_library", lambda *_: CUVS)
    monkeypatch.setattr(knn_gpu, "EXACT_UP_TO", 80)
    monkeypatch.setattr(knn, "EXACT_UP_TO", 0)
    neighbors(moved(cells(81)), n_neighbors=5)
    assert "NN-descent on the GPU (the exact search is for up to 80)" in caplog.messages[-1]
    neighbors(moved(cells(81)), n_neighbors=5, transformer="sklearn")
    assert "exact search on the GPU" in caplog.messages[-1]
    neighbors(moved(cells(80)), n_neighbors=5)
    assert "exact search on the GPU" in caplog.messages[-1]
    neighbors(moved(cells(80)), n_neighbors=5, transformer="pynndescent")
    assert "NN-descent on the GPU (asked for)" in caplog.messages[-1]


def test_values_that_are_not_finite_on_a_gpu(knn_gpu, monkeypatch):
    monkeypatch.setattr(_neighbors, "load_library", lambda *_: CUVS)
    adata = moved(cells(40))
    adata.obsm["X_pca"][3, 3] = np.inf
    with pytest.raises(InputError, match="'X_pca' holds values that are not finite"):
        neighbors(adata)


# --- UMAP and Leiden -----------------------------------------------------------------------------


@pytest.fixture
def graph(knn_gpu, monkeypatch) -> ad.AnnData:
    """An AnnData with a graph whose cells are on the GPU; libraries are stand-ins."""
    adata = cells(120)
    neighbors(adata, n_neighbors=8)
    for module in (_umap, _leiden):
        monkeypatch.setattr(module, "load_library", lambda name, work: f"{name} for {work}")
    return moved(adata)


def stand_in(monkeypatch, name: str, function: str, result: Any) -> list:
    """A module of kernels of which one function is called, and says what it gets."""
    calls, module = [], ModuleType(name)
    setattr(module, function, lambda *args, **options: calls.append((args, options)) or result)
    monkeypatch.setitem(sys.modules, f"scatlas.kernels.graphs.{name}", module)
    monkeypatch.setattr(scatlas.kernels.graphs, name, module, raising=False)
    return calls


@pytest.mark.parametrize("init", ["spectral", "random", "array"])
def test_what_cuml_is_asked_for(graph, monkeypatch, init: str):
    places = np.arange(240, dtype=np.float32).reshape(120, 2)
    calls = stand_in(monkeypatch, "umap_gpu", "layout", places)
    rng = np.random.default_rng(0)
    given = rng.normal(size=(120, 2)).astype(np.float32).view(OnGpu) if init == "array" else init
    tl.umap(graph, maxiter=30, alpha=0.7, gamma=2.0, random_state=5, a=1.5, b=0.9, init_pos=given)
    ((edges, start, curve), options) = calls[0]
    assert curve == (1.5, 0.9)
    assert options == {
        "n_components": 2,
        "n_epochs": 30,
        "alpha": 0.7,
        "gamma": 2.0,
        "negative_sample_rate": 5,
        "random_state": 5,
        "cuml": "cuml.manifold.umap for UMAP",
    }
    weights = graph.obsp["connectivities"]
    assert edges.has_canonical_format
    assert edges.data.min() >= weights.data.max() / 30
    assert edges.nnz == (weights.data >= weights.data.max() / np.float32(30)).sum()
    if init == "array":
        np.testing.assert_array_equal(start.min(axis=0), 0)
        np.testing.assert_array_equal(start.max(axis=0), 10)
        assert np.corrcoef(start[:, 0], np.asarray(given)[:, 0])[0, 1] == pytest.approx(1)
    else:
        assert start == init
    np.testing.assert_array_equal(graph.obsm["X_umap"], places)
    assert graph.uns["umap"]["params"] == {"a": 1.5, "b": 0.9, "random_state": 5}


def test_no_round_needs_no_gpu(graph, monkeypatch):
    calls = stand_in(monkeypatch, "umap_gpu", "layout", None)
    tl.umap(graph, maxiter=0)
    assert calls == []
    assert np.isfinite(graph.obsm["X_umap"]).all()


def test_what_cugraph_is_asked_for(graph, monkeypatch):
    labels = np.repeat([7, 3, 9, 4], [10, 50, 10, 50])
    calls = stand_in(monkeypatch, "leiden_gpu", "communities", labels)
    tl.leiden(graph, 0.6, random_state=3, flavor="igraph", directed=False, n_iterations=2)
    ((adjacency,), options) = calls[0]
    assert adjacency is graph.obsp["connectivities"]
    assert options == {
        "resolution": 0.6,
        "seed": 3,
        "weighted": True,
        "cugraph": "pylibcugraph for Leiden clusters",
    }
    # by size, then by the first cell
    assert list(graph.obs["leiden"]) == list(np.repeat(["2", "0", "3", "1"], [10, 50, 10, 50]))
    assert list(graph.obs["leiden"].cat.categories) == ["0", "1", "2", "3"]
    assert graph.uns["leiden"]["params"] == {
        "resolution": 0.6,
        "random_state": 3,
        "n_iterations": 2,
    }


def test_a_part_of_the_cells_goes_to_cugraph(graph, monkeypatch):
    graph.obs["half"] = pd.Categorical(np.where(np.arange(120) < 60, "a", "b"))
    calls = stand_in(monkeypatch, "leiden_gpu", "communities", np.arange(60) // 40)
    tl.leiden(graph, restrict_to=("half", ["a"]), use_weights=False)
    ((adjacency,), options) = calls[0]
    assert adjacency.shape == (60, 60)
    assert not options["weighted"]
    assert list(graph.obs["leiden_R"]) == ["a,0"] * 40 + ["a,1"] * 20 + ["b"] * 60


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"directed": True}, "directed=True"),
        ({"resolution": None, "partition_type": "Modularity"}, "partition_type, resolution=None"),
        ({"max_comm_size": 20}, "max_comm_size"),
    ],
)
def test_what_cugraph_does_not_offer_is_the_cpus(graph, monkeypatch, caplog, options, name):
    calls = stand_in(monkeypatch, "leiden_gpu", "communities", None)
    if "partition_type" in options:
        import leidenalg

        options = options | {"partition_type": leidenalg.ModularityVertexPartition}
    on_cpu = graph.copy()
    on_cpu.obsm["X_pca"] = np.asarray(graph.obsm["X_pca"])
    tl.leiden(graph, n_iterations=2, **options)
    assert f"cuGraph's Leiden does not offer {name}: clusters on the CPU" in caplog.text
    assert calls == []
    tl.leiden(on_cpu, n_iterations=2, **options)
    assert list(graph.obs["leiden"]) == list(on_cpu.obs["leiden"])


def test_sparse_cells_are_the_cpus(knn_gpu, caplog):
    class SparseOnGpu(sp.csr_matrix):
        """A SciPy matrix that passes for CuPyX's."""

    SparseOnGpu.__module__ = "cupyx.scipy.sparse"
    x = SparseOnGpu(cells(30).obsm["X_pca"])
    assert _neighbors._cuvs(x, "euclidean", {}) is None
    assert "these are sparse: neighbours on the CPU" in caplog.text
