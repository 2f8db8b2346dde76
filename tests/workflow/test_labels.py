"""Names of clusters and cells, and results that their owner has edited, in the whole workflow."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from pathlib import Path

import anndata as ad
import pandas as pd
import pytest
import zarr
from anndata.io import read_elem, write_elem

import scatlas as sa
from scatlas.workflow.command_line.main import main
from tests.workflow.runs import Project
from tests.workflow.test_explore import meta_of

pytestmark = [pytest.mark.workflow, pytest.mark.usefixtures("warm_check")]
# What a new name of a cluster runs.
STEPS = {"labels", "embedding", "atlas", "markers", "report"}


def label(project: Project, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Table of ``scatlas label`` for a project."""
    monkeypatch.chdir(project.folder)
    assert main(["label", "--config", "my.yaml"]) == 0
    return project.folder / "labels.tsv"


def fill_in(path: Path, names: list[str]) -> None:
    """Write names of the first clusters, and save as Excel does."""
    table = pd.read_csv(path, sep="\t", dtype=str, keep_default_na=False)
    table["cell_type"] = [*names, *[""] * len(table)][: len(table)]
    path.write_bytes(table.to_csv(index=False, sep=";", lineterminator="\r\n").encode("utf-8-sig"))


@pytest.fixture(scope="module")
def named(built: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Atlas whose first two clusters and some cells have names."""
    project = built.copied(tmp_path_factory.mktemp("labels"))
    with pytest.MonkeyPatch.context() as patch:
        fill_in(label(project, patch), ["T cells", "B cells"])
    cells = ad.read_zarr(project.results / "atlas.zarr").obs_names[::2]
    pd.DataFrame(
        {"group": ["a", "b"] * (len(cells) // 2)}, index=cells[: len(cells) // 2 * 2]
    ).to_csv(project.folder / "cells.csv")
    project.change(
        labels=["labels.tsv", "cells.csv"],
        markers={"by": ["leiden", "cell_type"], "n_genes": 20},
        pseudobulk={"by": ["cell_type"]},
        explore={"page": True},
    )
    project.build()
    return project


def test_every_result_has_the_names(named: Project):
    results = named.results
    atlas, sample = ad.read_zarr(results / "atlas.zarr"), ad.read_h5ad(results / "umap.h5ad")
    names = {"0": "T cells", "1": "B cells"}
    expected = atlas.obs["leiden"].astype(str).map(names)
    pd.testing.assert_series_equal(
        atlas.obs["cell_type"].astype(object), expected.astype(object), check_names=False
    )
    assert atlas.obs["group"].tolist()[:4:2] == ["a", "b"]
    assert atlas.obs["group"].isna().sum() >= atlas.n_obs // 2
    same = atlas.obs.loc[sample.obs_names, ["cell_type", "group"]].astype(object)
    pd.testing.assert_frame_equal(sample.obs[["cell_type", "group"]].astype(object), same)
    markers = pd.read_csv(results / "tables/markers.tsv", sep="\t", dtype=str)
    assert set(markers.query("by == 'cell_type'")["group"]) == {"T cells", "B cells"}
    assert markers.query("by == 'leiden' and group == '1'")["label"].unique() == ["B cells"]
    sums = ad.read_h5ad(results / "pseudobulk.h5ad")
    sizes = atlas.obs.groupby(["plate", "cell_type"], observed=True).size()
    found = sums.obs.set_index(["plate", "cell_type"])["n_obs_aggregated"]
    assert found.to_dict() == sizes.to_dict()
    clusters = pd.read_csv(results / "tables/clusters.tsv", sep="\t")
    assert clusters["name"].tolist()[:2] == ["T cells", "B cells"]
    assert (results / "figures/umap/cell_type.png").exists()
    page = {column["name"]: column["levels"] for column in meta_of(named)["columns"]}
    assert list(page)[:3] == ["cell_type", "group", "leiden"]
    assert page["cell_type"] == ["T cells", "B cells"]
    lazy = sa.read_lazy(results / "atlas.zarr")
    assert lazy.obs["cell_type"].value_counts().to_dict() == expected.value_counts().to_dict()


def test_another_name_reruns_little_and_names_of_other_clusters_are_not_used(
    named: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    project = named.copied(tmp_path / "project")
    project.change(pseudobulk=None, explore={"page": False}, markers={"by": ["leiden"]})
    path = project.folder / "labels.tsv"
    path.write_text(path.read_text("utf-8-sig").replace("B cells", "Plasma: 1"))
    assert project.planned() == STEPS | {"cell_groups"}, "which has lost a column"
    project.build("atlas")
    names = ad.read_zarr(project.results / "atlas.zarr").obs["cell_type"]
    assert list(names.cat.categories) == ["T cells", "Plasma: 1"]

    project.change(leiden={"resolution": 5.0}, labels=["cells.csv", "labels.tsv"])
    done = project.run("atlas")
    assert done.returncode == 1
    assert re.search(
        r"labels.tsv was written for other clusters \(\d+ then, \d+ now\), so no cell has its "
        "names: write a table of these clusters with scatlas label",
        done.stdout,
    )
    atlas = ad.read_zarr(project.results / "atlas.zarr")
    assert atlas.obs["cell_type"].isna().all()
    assert atlas.obs["group"].notna().any()
    monkeypatch.chdir(project.folder)
    assert main(["check", "--config", "my.yaml"]) == 0
    assert "labels.tsv was written for other clusters" in capsys.readouterr().out
    assert main(["status", "--config", "my.yaml"]) == 0
    assert "labels.tsv was written for other clusters" in capsys.readouterr().out
    label(project, monkeypatch)
    assert "is now labels.1.tsv" in capsys.readouterr().out
    fill_in(project.folder / "labels.tsv", ["a cell"])
    project.build("atlas")
    atlas = ad.read_zarr(project.results / "atlas.zarr")
    assert set(atlas.obs["cell_type"].dropna()) == {"a cell"}
    assert main(["label", "--config", "my.yaml"]) == 1
    assert "labels.tsv is there" in capsys.readouterr().err
    path.write_text("cluster\tcell_type\n0\tA\n0\tB\n")
    assert main(["check", "--config", "my.yaml"]) == 1
    assert "labels.tsv: cluster '0' occurs twice" in capsys.readouterr().out


def add_cell_type(store: Path) -> None:
    """Write obs with one more column, as anndata's users do."""
    root = zarr.open_group(store, mode="r+", use_consolidated=False)
    obs = read_elem(root["obs"])
    obs["cell_type"] = pd.Categorical(["mine"] * len(obs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about sharding
        write_elem(root, "obs", obs)


def test_an_edited_atlas_stays_until_it_would_be_written_again(
    built: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    project = built.copied(tmp_path / "project")
    store = project.results / "atlas.zarr"
    add_cell_type(store)
    assert sa.read_lazy(store).obs["cell_type"].eq("mine").all()
    said = "results/atlas.zarr was edited (obs/cell_type added; obs changed) and stays as it is"
    monkeypatch.chdir(project.folder)
    for command in ("check", "status"):
        assert main([command, "--config", "my.yaml"]) == 0
        assert said in capsys.readouterr().out
        assert main([command, "--config", "my.yaml", "--json"]) == 0
        assert said in json.loads(capsys.readouterr().out)["edited"][0]
    done = project.run()
    assert done.returncode == 0
    assert said in done.stdout
    # Steps that do not write it run, and see it; other programs see it, too.
    assert "report" in project.build("--forcerun", "report")
    assert ad.read_zarr(store).obs["cell_type"].eq("mine").all()
    before = project.outputs()
    project.change(umap={"min_dist": 0.2})
    for options in ((), ("-n",)):
        refused = project.run(*options)
        assert refused.returncode == 1
        assert "and this run would write it again: move it away to keep it" in refused.stdout
    assert (
        "would write it again" in (main(["check", "--config", "my.yaml"]), *capsys.readouterr())[1]
    )
    assert project.outputs() == before
    store.rename(tmp_path / "mine.zarr")
    assert "atlas" in project.planned()


def test_an_atlas_written_again_as_zarr_v2_is_not_overwritten(built: Project, tmp_path: Path):
    project = built.copied(tmp_path / "project")
    store = project.results / "atlas.zarr"
    shutil.rmtree(store)
    (store / "obs").mkdir(parents=True)
    (store / ".zgroup").write_text('{"zarr_format": 2}')
    refused = project.run()
    assert refused.returncode == 1
    assert "was edited (another program has written it again, as Zarr v2)" in refused.stdout
    assert (store / ".zgroup").exists()
