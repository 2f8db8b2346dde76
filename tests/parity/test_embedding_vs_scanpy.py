"""Neighbours, UMAP and Leiden equal scanpy's for the same representation, graph and seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
from scipy.sparse.csgraph import connected_components
from sklearn.metrics import adjusted_rand_score, homogeneity_score

from scatlas import tl
from scatlas.pp._neighbors import neighbors
from tests.parity.compared import Case, compare

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


def connected() -> ad.AnnData:
    """One connected graph."""
    adata = blobs(700, 4, distance=0.55)
    sc.pp.neighbors(adata)
    assert connected_components(adata.obsp["connectivities"])[0] == 1
    return adata


def disconnected() -> ad.AnnData:
    """A graph in three parts. (With more than four, scanpy's own picture changes between runs.)"""
    adata = blobs(420, 3, distance=8)
    sc.pp.neighbors(adata, n_pcs=20)
    assert connected_components(adata.obsp["connectivities"])[0] == 3
    return adata


def few_genes() -> ad.AnnData:
    return ad.AnnData(np.random.default_rng(0).random((80, 50), dtype=np.float32))


def without_modularity(adata: ad.AnnData, **options: Any) -> None:
    sc.tl.leiden(adata, **options)
    adata.uns[options.get("key_added", "leiden")].pop("modularity", None)  # since 1.12


ONE = {"dtypes": ("float32",)}
ON_COMPONENTS = {"data": lambda: blobs(300, 3, distance=0.4), **ONE}
UMAP = {"more": (("method", "umap-learn"),), **ONE}
CASES = {
    "pp.neighbors": Case(
        [
            {},
            {"n_neighbors": 5, "n_pcs": 10},
            {"use_rep": "X_pca", "metric": "manhattan", "key_added": "m"},
            {"metric": "seuclidean", "metric_kwds": {"V": np.linspace(1, 2, 60)}},
        ],
        **ON_COMPONENTS,
    ),
    # Blocks have another height than scanpy's, so products may differ in the last bits.
    "pp.neighbors by other products": Case(
        [
            {"metric": "cosine"},
            {"metric": "mahalanobis"},
            {"metric": "mahalanobis", "metric_kwds": {"VI": np.diag(np.linspace(1, 2, 60))}},
        ],
        1e-5,
        narrow=1e-5,
        types=None,
        **ON_COMPONENTS,
    ),
    "tl.umap": Case(
        [
            {"maxiter": 50},
            {"maxiter": None},
            {
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
            },
        ],
        data=connected,
        **UMAP,
    ),
    "tl.leiden": Case(
        [
            {},
            {"n_iterations": 2, "resolution": 0.3, "random_state": 3},
            {"directed": False, "use_weights": False, "key_added": "other"},
            {"flavor": "igraph", "n_iterations": 2, "directed": False},
            {"flavor": "igraph", "n_iterations": -1, "use_weights": False},
            {"restrict_to": ("blob", ["0", "2"]), "n_iterations": 2, "key_added": "part"},
        ],
        data=connected,
        theirs=without_modularity,
        **ONE,
    ),
    "pp.neighbors of few cells": Case([{}], data=lambda: blobs(9, 1, distance=0), **ONE),
    "pp.neighbors of few genes": Case([{}], data=few_genes, **ONE),
    "tl.umap of parts": Case([{"maxiter": 50}, {"maxiter": None}], data=disconnected, **UMAP),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_equal(name: str) -> None:
    compare(name, CASES[name], CASES[name].data(), "float32", ["csr"])


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


@pytest.mark.weekly
def test_nn_descent_finds_scanpys_neighbours_on_any_number_of_threads() -> None:
    """Like scatlas, scanpy's index of pynndescent runs on one thread."""
    import numba
    from pynndescent import PyNNDescentTransformer

    exact, theirs, one, two = (blobs(600, 3, distance=0.4) for _ in range(4))
    neighbors(exact)
    most = numba.get_num_threads()
    try:
        numba.set_num_threads(min(2, numba.config.NUMBA_NUM_THREADS))
        neighbors(two, transformer="pynndescent")
        numba.set_num_threads(1)
        neighbors(one, transformer="pynndescent")
        known = PyNNDescentTransformer(
            n_neighbors=15, n_trees=6, n_iters=9, random_state=0, n_jobs=1
        )
        sc.pp.neighbors(theirs, transformer=known)
    finally:
        numba.set_num_threads(most)
    for key in ("distances", "connectivities"):
        assert (one.obsp[key] != two.obsp[key]).nnz == 0
    a, b = (data.obsp["connectivities"].toarray() for data in (one, theirs))
    np.testing.assert_allclose(a, b, rtol=1e-6)
    found, true = (data.obsp["distances"].astype(bool).toarray() for data in (one, exact))
    assert (found & true).sum() > 0.9 * true.sum()


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
