"""Neighbours, UMAP and Leiden equal scanpy's for the same representation, graph and seed."""

from __future__ import annotations

import warnings
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
from scipy.sparse.csgraph import connected_components
from sklearn.metrics import adjusted_rand_score, homogeneity_score

from scatlas import tl
from scatlas.pp._neighbors import neighbors

pytestmark = pytest.mark.slow


def blobs(n_cells: int, n_blobs: int, *, distance: float, seed: int = 0) -> ad.AnnData:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(n_blobs, 60)) * distance
    which = rng.integers(0, n_blobs, n_cells)
    x_pca = (centres[which] + rng.normal(size=(n_cells, 60))).astype(np.float32)
    obs = pd.DataFrame({"blob": pd.Categorical(which.astype(str))})
    obs.index = [f"c{i}" for i in range(n_cells)]
    adata = ad.AnnData(np.zeros((n_cells, 55), np.float32), obs=obs)
    adata.obsm["X_pca"] = x_pca
    return adata


@pytest.fixture(scope="module")
def connected() -> ad.AnnData:
    """One connected graph."""
    adata = blobs(700, 4, distance=0.55)
    sc.pp.neighbors(adata)
    return adata


@pytest.fixture(scope="module")
def disconnected() -> ad.AnnData:
    """A graph in three parts. (With more than four, scanpy's own picture changes between runs.)"""
    adata = blobs(420, 3, distance=8)
    sc.pp.neighbors(adata, n_pcs=20)
    return adata


def assert_same_graph(got: ad.AnnData, want: ad.AnnData, prefix: str = "") -> None:
    for key in (f"{prefix}distances", f"{prefix}connectivities"):
        a, b = got.obsp[key], want.obsp[key]
        assert a.format == b.format == "csr"
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        np.testing.assert_array_equal(a.indptr, b.indptr)
        np.testing.assert_array_equal(a.indices, b.indices)
        np.testing.assert_array_equal(a.data, b.data)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_neighbors": 5, "n_pcs": 10},
        {"use_rep": "X_pca", "metric": "manhattan", "key_added": "m"},
        {"metric": "seuclidean", "metric_kwds": {"V": np.linspace(1, 2, 60)}},
    ],
    ids=["defaults", "few", "manhattan", "seuclidean"],
)
def test_neighbors_are_scanpys_bit_for_bit(options: dict) -> None:
    ours, theirs = (blobs(300, 3, distance=0.4) for _ in range(2))
    neighbors(ours, **options)
    sc.pp.neighbors(theirs, **options)
    key = options.get("key_added", "neighbors")
    assert_same_graph(ours, theirs, prefix="m_" if key == "m" else "")
    assert ours.uns[key] == {k: dict(v) if k == "params" else v for k, v in theirs.uns[key].items()}


@pytest.mark.parametrize("kwds", [{}, {"VI": np.diag(np.linspace(1, 2, 60))}], ids=["own", "VI"])
def test_neighbors_by_mahalanobis(kwds: dict) -> None:
    ours, theirs = (blobs(300, 3, distance=0.4) for _ in range(2))
    neighbors(ours, metric="mahalanobis", metric_kwds=kwds)
    sc.pp.neighbors(theirs, metric="mahalanobis", metric_kwds=kwds)
    a, b = ours.obsp["distances"], theirs.obsp["distances"]
    np.testing.assert_array_equal(a.indices, b.indices)
    np.testing.assert_allclose(a.data, b.data, rtol=1e-12)


