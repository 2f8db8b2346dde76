"""The map on a GPU, without one: lists, tasks and dispatch around the kernels.

NumPy replaces CuPy, and the CPU's functions those of the GPU's modules; of the search of neighbours
it replaces the kernels, with the arguments that they get. tests/gpu/test_map_kernels.py tests the
modules and their kernels.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from scatlas import blocks, tl
from scatlas.arrays import numpy_arrays
from scatlas.io.products.embeddings import write_embedding, write_parts
from scatlas.kernels.graphs import communities_cpu, edges_cpu, layout_cpu, nearest_cpu, umap_cpu
from scatlas.matrix import communities, inverted_lists, list_rules, projection
from scatlas.matrix.reference_map import Sample, map_cells
from scatlas.pp import neighbors
from scatlas.tl import _leiden

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[3]
MODULES = [
    "scatlas.kernels.build.cuda",
    *(
        f"scatlas.kernels.graphs.{name}_gpu"
        for name in ("nearest", "umap", "layout", "communities", "edges")
    ),
    "scatlas.matrix.inverted_lists_gpu",
]
ROWS = 128


class OnGpu(np.ndarray):
    """A NumPy array that passes for CuPy's."""

    device = SimpleNamespace(id=0)

    def get(self) -> np.ndarray:
        return np.array(self)


OnGpu.__module__ = "cupy"


