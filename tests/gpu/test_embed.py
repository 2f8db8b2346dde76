"""Neighbours, UMAP and Leiden by cuVS, cuML and cuGraph against the CPU's.

Each test names its library and is skipped with this reason if it is not installed: the libraries
take 1.3 GB, and tests without them are here, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import anndata as ad
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from scipy.spatial.distance import cdist

cp = pytest.importorskip("cupy")

import scatlas as sa  # noqa: E402
from scatlas.matrix import knn  # noqa: E402
from tests.gpu.shared import needs  # noqa: E402

ROOT = Path(__file__).parents[2]
cuvs = needs("cuvs", optional=True)
cuml = needs("cuml", optional=True)
cugraph = needs("pylibcugraph", optional=True)
# Warnings about the libraries' own use of NumPy and Numba.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
LIBRARIES = ("cuvs", "cuml", "pylibcugraph")


def points(n_cells: int, width: int, dtype: type = np.float32, *, apart: float = 2.0) -> np.ndarray:
    """Points like components: a few wide axes, many narrow ones, some groups."""
    rng = np.random.default_rng(0)
    groups = rng.normal(size=(9, width))[rng.integers(0, 9, n_cells)]
    return ((apart * groups + rng.normal(size=groups.shape)) * np.geomspace(9, 1, width)).astype(
        dtype
    )


def annotated(x: np.ndarray) -> ad.AnnData:
    names = pd.Index([f"c{i}" for i in range(x.shape[0])])
    adata = ad.AnnData(sp.csr_matrix((x.shape[0], 51), dtype=np.float32), pd.DataFrame(index=names))
    adata.obsm["X_pca"] = x
    return adata


def groups(n_cells: int, n_groups: int) -> ad.AnnData:
    """Groups of different size, well apart."""
    rng = np.random.default_rng(1)
    which = rng.choice(
        n_groups, n_cells, p=np.arange(1, n_groups + 1) / (n_groups * (n_groups + 1) / 2)
    )
    centres = rng.normal(size=(n_groups, 30)) * 6
    adata = annotated((centres[which] + rng.normal(size=(n_cells, 30))).astype(np.float32))
    adata.obs["group"] = pd.Categorical(which.astype(str))
    return adata


def on_gpu(adata: ad.AnnData) -> ad.AnnData:
    adata = adata.copy()
    adata.obsm["X_pca"] = cp.asarray(adata.obsm["X_pca"])
    return adata


def true_distances(x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return np.sqrt(((x[:, None] - x[indices]) ** 2).sum(axis=2))


def gpu_exact(x: np.ndarray, k: int, metric: str = "euclidean"):
    from cuvs import neighbors

    from scatlas.kernels.graphs import knn_gpu

    return knn_gpu.exact(cp.asarray(x), k, metric=metric, cuvs=neighbors)


# --- neighbours ----------------------------------------------------------------------------------


@cuvs
@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean", "cosine"])
@pytest.mark.parametrize("k", [2, 15, 40])
def test_neighbours_are_the_cpus(metric, k):
    x = points(5000, 30, np.float64)
    indices, distances = gpu_exact(x, k, metric)
    expected = knn.exact(x, k, metric=metric, metric_kwds={})
    np.testing.assert_array_equal(indices, expected[0])
    np.testing.assert_allclose(distances, expected[1], rtol=1e-11, atol=1e-13)


@cuvs
def test_distances_of_float32_cells_are_exact():
    x = points(5000, 30)
    indices, distances = gpu_exact(x, 15)
    expected = knn.exact(x, 15, metric="euclidean", metric_kwds={})
    np.testing.assert_array_equal(indices, expected[0])
    np.testing.assert_allclose(distances, true_distances(x, indices), rtol=1e-12)


@cuvs
def test_cells_in_several_batches():
    x = points(40_000, 50)
    indices, distances = gpu_exact(x, 15)
    rows = np.arange(0, 40_000, 199)
    true = cdist(x[rows].astype(np.float64), x.astype(np.float64))
    true[np.arange(rows.size), rows] = -1
    np.testing.assert_array_equal(indices[rows], np.argsort(true, axis=1, kind="stable")[:, :15])
    np.testing.assert_allclose(distances, true_distances(x, indices), rtol=1e-12)


@cuvs
def test_far_from_the_origin_and_among_equal_cells():
    """All cells are compared if float32 distances are equal; the same on every run."""
    x = points(3000, 30) + 1e3
    x[1000:1300] = x[7]
    runs = [gpu_exact(x, 15) for _ in range(2)]
    for a, b in zip(*runs, strict=True):
        np.testing.assert_array_equal(a, b)
    indices, distances = runs[0]
    np.testing.assert_array_equal(indices[:, 0], np.arange(3000))
    np.testing.assert_array_equal(indices[7], [7, *range(1000, 1014)])
    np.testing.assert_array_equal(distances[7], 0)
    true = cdist(x.astype(np.float64), x.astype(np.float64))
    np.testing.assert_allclose(distances, np.sort(true, axis=1)[:, :15], rtol=1e-12, atol=1e-12)


@cuvs
def test_few_cells():
    x = points(5, 4)
    indices, _ = gpu_exact(x, 5)
    np.testing.assert_array_equal(np.sort(indices, axis=1), np.tile(np.arange(5), (5, 1)))


@cuvs
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_nn_descent_finds_nearly_all(metric):
    x = points(20_000, 30)
    adata = on_gpu(annotated(x))
    sa.pp.neighbors(adata, transformer="pynndescent", metric=metric)
    exact = on_gpu(annotated(x))
    sa.pp.neighbors(exact, transformer="sklearn", metric=metric)
    found, true = (data.obsp["distances"].indices.reshape(-1, 14) for data in (adata, exact))
    assert np.mean([np.isin(a, b).mean() for a, b in zip(found, true, strict=True)]) > 0.95
    if metric == "euclidean":
        distances = adata.obsp["distances"].data.reshape(-1, 14)
        np.testing.assert_allclose(distances, true_distances(x, found), rtol=1e-12)


@cuvs
def test_graphs_are_written_as_from_the_cpu():
    cpu = annotated(points(3000, 30))
    adatas = [on_gpu(cpu), on_gpu(cpu)]
    blocks = da.from_array(cpu.obsm["X_pca"], chunks=(700, 30)).map_blocks(cp.asarray)
    adatas[1].obsm["X_pca"] = sa.get.X_to_GPU(blocks)
    for adata in (cpu, *adatas):
        sa.pp.neighbors(adata, n_pcs=20)
    for adata in adatas:
        assert adata.uns["neighbors"] == cpu.uns["neighbors"]
        for key in ("distances", "connectivities"):
            a, b = adata.obsp[key], cpu.obsp[key]
            assert isinstance(a, sp.csr_matrix)
            np.testing.assert_array_equal(a.indptr, b.indptr)
            np.testing.assert_array_equal(a.indices, b.indices)
            # A weight is exp(-e), and bisection finds the width in e to 1e-5, so e agrees to this
            # tolerance. Weights of 1e-4 have e = 9.
            if key == "distances":
                np.testing.assert_allclose(a.data, b.data, rtol=1e-6)
            else:
                np.testing.assert_allclose(np.log(a.data), np.log(b.data), rtol=5e-5, atol=1e-4)
            assert [part.dtype for part in (a.data, a.indices, a.indptr)] == [
                part.dtype for part in (b.data, b.indices, b.indptr)
            ]


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


# --- UMAP ----------------------------------------------------------------------------------------


@cuml
@pytest.mark.parametrize("init_pos", ["spectral", "random", "given"])
def test_umap_shows_what_the_cpus_shows(init_pos):
    from sklearn.manifold import trustworthiness

    cpu = annotated(points(3000, 30))
    sa.pp.neighbors(cpu)
    cpu.obsm["given"] = cpu.obsm["X_pca"][:, :2]
    gpu, again = on_gpu(cpu), on_gpu(cpu)
    allocator = cp.cuda.get_allocator()
    for adata in (cpu, gpu, again):
        sa.tl.umap(adata, init_pos=init_pos)
    assert cp.cuda.get_allocator() == allocator
    x = gpu.obsm["X_umap"]
    assert (type(x), x.dtype, x.shape) == (np.ndarray, np.float32, (3000, 2))
    assert np.isfinite(x).all()
    assert np.ptp(x, axis=0).min() > 1
    np.testing.assert_array_equal(again.obsm["X_umap"], x)
    assert gpu.uns["umap"] == cpu.uns["umap"]
    scores = [trustworthiness(cpu.obsm["X_pca"], data.obsm["X_umap"]) for data in (cpu, gpu)]
    assert scores[1] > scores[0] - 0.02, scores


@cuml
def test_umap_takes_its_options():
    cpu = annotated(points(1000, 20))
    sa.pp.neighbors(cpu)
    found = {}
    for name, options in {
        "plain": {},
        "seed": {"random_state": 1},
        "rounds": {"maxiter": 20},
        "curve": {"min_dist": 0.05},
        "rate": {"alpha": 0.3},
        "gamma": {"gamma": 3.0},
        "drawn": {"negative_sample_rate": 9},
        "volume": {"n_components": 3},
    }.items():
        adata = on_gpu(cpu)
        sa.tl.umap(adata, **options)
        found[name] = adata.obsm["X_umap"]
        assert np.isfinite(found[name]).all()
    assert found.pop("volume").shape == (1000, 3)
    plain = found.pop("plain")
    for name, x in found.items():
        assert (x != plain).any(), name


@cuml
def test_umap_keeps_many_parts_apart():
    cpu = groups(3000, 12)
    sa.pp.neighbors(cpu)
    gpu = on_gpu(cpu)
    sa.tl.umap(gpu)
    x = gpu.obsm["X_umap"]
    centres = pd.DataFrame(x).groupby(cpu.obs["group"].to_numpy()).mean()
    nearest = ((x[:, None] - centres.to_numpy()[None]) ** 2).sum(axis=2).argmin(axis=1)
    assert (centres.index[nearest] == cpu.obs["group"]).mean() > 0.97


# --- Leiden --------------------------------------------------------------------------------------


@cugraph
@pytest.mark.parametrize("use_weights", [True, False])
def test_leiden_finds_the_cpus_clusters(use_weights):
    from sklearn.metrics import adjusted_rand_score

    cpu = groups(5000, 12)
    sa.pp.neighbors(cpu)
    gpu, again = on_gpu(cpu), on_gpu(cpu)
    for adata in (cpu, gpu, again):
        sa.tl.leiden(adata, 0.1, flavor="igraph", directed=False, use_weights=use_weights)
    labels = gpu.obs["leiden"]
    assert adjusted_rand_score(labels, cpu.obs["leiden"]) > 0.99
    assert adjusted_rand_score(labels, cpu.obs["group"]) > 0.99
    assert adjusted_rand_score(labels, again.obs["leiden"]) > 0.99
    sizes = labels.value_counts()[list(labels.cat.categories)]
    assert list(labels.cat.categories) == [str(i) for i in range(sizes.size)]
    assert sizes.is_monotonic_decreasing
    assert gpu.uns["leiden"] == cpu.uns["leiden"]


@cugraph
def test_leiden_where_groups_touch():
    """Cells between two groups may change clusters: the clusters agree, not each cell."""
    from sklearn.metrics import adjusted_rand_score

    cpu = annotated(points(5000, 30, apart=1.0))
    sa.pp.neighbors(cpu)
    gpu = on_gpu(cpu)
    for adata in (cpu, gpu):
        sa.tl.leiden(adata, 0.5, flavor="igraph", directed=False)
    score = adjusted_rand_score(gpu.obs["leiden"], cpu.obs["leiden"])
    assert score > 0.9, score  # two seeds on the CPU: 0.995


@cugraph
def test_leiden_higher_resolution_gives_more_clusters():
    cpu = annotated(points(3000, 30))
    sa.pp.neighbors(cpu)
    gpu = on_gpu(cpu)
    numbers = []
    for resolution in (0.1, 4.0):
        sa.tl.leiden(gpu, resolution)
        numbers.append(gpu.obs["leiden"].nunique())
    assert numbers[0] < numbers[1]


@cugraph
def test_leiden_of_some_cells_some_without_an_edge():
    cpu = groups(2000, 4)
    sa.pp.neighbors(cpu)
    far = np.arange(0, 2000, 9)
    cpu.obs["chosen"] = pd.Categorical(np.where(np.isin(np.arange(2000), far), "a", "b"))
    gpu = on_gpu(cpu)
    sa.tl.leiden(gpu, restrict_to=("chosen", ["a"]))
    labels = gpu.obs["leiden_R"]
    assert (labels[cpu.obs["chosen"] == "b"] == "b").all()
    assert labels[cpu.obs["chosen"] == "a"].str.startswith("a,").all()


# --- the workflow's step -------------------------------------------------------------------------


def run_umap(folder: Path, backend: str, *, hidden: tuple[str, ...] = ()) -> tuple[ad.AnnData, str]:
    """Run the step with some packages hidden by files that do not load."""
    place = folder / f"{backend}-{len(hidden)}"
    (place / "hidden").mkdir(parents=True)
    for name in hidden:
        (place / "hidden" / f"{name}.py").write_text("raise ImportError('hidden')\n")
    paths = {"subset": folder / "subset.h5ad", "umap": place / "umap.h5ad"}
    options = [text for name, path in paths.items() for text in (f"--{name}", path)]
    search = [str(place / "hidden"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [
            *(sys.executable, ROOT / "scripts" / "umap.py", *options, "--resolution", "0.1"),
            *("--manifest", place / "umap.json", "--backend", backend),
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, search))},
        text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads((place / "runs" / "umap.json").read_text())
    assert record["backend"] == backend
    return ad.read_h5ad(place / "umap.h5ad"), done.stderr


@pytest.fixture
def subset(tmp_path) -> ad.AnnData:
    adata = groups(2000, 6)
    adata.write_h5ad(tmp_path / "subset.h5ad")
    return adata


@cuvs
@cuml
@cugraph
def test_the_step_works_on_the_gpu(tmp_path, subset):
    from sklearn.metrics import adjusted_rand_score

    cpu, _ = run_umap(tmp_path, "cpu")
    gpu, log = run_umap(tmp_path, "gpu")
    for text in ("exact search on the GPU", "UMAP of 2000 cells: on", "Leiden of 2000 cells: on"):
        assert text in log
    assert "on the CPU" not in log
    np.testing.assert_array_equal(gpu.obsm["X_pca"], subset.obsm["X_pca"])
    np.testing.assert_array_equal(gpu.obsp["distances"].indices, cpu.obsp["distances"].indices)
    assert np.isfinite(gpu.obsm["X_umap"]).all()
    assert adjusted_rand_score(gpu.obs["leiden"], cpu.obs["leiden"]) > 0.99


def test_the_step_without_the_libraries_is_the_cpus(tmp_path, subset):
    cpu, _ = run_umap(tmp_path, "cpu")
    gpu, log = run_umap(tmp_path, "gpu", hidden=LIBRARIES)
    for name, work in (("cuVS", "neighbours"), ("cuML", "UMAP"), ("cuGraph", "Leiden clusters")):
        assert name in log
        assert f"does not load (hidden): {work} on the CPU" in log
    np.testing.assert_array_equal(gpu.obsm["X_umap"], cpu.obsm["X_umap"])
    assert list(gpu.obs["leiden"]) == list(cpu.obs["leiden"])