@pytest.mark.parametrize("metric", ["mahalanobis", "seuclidean"])
def test_spread_of_all_cells_is_the_measure(metric: str) -> None:
    """Blocks of cells use the spread of all cells, too."""
    x = blobs(2500, 3, distance=0.4).obsm["X_pca"].astype(np.float64)[:, :10]
    x *= np.linspace(1, 30, 10)
    spread = np.cov(x.T) if metric == "mahalanobis" else np.diag(np.var(x, axis=0, ddof=1))
    # Distances of cells that are rotated and scaled to spread 1 are euclidean.
    whitened = ad.AnnData(np.zeros((2500, 55)))
    whitened.obsm["X_pca"] = x @ np.linalg.cholesky(np.linalg.inv(spread))
    neighbors(whitened, transformer="sklearn")
    want = whitened.obsp["distances"]
    adata = ad.AnnData(np.zeros((2500, 55)))
    adata.obsm["X_pca"] = x
    neighbors(adata, metric=metric)
    np.testing.assert_array_equal(adata.obsp["distances"].indices, want.indices)
    np.testing.assert_allclose(adata.obsp["distances"].data, want.data, rtol=1e-9)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_inverted_lists_find_scanpys_exact_neighbours(metric: str) -> None:
    ours, theirs = (blobs(3000, 12, distance=1.0) for _ in range(2))
    neighbors(ours, metric=metric, transformer="ivf")
    sc.pp.neighbors(theirs, metric=metric)  # exact up to 4,096 cells
    a, b = ours.obsp["distances"], theirs.obsp["distances"]
    common = a.astype(bool).multiply(b.astype(bool))
    assert common.nnz / b.nnz >= 0.99
    assert ours.uns["neighbors"]["params"]["recall"] == pytest.approx(common.nnz / b.nnz, abs=0.003)
    np.testing.assert_allclose(
        a.multiply(common).tocsr().data, b.multiply(common).tocsr().data, rtol=2e-5
    )


def test_neighbors_by_cosine() -> None:
    """Blocks have another height than scanpy's, so products may differ in the last bits."""
    ours, theirs = (blobs(300, 3, distance=0.4) for _ in range(2))
    neighbors(ours, metric="cosine")
    sc.pp.neighbors(theirs, metric="cosine")
    a, b = ours.obsp["distances"], theirs.obsp["distances"]
    np.testing.assert_array_equal(a.indices, b.indices)
    np.testing.assert_allclose(a.data, b.data, rtol=1e-5)
    a, b = (data.obsp["connectivities"].toarray() for data in (ours, theirs))
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_fewer_cells_than_neighbors() -> None:
    ours, theirs = (blobs(9, 1, distance=0) for _ in range(2))
    neighbors(ours)
    sc.pp.neighbors(theirs)
    assert ours.uns["neighbors"]["params"]["n_neighbors"] == 5
    assert_same_graph(ours, theirs)


def test_few_genes_are_taken_as_they_are() -> None:
    x = np.random.default_rng(0).random((80, 50), dtype=np.float32)
    ours, theirs = ad.AnnData(x), ad.AnnData(x.copy())
    neighbors(ours)
    sc.pp.neighbors(theirs)
    assert_same_graph(ours, theirs)


@pytest.mark.parametrize("maxiter", [50, None])
@pytest.mark.parametrize("which", ["connected", "disconnected"])
def test_umap_is_scanpys_bit_for_bit(
    which: str, maxiter: int | None, request: pytest.FixtureRequest
) -> None:
    adata = request.getfixturevalue(which)
    n_parts, _ = connected_components(adata.obsp["connectivities"])
    assert n_parts == (1 if which == "connected" else 3)
    ours = tl.umap(adata, maxiter=maxiter, method="umap-learn", copy=True)
    theirs = sc.tl.umap(adata, maxiter=maxiter, copy=True)
    assert ours.obsm["X_umap"].dtype == np.float32
    np.testing.assert_array_equal(ours.obsm["X_umap"], theirs.obsm["X_umap"])
    assert ours.uns["umap"] == theirs.uns["umap"]