class FakeCupy(ModuleType):
    """NumPy under CuPy's name; what its functions return is on the GPU."""

    cuda = SimpleNamespace(Device=lambda: SimpleNamespace(id=0))

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if name == "argsort":
            found = partial(np.argsort, kind="stable")
        if isinstance(found, type) or not callable(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            result = found(*args, **options)
            return result.view(OnGpu) if isinstance(result, np.ndarray) else result

        return call


def candidates(table: Any, lists: Any, bounds: Any) -> np.ndarray:
    """Positions of the candidates of a task."""
    parts = [np.arange(bounds[j], bounds[j + 1]) for j in lists[table[2] : table[3]]]
    return np.concatenate(parts)


def ranked(
    queries: Any, rows: Any, cells: Any, near: Any, names: Any, n: int, *, own: bool, cosine: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Exact nearest of some positions."""
    query_names, cell_names = names
    numbers, scores = np.full((rows.size, n), 2**31 - 1), np.full((rows.size, n), np.inf)
    named = near if is_null(cell_names) else np.asarray(cell_names)[near]
    itself = rows if is_null(query_names) else np.asarray(query_names)[rows]
    nearest_cpu._rank(
        np.asarray(queries)[rows],
        itself.astype(np.int64) if own else np.full(rows.size, -1),
        np.asarray(cells)[near],
        named.astype(np.int64)[None],
        cosine,
        numbers,
        scores,
    )
    if own:
        scores[scores == -1] = 0
    return numbers, scores


def is_null(x: Any) -> bool:
    return np.ndim(x) == 0


def find_nearest(
    query_search: Any, cell_search: Any, queries: Any, cells: Any, n_dims: Any, table: Any,
    lists: Any, bounds: Any, shifts: Any, query_names: Any, cell_names: Any, places: Any, n: Any,
    own: Any, cosine: Any, root: Any, numbers: Any, distances: Any, unsure: Any,
) -> None:  # fmt: skip
    """Every seventh query is unsure."""
    assert query_search.dtype == cell_search.dtype == shifts.dtype == np.float32
    assert query_search.shape == queries.shape
    assert queries.shape[1] == cells.shape[1] == n_dims
    for t, row in enumerate(np.asarray(table)):
        rows = np.arange(row[0], row[0] + row[1])
        assert 0 < rows.size <= ROWS
        assert row[4] < len(shifts)
        where = np.arange(row[5], row[5] + row[1]) if is_null(places) else np.asarray(places)[rows]
        options = {"own": bool(own), "cosine": bool(cosine)}
        names = query_names, cell_names
        found, scores = ranked(
            queries, rows, cells, candidates(row, lists, bounds), names, int(n), **options
        )
        is_sure = rows % 7 != 3
        unsure[t, : rows.size] = ~is_sure
        there = np.isfinite(scores) & is_sure[:, None]
        numbers[where] = np.where(there, found, numbers[where])
        distances[where] = np.where(there, np.sqrt(scores) if root else scores, distances[where])


def compare_all(
    queries: Any, cells: Any, n_dims: Any, table: Any, lists: Any, bounds: Any, query_names: Any,
    cell_names: Any, which: Any, n_which: Any, n: Any, own: Any, cosine: Any, numbers: Any,
    scores: Any,
) -> None:  # fmt: skip
    for i, code in enumerate(np.asarray(which)):
        row = np.asarray(table)[code // ROWS]
        assert code % ROWS < row[1]
        options = {"own": bool(own), "cosine": bool(cosine)}
        numbers[i], scores[i] = ranked(
            queries, np.array([row[0] + code % ROWS]), cells, candidates(row, lists, bounds),
            (query_names, cell_names), int(n), **options,
        )  # fmt: skip


def add_by_label(
    x: Any, n_dims: Any, order: Any, bounds: Any, n: Any, scales: Any, out: Any
) -> None:
    out[:] = 0
    for label in range(n):
        for cell in order[bounds[label] : bounds[label + 1]]:
            scale = 1.0 if is_null(scales) else scales[cell]
            out[label] += np.asarray(x[cell], np.float64) * scale


def inverse_lengths(x: Any, n_dims: Any, n: Any, out: Any) -> None:
    lengths = np.sqrt(np.array([nearest_cpu._dot(row, row) for row in np.asarray(x)]))
    out[:] = np.where(lengths > 0, 1 / np.where(lengths > 0, lengths, 1), 0)


def scores_to(x: Any, n_dims: Any, n: Any, rows: Any, n_rows: Any, cosine: Any, out: Any) -> None:
    cells = nearest_cpu.CellMatrix(np.asarray(x), np.zeros(n_dims), bool(cosine))
    for i, row in enumerate(np.asarray(rows)):
        out[i] = nearest_cpu.scores_to(cells, row)


def spread(indptr: Any, groups: Any, n: Any, out: Any) -> None:
    out[:] = np.repeat(groups, np.diff(indptr))


def as_numpy(x: Any) -> Any:
    """NumPy arrays of the stand-in's, which share their memory."""
    if isinstance(x, tuple):
        parts = map(as_numpy, x)
        return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
    return x.view(np.ndarray) if isinstance(x, OnGpu) else x


def by_cpu(function: Callable[..., Any], n_rows: Callable[..., int] | None = None) -> Any:
    """Function of the CPU in place of the GPU's, which takes no range of rows."""

    def call(*args: Any, **options: Any) -> Any:
        args = as_numpy(args)
        result = function(*args, *([(0, n_rows(*args))] if n_rows else []), **options)
        if isinstance(result, tuple):
            return tuple(on_gpu(x) if isinstance(x, np.ndarray) else x for x in result)
        return on_gpu(result) if isinstance(result, np.ndarray) else result

    return call


def fuzzy_union(indices: Any, weights: Any) -> communities_cpu.Edges:
    n, k = indices.shape
    own = sp.coo_matrix(
        (weights[:, 1:].ravel(), (np.repeat(np.arange(n), k - 1), indices[:, 1:].ravel())), (n, n)
    ).tocsr()
    own.eliminate_zeros()
    back = own.T.tocsr()
    union = own + back - own.multiply(back)
    union.sort_indices()
    indptr = union.indptr.astype(np.int64)
    return communities_cpu.Edges(*map(on_gpu, (indptr, union.indices, union.data)))


def run_round(*args: Any, **options: Any) -> None:
    coordinates, out, others, edges, keys, curve = as_numpy(args)
    n = len(coordinates)
    keys = np.arange(n, dtype=np.uint64) if keys is None else keys
    layout_cpu.run_round(coordinates, out, others, edges, keys, curve, (0, n), **options)


# Functions of the GPU's modules, in whose place the CPU's work.
REPLACED: dict[str, dict[str, Any]] = {
    "layout": {"run_round": run_round},
    "communities": {
        "propose": by_cpu(communities_cpu.propose, lambda *args: args[-1].size),
        "move": by_cpu(communities_cpu.move),
    },
    "edges": {
        "run_step": by_cpu(edges_cpu.run_step, lambda *args: len(args[4])),
        "add_transposed": by_cpu(edges_cpu.add_transposed),
        "find_parts": by_cpu(edges_cpu.find_parts),
        "weigh_inside": by_cpu(edges_cpu.weigh_inside, lambda _, labels: labels.size),
    },
    "umap": {"fuzzy_union": lambda *args: fuzzy_union(*as_numpy(args))}
    | {
        name: by_cpu(getattr(umap_cpu, name))
        for name in (
            *("memberships", "memberships_in_reference"),
            *("vote", "average", "relative_distance"),
        )
    },
}
KERNELS = (find_nearest, compare_all, add_by_label, inverse_lengths, scores_to, spread)


def kernel(_file: str, name: str, *_: Any) -> Any:
    (found,) = (each for each in KERNELS if each.__name__ == name)

    def run(grid: Any, block: Any, args: Any, shared_mem: int = 0) -> None:
        for array in args:
            assert not isinstance(array, np.ndarray) or array.flags.c_contiguous
        found(*args)

    return _Kernel(run)


class _Kernel:
    """A kernel whose shared memory can be set."""

    max_dynamic_shared_size_bytes = 0

    def __init__(self, run: Callable[..., None]) -> None:
        self.run = run

    def __call__(self, *args: Any, **options: Any) -> None:
        self.run(*args, **options)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """The GPU modules over the stand-ins."""

    def forget() -> dict[str, ModuleType | None]:
        for name in MODULES:
            package, _, module = name.rpartition(".")
            vars(importlib.import_module(package)).pop(module, None)
        return {name: sys.modules.pop(name, None) for name in MODULES}

    before = forget()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cupy", FakeCupy("cupy"))
        copies = SimpleNamespace(to_gpu=on_gpu, on_gpu=on_gpu)
        for name in ("pinned_copies", "cupy_arrays"):
            patch.setitem(sys.modules, f"scatlas.arrays.{name}", copies)
        patch.setattr(blocks, "csr", numpy_arrays.csr)
        patch.setattr(blocks, "on_host", lambda x: x if sp.issparse(x) else np.asarray(x))
        patch.setattr(importlib.import_module(MODULES[0]), "kernel", kernel)
        for name, functions in REPLACED.items():
            module = importlib.import_module(f"scatlas.kernels.graphs.{name}_gpu")
            for function, of_cpu in functions.items():
                patch.setattr(module, function, of_cpu)
        yield importlib.import_module
    forget()
    for name, real in before.items():  # where there is a CuPy
        if real is not None:
            sys.modules[name] = real
            package, _, module = name.rpartition(".")
            setattr(importlib.import_module(package), module, real)


def points(n_cells: int, width: int = 8, dtype: type = np.float32) -> np.ndarray:
    """Groups of unequal size, with equal cells."""
    rng = np.random.default_rng(0)
    which = (5 * rng.random(n_cells) ** 3).astype(int)
    x = 4 * rng.normal(size=(5, width))[which] + rng.normal(size=(n_cells, width))
    x[10:16] = x[5]
    return x.astype(dtype)


def on_gpu(x: Any) -> Any:
    if sp.issparse(x):
        return numpy_arrays.csr(*map(on_gpu, (x.data, x.indices, x.indptr)), x.shape[1])
    return x.copy().view(OnGpu)


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean", "cosine"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lists_and_neighbours_are_the_cpus(gpu, monkeypatch, metric, dtype):
    module = gpu("scatlas.matrix.inverted_lists_gpu")
    monkeypatch.setattr(module, "_CELLS_AT_ONCE", 300)
    monkeypatch.setattr(module, "_MIN_PER_PART", 250)
    monkeypatch.setattr(gpu("scatlas.kernels.graphs.nearest_gpu"), "_TASKS_AT_ONCE", 5)
    monkeypatch.setattr(list_rules, "MEASURED", 150)
    x, new = points(900, dtype=dtype), points(1000, dtype=dtype)[900:]
    cpu = inverted_lists.build(x, 6, metric=metric, recall=0.9)
    there = inverted_lists.build(on_gpu(x), 6, metric=metric, recall=0.9)
    assert isinstance(there, module.GpuInvertedLists)
    for name in ("order", "bounds", "centre_of"):
        np.testing.assert_array_equal(getattr(there, name), getattr(cpu, name))
    assert (there.n_probes, there.recall) == (cpu.n_probes, cpu.recall)
    for found, expected in [
        (there.neighbors(6), cpu.neighbors(6)),
        (there.search(new, 3), cpu.search(new, 3)),
        (there.search(new, 400), cpu.search(new, 400)),  # the cells of many lists
    ]:
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])


