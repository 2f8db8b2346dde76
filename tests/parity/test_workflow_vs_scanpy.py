"""The workflow's results agree with scanpy's functions on the same plates."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import zarr
from sklearn.metrics import adjusted_rand_score, homogeneity_score

import scatlas as sa
from scatlas.datasets import simulate_plate, write_plate
from scatlas.workflow.sample import read_column
from tests.workflow.runs import Project

pytestmark = pytest.mark.workflow

# A user's config of some ten lines.
CONFIG = {
    "plates": "plates.tsv",
    "qc": {"filter": "pass_filter == 'full'"},
    "hvg": {"n_top_genes": 2000},
    "consensus": {"min_plates": 3},
    "pca": {"n_comps": 50},
    "neighbors": {"n_neighbors": 15},
}


@pytest.fixture(scope="module", params=["simulated", pytest.param("real", marks=pytest.mark.real)])
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "real":
        if "SCATLAS_TEST_DATA" not in os.environ:
            pytest.skip("SCATLAS_TEST_DATA is not set: no real plates here")
        files = sorted(Path(os.environ["SCATLAS_TEST_DATA"], "mixology").glob("*.h5ad"))
        plates = {path.stem: path for path in files}
        config = CONFIG
    else:
        plates = {f"p{i}": folder / f"p{i}.h5ad" for i in range(1, 4)}
        for i, path in enumerate(plates.values(), start=1):
            write_plate(path, simulate_plate(i, n_cells=400, n_genes=1200))
        config = CONFIG | {"hvg": {"n_top_genes": 300}, "consensus": {"min_plates": 2}}
    new = Project(folder / "project", dict(config))
    new.write_plates(plates)
    new.plates = plates
    new.build("atlas", "embedding")
    return new


@pytest.fixture(scope="module")
def by_hand(project: Project) -> dict:
    """The steps of the published notebook, with the genes in a fixed order."""
    adatas = {}
    for name, path in project.plates.items():
        adata = ad.read_h5ad(path)
        adata = adata[adata.obs["pass_filter"] == "full"].copy()
        sc.pp.normalize_total(adata)
        sc.pp.log1p(adata)
        sc.pp.highly_variable_genes(adata, n_top_genes=project.config["hvg"]["n_top_genes"])
        adatas[name] = adata
    votes = Counter(g for a in adatas.values() for g in a.var_names[a.var["highly_variable"]])
    enough = project.config["consensus"]["min_plates"]
    genes = [g for g in next(iter(adatas.values())).var_names if votes[g] >= enough]
    merged = ad.concat({name: a[:, genes] for name, a in adatas.items()}, label="plate")
    exact = merged.copy()
    exact.X = exact.X.astype(np.float64)
    sc.pp.pca(exact, n_comps=50, svd_solver="arpack", mask_var=None, dtype="float64")
    return {"plates": adatas, "genes": genes, "merged": merged, "pca": exact}


def test_hvg_sets_are_identical(project: Project, by_hand: dict):
    for name, theirs in by_hand["plates"].items():
        ours = pd.read_parquet(project.results / f"plates/{name}/hvg.parquet")
        assert list(ours.index) == list(theirs.var_names)
        np.testing.assert_array_equal(ours["highly_variable"], theirs.var["highly_variable"])
        # scanpy computes expm1 and the moments in float32.
        for column in ("means", "dispersions", "dispersions_norm"):
            np.testing.assert_allclose(ours[column], theirs.var[column], rtol=1e-5, atol=1e-6)


def test_consensus_genes_are_identical(project: Project, by_hand: dict):
    ours = pd.read_csv(project.results / "consensus_genes.tsv", sep="\t")["gene"]
    assert list(ours) == by_hand["genes"]


def test_normalised_values_are_equal(project: Project, by_hand: dict):
    ours = ad.read_zarr(project.results / "merged.zarr")
    theirs = by_hand["merged"]
    assert list(ours.obs_names) == list(theirs.obs_names)
    assert list(ours.var_names) == list(theirs.var_names)
    assert list(ours.obs["plate"]) == list(theirs.obs["plate"])
    # A label of the plate sheet.
    assert list(ours.obs["donor"]) == [f"donor of {plate}" for plate in theirs.obs["plate"]]
    assert ours.X.dtype == np.float32
    np.testing.assert_array_equal(ours.X.indptr, theirs.X.indptr)
    np.testing.assert_array_equal(ours.X.indices, theirs.X.indices)
    # scatlas rounds to float32 once, scanpy four times (total, factor, product, logarithm).
    np.testing.assert_allclose(ours.X.data, theirs.X.data, rtol=5e-7)


def test_components_are_equal(project: Project, by_hand: dict):
    atlas = ad.read_zarr(project.results / "atlas.zarr")
    theirs = by_hand["pca"]
    ours, reference = atlas.varm["PCs"], theirs.varm["PCs"]
    signs = np.sign((ours * reference).sum(axis=0))
    assert (np.take_along_axis(ours, np.abs(ours).argmax(0)[None], 0) > 0).all(), "the sign rule"
    cosines = (ours * reference).sum(axis=0) * signs
    assert cosines.min() > 1 - 1e-8
    np.testing.assert_allclose(atlas.uns["pca"]["variance"], theirs.uns["pca"]["variance"], 1e-6)
    np.testing.assert_allclose(
        atlas.uns["pca"]["variance_ratio"], theirs.uns["pca"]["variance_ratio"], 1e-6
    )
    scores = theirs.obsm["X_pca"] * signs
    spread = scores.std(axis=0)
    assert np.abs(atlas.obsm["X_pca"] - scores).max(axis=0) == pytest.approx(
        0, abs=1e-3 * spread.min()
    )
    np.testing.assert_allclose(atlas.obsm["X_pca"] / spread, scores / spread, atol=2e-4)


def test_the_atlas_opens_everywhere(project: Project, by_hand: dict):
    path = project.results / "atlas.zarr"
    lazy = ad.experimental.read_lazy(path)
    assert lazy.shape == by_hand["merged"].shape
    ours = sa.read_lazy(path)
    eager = ad.read_zarr(path)
    assert (ours.X.compute() != eager.X).nnz == 0
    sc.pp.neighbors(eager, n_neighbors=5, method="gauss")
    assert set(zarr.open_group(path, mode="r")) >= {"X", "obs", "var", "obsm", "varm", "uns"}


def test_leiden_finds_the_cell_lines(project: Project):
    adata = ad.read_h5ad(project.results / "umap.h5ad")
    part = read_column(project.results / "embedding/leiden.zarr", "leiden")
    pd.testing.assert_extension_array_equal(part, adata.obs["leiden"].array)
    lines = adata.obs["cell_line"]
    assert homogeneity_score(lines, adata.obs["leiden"]) >= 0.99
    sa.tl.leiden(adata, resolution=0.05, flavor="igraph", n_iterations=2, directed=False)
    # Two protocols: a line may be split by protocol. scanpy by hand reaches 0.874 on the real ones.
    assert adjusted_rand_score(lines, adata.obs["leiden"]) >= 0.85
