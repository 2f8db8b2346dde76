"""Batch correction by Harmony, of the sample and of the whole atlas, with pictures and scores."""

from __future__ import annotations

import re
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

import scatlas as sa
from scatlas.workflow.provenance import read_record
from tests.helpers.h5ad_trees import assert_as_anndata_writes
from tests.workflow.conftest import SAMPLE_STEPS
from tests.workflow.runs import Project

pytestmark = pytest.mark.workflow

SAMPLE = "results/integrated.h5ad"


@pytest.fixture(scope="module")
def mixed(built: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The built atlas with a corrected sample: read only."""
    new = copied(built, tmp_path_factory.mktemp("mixed"), integrate={"key": ["plate"]})
    assert new.build() == {"integrate", "report"}, "the atlas and its map stay"
    return new


def copied(built: Project, folder: Path, **config: object) -> Project:
    new = built.copied(folder / "copy")
    new.change(**config)
    return new


def test_the_sample_is_mixed_and_its_lines_stay_apart(mixed: Project):
    found = ad.read_h5ad(mixed.results / "integrated.h5ad")
    before = ad.read_h5ad(mixed.results / "umap.h5ad")
    for name in ("X_pca", "X_umap"):
        np.testing.assert_array_equal(found.obsm[name], before.obsm[name])
    again = sa.pp.harmony_integrate(before, "plate", copy=True)
    np.testing.assert_array_equal(found.obsm["X_pca_harmony"], again.obsm["X_pca_harmony"])
    sa.pp.neighbors(again, use_rep="X_pca_harmony")
    np.testing.assert_array_equal(
        found.obsp["harmony_distances"].toarray(), again.obsp["distances"].toarray()
    )
    assert found.obsm["X_umap_harmony"].shape == (found.n_obs, 2)
    assert len(found.obs["leiden_harmony"].cat.categories) > 1

    table = found.uns["integrate"]["scores"]
    assert list(table.index) == ["plate", "cell_line"]
    assert list(table["should be"]) == ["mixed", "apart"]
    plate, line = (table.loc[name] for name in ("plate", "cell_line"))
    assert plate["score after"] > plate["score before"] + 0.05
    assert line["score after"] >= line["score before"] - 1e-3
    n_lines = before.obs["cell_line"].nunique()
    assert (plate["values"], line["values"]) == (3, n_lines)
    for column, row in (("plate", plate), ("cell_line", line)):
        for when, key in (("before", ""), ("after", "_harmony")):
            mean = found.obs[f"lisi_{column}{key}"].mean()
            assert row[f"LISI {when}"] == mean
            wanted = (n_lines - mean) / (n_lines - 1) if column == "cell_line" else (mean - 1) / 2
            assert row[f"score {when}"] == pytest.approx(wanted)
    shown = pd.read_csv(mixed.results / "tables/mixing.tsv", sep="\t", index_col="column")
    np.testing.assert_allclose(shown["score after"], table["score after"])


def test_h5ad_files_have_the_elements_that_anndata_writes(mixed: Project, tmp_path: Path):
    files = sorted(mixed.results.rglob("*.h5ad"))
    steps = ("subset", "neighbors", "umap", "leiden", "integrated", "group_sums", "markers")
    assert {path.stem for path in files} == set(steps)
    for path in files:
        assert_as_anndata_writes(path, tmp_path / "theirs.h5ad")


def test_the_report_shows_before_and_after(mixed: Project, built: Project):
    pictures = sorted(p.name for p in (mixed.results / "figures/integration").glob("*.png"))
    assert pictures == ["cell_line.png", "plate.png"]
    page = (mixed.results / "report.html").read_text()
    assert "<h2>Integration</h2>" in re.sub(r"<h2[^>]*>", "<h2>", page)
    assert "The right map shows the cells after Harmony" in page
    assert "Integration" not in (built.results / "report.html").read_text()
    runs = pd.read_csv(mixed.results / "tables/runs.tsv", sep="\t")["rule"]
    assert "integrate" in set(runs)


def test_other_settings_mix_again(mixed: Project, tmp_path: Path):
    copy = copied(mixed, tmp_path, integrate={"key": ["plate", "cell_line"], "umap": False})
    copy.config["integrate"] |= {"label": None, "n_pcs": 8}
    copy.write_config()
    assert copy.build(SAMPLE) == {"integrate"}
    found = ad.read_h5ad(copy.results / "integrated.h5ad")
    assert found.obsm["X_pca_harmony"].shape == (found.n_obs, 8)
    assert "X_umap_harmony" not in found.obsm
    assert list(found.uns["integrate"]["scores"].index) == ["plate", "cell_line"]
    copy.change(integrate={"key": ["plate"], "label": "donor"})
    done = copy.run(SAMPLE)
    assert done.returncode != 0
    assert "obs['plate'] and obs['donor'] divide the cells alike, but integrate.key" in done.stdout
    copy.change(integrate={"key": ["batch"]})
    done = copy.run(SAMPLE)
    assert done.returncode != 0
    assert re.search(r"no obs column 'batch' in common, which integrate.key names", done.stdout)


def test_all_cells_are_mixed_and_the_atlas_has_them(built: Project, tmp_path: Path):
    everything = {"key": ["plate"], "cells": "all", "n_pcs": 8}
    copy = copied(built, tmp_path, integrate=everything)
    of_all = {"base", "subset", *SAMPLE_STEPS, "map", "atlas"}
    assert copy.build(SAMPLE, "atlas") == {"harmony", "integrate", *of_all}
    atlas = ad.read_zarr(copy.results / "atlas.zarr")
    first = ad.AnnData(obs=atlas.obs, obsm={"X_pca": atlas.obsm["X_pca"][:, :8]})
    sa.pp.harmony_integrate(first, "plate")
    np.testing.assert_array_equal(atlas.obsm["X_pca_harmony"], first.obsm["X_pca_harmony"])
    record = read_record(copy.results / "atlas.zarr")["config"]["integrate"]
    assert record == {**everything, "theta": 2.0, "max_iter_harmony": 10}
    sample = ad.read_h5ad(copy.results / "integrated.h5ad")
    np.testing.assert_array_equal(
        sample.obsm["X_pca_harmony"], atlas[sample.obs_names].obsm["X_pca_harmony"]
    )
    scores = sample.uns["integrate"]["scores"].loc["plate"]
    assert scores["score after"] > scores["score before"]
    # Settings of pictures and scores are not part of the atlas.
    copy.change(integrate=everything | {"umap": False})
    assert copy.build(SAMPLE) == {"integrate"}
    copy.change(integrate=None)
    assert copy.build("atlas") == of_all
    assert "X_pca_harmony" not in ad.read_zarr(copy.results / "atlas.zarr").obsm