def test_public_functions_are_the_cpus(gpu, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr("scatlas.tl._spectral.FAST_BELOW", 100)
    monkeypatch.setattr(communities, "_SWEEP_UP_TO", 50)
    # NumPy's bincount of a stand-in is an array of the CPU.
    plain = communities._sums
    monkeypatch.setattr(
        communities,
        "_sums",
        lambda values, *rest: (on_gpu if isinstance(values, OnGpu) else np.asarray)(
            plain(values, *rest)
        ),
    )
    x = points(400)
    found = []
    for cells in (x, on_gpu(x)):
        adata = ad.AnnData(np.zeros((400, 51), np.float32))
        adata.obsm["X_pca"] = cells
        neighbors(adata, 8, transformer="ivf")
        tl.umap(adata, maxiter=11)
        tl.leiden(adata, flavor="rounds", directed=False)
        found.append(adata)
    cpu, there = found
    assert "UMAP of 400 cells: on the GPU" in caplog.text
    assert "Leiden of 400 cells: on the GPU" in caplog.text
    assert there.uns["neighbors"] == cpu.uns["neighbors"]
    for key in ("distances", "connectivities"):
        a, b = there.obsp[key], cpu.obsp[key]
        for name in ("data", "indices", "indptr"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
            assert getattr(a, name).dtype == getattr(b, name).dtype
    np.testing.assert_array_equal(there.obsm["X_umap"], cpu.obsm["X_umap"])
    assert list(there.obs["leiden"]) == list(cpu.obs["leiden"])


def test_exact_search_is_the_cpus(gpu, caplog):
    caplog.set_level("INFO")
    x = points(300)
    found = []
    for cells in (x, on_gpu(x)):
        adata = ad.AnnData(np.zeros((300, 51), np.float32))
        adata.obsm["X_pca"] = cells
        neighbors(adata, 8, method=None)
        found.append(adata.obsp["distances"])
    assert "exact search on the GPU" in caplog.text
    np.testing.assert_allclose(found[1].data, found[0].data, rtol=1e-6)
    assert "connectivities" not in adata.obsp


def test_map_of_all_cells_is_the_cpus(gpu):
    x = points(900)
    rows = np.arange(0, 900, 3)
    sample = Sample(rows, x[rows, :2] / 5, np.arange(300) % 4, np.ones(300), (0.583, 1.334), 6, 3)
    found = []
    for cells in (x[rows], on_gpu(x[rows])):
        index = inverted_lists.build(cells, 6)
        parts = list(map_cells(sample, index, [x[:500], x[500:]]))
        assert {type(y) for y, _ in parts} == {np.ndarray}
        found.append(parts)
    for cpu, there in zip(*found, strict=True):
        np.testing.assert_array_equal(there[0], cpu[0])
        for name, values in cpu[1].items():
            np.testing.assert_array_equal(there[1][name], values)


def test_a_wrong_neighbour_is_named(gpu):
    near, apart = on_gpu(np.array([[0, 7]])), on_gpu(np.array([[0.0, 1.0]]))
    with pytest.raises(projection.InputError, match="cell 0 has the neighbour 7"):
        projection.vote_labels(on_gpu(np.zeros(5, np.int64)), near, apart)


def test_random_bits_of_a_round(gpu):
    hash_round = gpu("scatlas.kernels.graphs.layout_gpu").hash_round
    for seed, number in ((0, 1), (2**63 + 11, 199)):
        bits = hash_round(seed, number)
        key = np.uint64(12345)
        with np.errstate(over="ignore"):
            expected = layout_cpu._hash(bits + key * layout_cpu._STEP)
        assert layout_cpu.hash_numbers(np.uint64(seed), np.uint64(number), key) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "manhattan"}, "not 'manhattan': neighbours on the CPU"),
        ({"metric_kwds": {"squared": False}}, "without metric_kwds"),
        ({"transformer": "pynndescent"}, "has no GPU kernels: neighbours on the CPU"),
    ],
)
def test_what_the_gpu_is_not_asked_for(caplog, options: dict, message: str):
    from scatlas.pp import _neighbors

    given = {"metric": "euclidean", "metric_kwds": {}, "transformer": None} | options
    assert not _neighbors._suits_gpu(on_gpu(points(30)), **given)
    assert message in caplog.text


