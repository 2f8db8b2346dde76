"""Batch correction by Harmony, of the sample and of the whole atlas, with pictures and scores."""

from __future__ import annotations

import re
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score

import scatlas as sa
from scatlas.datasets import simulate_plate, write_plate
from scatlas.matrix.symphony import MixedClusters
from scatlas.workflow.provenance import read_record
from tests.helpers.h5ad_trees import assert_as_anndata_writes
from tests.workflow.conftest import SAMPLE_STEPS
from tests.workflow.runs import Project

pytestmark = pytest.mark.workflow

SAMPLE = "results/integrated.h5ad"
OPTIONS = {"key": ["plate"], "n_pcs": 8}


@pytest.fixture(scope="module")
def mixed(built: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The built atlas, corrected: read only."""
    new = copied(built, tmp_path_factory.mktemp("mixed"), integrate=OPTIONS)
    of_all = {"subset", *SAMPLE_STEPS, "map", "atlas", "cell_groups", "markers", "report"}
    jobs = new.build(SAMPLE, "atlas", "results/report.html")
    assert {"harmony", "integrate", *of_all} == {job for job in jobs if "/" not in job}
    return new


def copied(built: Project, folder: Path, **config: object) -> Project:
    new = built.copied(folder / "copy")
    new.change(**config)
    return new


def test_the_map_is_of_the_corrected_components(mixed: Project, built: Project):
    """Neighbours, clusters and map are those of the mixed cells; the other map is beside it."""
    atlas = ad.read_zarr(mixed.results / "atlas.zarr")
    first = ad.AnnData(obs=atlas.obs, obsm={"X_pca": atlas.obsm["X_pca"][:, :8]})
    sa.pp.harmony_integrate(first, "plate")
    np.testing.assert_array_equal(atlas.obsm["X_pca_harmony"], first.obsm["X_pca_harmony"])
    record = read_record(mixed.results / "atlas.zarr")["config"]["integrate"]
    assert record == {**OPTIONS, "use": True, "theta": 2.0, "max_iter_harmony": 10}
    found = ad.read_h5ad(mixed.results / "umap.h5ad")
    own = atlas[found.obs_names]
    for name in ("X_pca", "X_pca_harmony", "X_umap"):
        np.testing.assert_array_equal(found.obsm[name], own.obsm[name])
    assert found.obs["leiden"].astype(str).equals(own.obs["leiden"].astype(str))
    assert found.uns["neighbors"]["params"]["use_rep"] == "X_pca_harmony"
    for path, rep, graph in (
        (mixed.results / "umap.h5ad", "X_pca_harmony", "distances"),
        (mixed.results / "integrated.h5ad", "X_pca", "uncorrected_distances"),
    ):
        sample = ad.read_h5ad(path)
        again = ad.AnnData(obs=sample.obs, obsm={rep: sample.obsm[rep]})
        sa.pp.neighbors(again, use_rep=rep)
        np.testing.assert_array_equal(
            sample.obsp[graph].toarray(), again.obsp["distances"].toarray()
        )
    before = ad.read_h5ad(built.results / "umap.h5ad")[found.obs_names]
    np.testing.assert_array_equal(sample.obsm["X_umap_uncorrected"], before.obsm["X_umap"])
    # Numbers of the atlas's clusters are those of their sizes in all cells.
    assert adjusted_rand_score(sample.obs["leiden_uncorrected"], before.obs["leiden"]) == 1


def test_scores_say_what_the_correction_did(mixed: Project):
    found = ad.read_h5ad(mixed.results / "integrated.h5ad")
    table = found.uns["integrate"]["scores"]
    assert list(table.index) == ["plate", "cell_line"]
    assert list(table["should be"]) == ["mixed", "apart"]
    plate, line = (table.loc[name] for name in ("plate", "cell_line"))
    assert plate["score after"] > plate["score before"] + 0.05
    assert line["score after"] > line["score before"] - 0.02  # what the report calls apart
    n_lines = found.obs["cell_line"].nunique()
    assert (plate["values"], line["values"]) == (3, n_lines)
    for column, row in (("plate", plate), ("cell_line", line)):
        for when, key in (("before", "_uncorrected"), ("after", "")):
            mean = found.obs[f"lisi_{column}{key}"].mean()
            assert row[f"LISI {when}"] == mean
            wanted = (n_lines - mean) / (n_lines - 1) if column == "cell_line" else (mean - 1) / 2
            assert row[f"score {when}"] == pytest.approx(wanted)
    shown = pd.read_csv(mixed.results / "tables/mixing.tsv", sep="\t", index_col="column")
    np.testing.assert_allclose(shown["score after"], table["score after"])


def test_h5ad_files_have_the_elements_that_anndata_writes(mixed: Project, tmp_path: Path):
    files = sorted(mixed.results.rglob("*.h5ad"))
    assert {path.stem for path in files} == {"umap", "integrated", "markers"}
    for path in files:
        assert_as_anndata_writes(path, tmp_path / "theirs.h5ad")


def test_the_report_shows_before_and_after(mixed: Project, built: Project):
    pictures = sorted(p.name for p in (mixed.results / "figures/integration").glob("*.png"))
    assert pictures == ["cell_line.png", "plate.png"]
    page = (mixed.results / "report.html").read_text()
    assert "<h2>Integration</h2>" in re.sub(r"<h2[^>]*>", "<h2>", page)
    assert "the right one after Harmony" in page
    assert "Integration" not in (built.results / "report.html").read_text()
    runs = pd.read_csv(mixed.results / "tables/runs.tsv", sep="\t")["rule"]
    assert "integrate" in set(runs)


def test_a_look_at_the_sample_leaves_the_atlas_as_it_is(
    built: Project, mixed: Project, tmp_path: Path
):
    """``use: false``: the sample alone is corrected, beside its map."""
    wanted = {"key": ["plate", "cell_line"], "use": False, "label": None, "n_pcs": 8}
    copy = copied(built, tmp_path, integrate=wanted)
    assert copy.build(SAMPLE) == {"integrate"}
    found = ad.read_h5ad(copy.results / "integrated.h5ad")
    again = ad.read_h5ad(copy.results / "umap.h5ad")
    np.testing.assert_array_equal(found.obsm["X_umap"], again.obsm["X_umap"])
    again.obsm["X_pca"] = again.obsm["X_pca"][:, :8]
    sa.pp.harmony_integrate(again, ["plate", "cell_line"])
    np.testing.assert_array_equal(found.obsm["X_pca_harmony"], again.obsm["X_pca_harmony"])
    assert found.obsm["X_umap_harmony"].shape == (found.n_obs, 2)
    assert len(found.obs["leiden_harmony"].cat.categories) > 1
    assert list(found.uns["integrate"]["scores"].index) == ["plate", "cell_line"]
    copy.change(integrate=wanted | {"umap": False})
    assert copy.build(SAMPLE) == {"integrate"}
    assert "X_umap_harmony" not in ad.read_h5ad(copy.results / "integrated.h5ad").obsm
    copy.change(integrate={"key": ["plate"], "use": False, "label": "donor"})
    done = copy.run(SAMPLE)
    assert done.returncode != 0
    assert "obs['plate'] and obs['donor'] divide the cells alike, but integrate.key" in done.stdout
    copy.change(integrate={"key": ["batch"], "use": False})
    done = copy.run(SAMPLE)
    assert done.returncode != 0
    assert re.search(r"no obs column 'batch' in common, which integrate.key names", done.stdout)


def test_without_it_the_atlas_is_as_before(mixed: Project, built: Project, tmp_path: Path):
    # Settings of pictures and scores are not part of the atlas.
    copy = copied(mixed, tmp_path, integrate=OPTIONS | {"umap": False})
    assert copy.build(SAMPLE) == {"integrate"}
    copy.change(integrate=None)
    copy.build("atlas")
    atlas, before = (ad.read_zarr(p.results / "atlas.zarr") for p in (copy, built))
    assert "X_pca_harmony" not in atlas.obsm
    np.testing.assert_array_equal(atlas.obsm["X_umap"], before.obsm["X_umap"])


def test_new_plates_are_corrected_as_their_atlas_is(mixed: Project, tmp_path: Path):
    """Symphony's mapping: no cell of the atlas moves, and the new plate lies among them."""
    store, plate = mixed.results / "atlas.zarr", tmp_path / "p4.h5ad"
    write_plate(plate, simulate_plate(4, n_cells=150, n_genes=600))
    project = Project(tmp_path / "new", {"plates": "plates.tsv", "atlas": str(store)})
    project.write_plates({"p4": plate})
    project.build("map_plates", "extend", cores=2)
    found, old = (ad.read_zarr(p) for p in (project.results / "mapped/p4.zarr", store))
    assert found.obsm["X_pca_harmony"].shape == (found.n_obs, 8)
    tables = MixedClusters.from_table(old.uns["X_pca_harmony"])
    assert tables.sizes.sum() == pytest.approx(old.n_obs, rel=1e-6)
    np.testing.assert_allclose(
        tables.sums.sum(axis=0), old.obsm["X_pca_harmony"].sum(axis=0), atol=0.05
    )
    batches = np.zeros(found.n_obs, np.int64)
    (wanted,) = tables.mix([found.obsm["X_pca"]], batches, tmp_path)
    np.testing.assert_array_equal(found.obsm["X_pca_harmony"], wanted)
    # Its cells come nearer to those of the same line.
    centres = {
        line: old.obsm["X_pca_harmony"][own].mean(axis=0)
        for line, own in old.obs.groupby("cell_line", observed=True).indices.items()
    }
    apart = [
        np.linalg.norm(x - np.stack([centres[line] for line in found.obs["cell_line"]]), axis=1)
        for x in (found.obsm["X_pca"][:, :8], found.obsm["X_pca_harmony"])
    ]
    assert apart[1].mean() < apart[0].mean()
    both = ad.read_zarr(project.results / "atlas.zarr")
    np.testing.assert_array_equal(
        both.obsm["X_pca_harmony"], np.r_[old.obsm["X_pca_harmony"], found.obsm["X_pca_harmony"]]
    )
