"""The map of all cells in the atlas: what it holds, what decides it, what reruns it."""

from __future__ import annotations

import json
from pathlib import Path

import anndata as ad
import numpy as np
import pytest
import scanpy as sc
from sklearn.metrics import adjusted_rand_score

from scatlas.io.files.checksums import checksum
from scatlas.workflow.provenance import read_record
from tests.parity.test_ingest_vs_scanpy import ExactIngest
from tests.workflow.conftest import CONFIG
from tests.workflow.runs import ROOT, Project

pytestmark = pytest.mark.workflow


@pytest.fixture(scope="module")
def atlas(built: Project) -> ad.AnnData:
    return ad.read_zarr(built.results / "atlas.zarr")


@pytest.fixture(scope="module")
def sample(built: Project) -> ad.AnnData:
    return ad.read_h5ad(built.results / "umap.h5ad")


def test_every_cell_has_a_place_and_a_cluster(atlas: ad.AnnData, sample: ad.AnnData):
    assert sample.n_obs == CONFIG["subset"]["n_cells"] < atlas.n_obs
    assert atlas.obsm["X_umap"].shape == (atlas.n_obs, 2)
    assert np.isfinite(atlas.obsm["X_umap"]).all()
    assert not atlas.obs["leiden"].isna().any()
    assert list(atlas.obs["leiden"].cat.categories) == list(sample.obs["leiden"].cat.categories)
    assert atlas.obs["leiden"].value_counts(sort=False).is_monotonic_decreasing
    assert atlas.obs["leiden_share"].between(0, 1).all()
    assert 0.8 < atlas.obs["map_distance"].median() < 1.5
    assert atlas.uns["umap"]["params"]["a"] == sample.uns["umap"]["params"]["a"]
    notes = atlas.uns["map"]
    assert (notes["method"], notes["n_sample"], notes["n_pcs"]) == ("project", 300, 10)
    assert notes["recall"] >= 0.98


def test_sampled_cells_have_the_place_and_cluster_of_the_sample(
    atlas: ad.AnnData, sample: ad.AnnData
):
    of_sample = atlas[sample.obs["atlas_row"]]
    assert list(of_sample.obs_names) == list(sample.obs_names)
    np.testing.assert_array_equal(of_sample.obsm["X_umap"], sample.obsm["X_umap"])
    assert list(of_sample.obs["leiden"]) == list(sample.obs["leiden"])


@pytest.mark.filterwarnings("ignore:Tensorflow not installed:ImportWarning")
def test_scanpy_computes_with_the_sample_and_maps_new_cells_on_it(
    atlas: ad.AnnData, sample: ad.AnnData
):
    again = ad.AnnData(sample.X.copy(), var=sample.var)
    sc.pp.pca(again, n_comps=10)
    assert sample.uns["pca"].keys() == again.uns["pca"].keys()
    params = sample.uns["pca"]["params"], sample.uns["neighbors"]["params"]
    assert params[0] == again.uns["pca"]["params"]
    assert set(params[1]) == {"n_neighbors", "method", "metric", "random_state", "n_pcs"}
    others = np.setdiff1d(np.arange(atlas.n_obs), sample.obs["atlas_row"])
    reference, new = sample.copy(), ad.AnnData(atlas.X[others], var=atlas.var)
    del reference.uns["umap"], reference.obsm["X_umap"]  # which umap-learn compiles for
    ingest = ExactIngest(reference)
    ingest.fit(new)
    ingest.map_embedding("pca")
    ingest.neighbors()
    ingest.map_labels("leiden", "knn")
    own = atlas.obs["leiden"].iloc[others]
    assert adjusted_rand_score(ingest._obs["leiden"], own) > 0.8


def test_projected_clusters_are_as_good_as_those_of_the_sample(
    atlas: ad.AnnData, sample: ad.AnnData
):
    others = np.setdiff1d(np.arange(atlas.n_obs), sample.obs["atlas_row"])
    projected = atlas[others].obs
    of_sample = adjusted_rand_score(sample.obs["leiden"], sample.obs["cell_line"])
    of_others = adjusted_rand_score(projected["leiden"], projected["cell_line"])
    assert of_others > of_sample - 0.1


def test_threads_change_no_byte(built: Project, tmp_path: Path):
    known = checksum(built.results / "map.zarr")
    steps = built.results / "embedding"
    scripted: dict = {}
    exec((ROOT / "scripts/map.py").read_text().replace("65_536", "100"), scripted)
    for threads in ("1", "4"):
        out = tmp_path / f"map{threads}.zarr"
        scripted["main"](
            [
                *("--components", str(built.results / "pca.zarr")),
                *("--subset", str(steps / "subset.zarr"), "--map", str(out)),
                *(f"--{step}={steps / step}.zarr" for step in ("neighbors", "umap", "leiden")),
                *("--manifest", str(tmp_path / f"{threads}.json"), "--threads", threads),
            ]
        )
        assert checksum(out) == known


@pytest.fixture(scope="module")
def whole(built: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The built atlas with the map computed with all cells."""
    copy = built.copied(tmp_path_factory.mktemp("whole"))
    copy.change(subset={}, map={"method": "full"})
    assert copy.build("atlas") == {"subset", "neighbors", "umap", "leiden", "map", "atlas"}
    assert "embedding" not in copy.build("report"), "for which neither waits"
    assert copy.build("embedding") == {"embedding"}
    return copy


def test_a_map_of_all_cells_has_no_projected_ones(whole: Project, atlas: ad.AnnData):
    found = ad.read_zarr(whole.results / "atlas.zarr")
    cells = ad.read_h5ad(whole.results / "umap.h5ad")
    np.testing.assert_array_equal(found.obsm["X_umap"], cells.obsm["X_umap"])
    assert list(found.obs["leiden"]) == list(cells.obs["leiden"])
    assert found.obs["leiden"].value_counts(sort=False).is_monotonic_decreasing
    assert {"leiden_share", "map_distance"} & set(found.obs) == set()
    assert found.uns["map"]["method"] == "full"
    assert adjusted_rand_score(found.obs["leiden"], atlas.obs["leiden"]) > 0.5


def test_the_record_has_the_settings_of_the_map(whole: Project):
    record = read_record(whole.results / "atlas.zarr")
    assert record["config"]["map"]["method"] == "full"
    assert record["config"]["umap"] == {"min_dist": 0.5}


def test_without_a_map_the_atlas_ends_with_the_components(whole: Project):
    whole.change(map={"cells": "sample"})
    assert whole.build("atlas") == {"atlas"}
    found = ad.read_zarr(whole.results / "atlas.zarr")
    assert "X_umap" not in found.obsm
    assert "map" not in read_record(whole.results / "atlas.zarr")["config"]
    facts = json.loads((whole.results / "manifests/atlas.json").read_text())
    assert facts["n_cells"] == found.n_obs