def test_umap_options_are_scanpys(connected: ad.AnnData) -> None:
    options = {
        "min_dist": 0.2,
        "spread": 1.5,
        "n_components": 3,
        "maxiter": 12,
        "alpha": 0.8,
        "gamma": 1.2,
        "negative_sample_rate": 3,
        "init_pos": "random",
        "random_state": 7,
        "key_added": "u",
    }
    ours = tl.umap(connected, **options, method="umap-learn", copy=True)
    theirs = sc.tl.umap(connected, **options, copy=True)
    np.testing.assert_array_equal(ours.obsm["u"], theirs.obsm["u"])
    assert ours.uns["u"] == theirs.uns["u"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_iterations": 2, "resolution": 0.3, "random_state": 3},
        {"directed": False, "use_weights": False, "key_added": "other"},
        {"flavor": "igraph", "n_iterations": 2, "directed": False},
        {"flavor": "igraph", "n_iterations": 2, "resolution": 0.2, "random_state": 5},
        {"flavor": "igraph", "n_iterations": -1, "use_weights": False},
        {"restrict_to": ("blob", ["0", "2"]), "n_iterations": 2},
    ],
    ids=str,
)
def test_leiden_is_scanpys_cell_by_cell(connected: ad.AnnData, options: dict) -> None:
    ours = tl.leiden(connected, **options, copy=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        theirs = sc.tl.leiden(connected, **options, copy=True)
    key = options.get("key_added", "leiden_R" if "restrict_to" in options else "leiden")
    a, b = ours.obs[key], theirs.obs[key]
    assert list(a.cat.categories) == list(b.cat.categories)
    assert len(a.cat.categories) > 1
    np.testing.assert_array_equal(a, b)
    theirs.uns[key].pop("modularity", None)  # since scanpy 1.12
    assert ours.uns[key] == theirs.uns[key]


@pytest.fixture(scope="module")
def real_plates(plates_dir: Path) -> dict[str, ad.AnnData]:
    """Each real plate, and all together as ``merged``: scanpy up to 50 components."""
    plates = {}
    for path in sorted(plates_dir.glob("*.h5ad")):
        plate = ad.read_h5ad(path)
        plate = plate[plate.obs["pass_filter"] == "full"].copy()
        sc.pp.normalize_total(plate)
        sc.pp.log1p(plate)
        sc.pp.highly_variable_genes(plate, n_top_genes=2000, flavor="seurat")
        plates[path.stem] = plate
    on_plates = sum(
        plate.var["highly_variable"].to_numpy().astype(int) for plate in plates.values()
    )
    merged = ad.concat(plates, label="plate", index_unique="-")[:, on_plates >= 3].copy()
    plates["merged"] = merged
    for plate in plates.values():
        sc.pp.pca(plate, n_comps=50)
        neighbors(plate)
    return plates


@pytest.mark.real
def test_umap_of_the_real_plates_is_scanpys_bit_for_bit(real_plates: dict[str, ad.AnnData]) -> None:
    for name, plate in real_plates.items():
        n_parts, _ = connected_components(plate.obsp["connectivities"])
        # A graph with more parts than axis ends starts from other points than umap-learn's.
        init = "spectral" if n_parts <= 4 else plate.obsm["X_pca"][:, :2]
        ours = tl.umap(plate, init_pos=init, method="umap-learn", copy=True)
        theirs = sc.tl.umap(plate, init_pos=init, copy=True)
        np.testing.assert_array_equal(ours.obsm["X_umap"], theirs.obsm["X_umap"], name)


@pytest.mark.real
def test_clusters_of_the_real_plates_are_cell_lines(real_plates: dict[str, ad.AnnData]) -> None:
    """With scatlas's neighbours and clusters."""
    merged = real_plates["merged"].copy()
    how = {"flavor": "igraph", "n_iterations": 2, "directed": False}
    tl.leiden(merged, 1.0, **how)
    assert homogeneity_score(merged.obs["cell_line"], merged.obs["leiden"]) >= 0.99
    tl.leiden(merged, 0.05, **how)
    assert adjusted_rand_score(merged.obs["cell_line"], merged.obs["leiden"]) >= 0.85