def test_a_graph_follows_the_cells_it_was_made_of(gpu, monkeypatch):
    """Components gone, or another matrix on the GPU than the graph's: the CPU's."""
    monkeypatch.setattr(_leiden, "works_on_gpu", spy := Spy(_leiden.works_on_gpu))
    adata = ad.AnnData(np.zeros((60, 51), np.float32), obs=pd.DataFrame(index=map(str, range(60))))
    adata.obsm["other"] = points(60)
    adata.obsm["X_pca"] = on_gpu(points(60))
    neighbors(adata, 6, use_rep="other")
    tl.leiden(adata, flavor="rounds", directed=False)
    del adata.obsm["X_pca"]
    neighbors(adata, 6, use_rep="other", key_added="gone")
    del adata.obsm["other"]
    tl.leiden(adata, flavor="rounds", directed=False, neighbors_key="gone")
    assert spy.answers == [False, False]


class Spy:
    """A function whose answers are kept."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.answers: list[Any] = []

    def __call__(self, *args: Any) -> Any:
        self.answers.append(self.function(*args))
        return self.answers[-1]


def test_a_missing_gpu_is_an_error(tmp_path):
    write_embedding(tmp_path / "pca.zarr", "X_pca", points(40).astype(np.float32))
    write_parts(tmp_path / "subset.zarr", obs={"atlas_row": np.arange(40)})
    paths = {"subset": "subset.zarr", "neighbors": "new.zarr", "manifest": "new.json"}
    paths["components"] = "pca.zarr"
    options = [text for name, path in paths.items() for text in (f"--{name}", tmp_path / path)]
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "neighbors.py", *options, "--backend", "gpu"],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "error: backend: gpu cannot be used" in done.stderr
    assert not (tmp_path / "new.zarr").exists()
