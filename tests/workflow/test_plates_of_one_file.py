"""One file of many samples: each is a plate (``plates: {path: ..., by: ...}``)."""

from __future__ import annotations

import json
from pathlib import Path

import anndata as ad
import numpy as np
import pytest

from scatlas.datasets import write_release
from tests.workflow.conftest import CONFIG
from tests.workflow.runs import Project

pytestmark = pytest.mark.workflow
SAMPLES = ["plate1", "plate2", "Plate 3"]


def write_atlas(path: Path, plates: dict[str, Path], *, changed: str | None = None) -> None:
    """One file of all plates, their cells interleaved; the obs of one may be changed."""
    read = {name: ad.read_h5ad(path) for name, path in zip(SAMPLES, plates.values(), strict=True)}
    for name, adata in read.items():
        adata.obs["age"] = float(name == changed)
    whole = ad.concat(read, label="sample", merge="same")
    whole.obs_names_make_unique()
    order = np.argsort(np.tile(np.arange(250), len(read)), kind="stable")
    whole[order].copy().write_h5ad(path)


def facts(project: Project, plate: str) -> list:
    found = json.loads((project.results / f"manifests/load/{plate}.json").read_text())
    return [found[name] for name in ("n_cells", "n_values", "total_counts", "max_count")]


def test_samples_of_one_file_are_plates(tmp_path: Path, plates: dict[str, Path], built: Project):
    place = {"plates": {"path": "all.h5ad", "by": "sample"}}
    project = Project(tmp_path / "project", CONFIG | place)
    write_atlas(project.folder / "all.h5ad", plates)
    ran = project.build("atlas")
    names = [name.replace(" ", "_") for name in SAMPLES]
    assert {"split", *(f"load/{name}" for name in names)} <= ran
    assert [facts(project, name) for name in names] == [facts(built, name) for name in plates]
    assert not list(project.results.glob("samples/*")), "kept after they were loaded"
    atlas = ad.read_zarr(project.results / "atlas.zarr")
    assert dict(zip(atlas.obs["plate"], atlas.obs["sample"], strict=True)) == dict(
        zip(names, SAMPLES, strict=True)
    )
    assert not project.build("atlas")

    write_atlas(project.folder / "all.h5ad", plates, changed="plate2")
    ran = project.build("atlas")
    assert {"split", "load/plate2"} <= ran
    assert {name for name in ran if name.startswith("select_genes/")} == {"select_genes/plate2"}
    atlas = ad.read_zarr(project.results / "atlas.zarr")
    assert ((atlas.obs["age"] == 1) == (atlas.obs["plate"] == "plate2")).all()

    project.config["plates"] = {"path": "all.h5ad", "by": "batch"}
    project.write_config()
    assert "all.h5ad: obs has no column 'batch' (plates.by)" in project.run("atlas").stdout


def test_plates_of_a_parquet_release_are_read_where_they_are(
    tmp_path: Path, plates: dict[str, Path]
):
    read = [ad.read_h5ad(path) for path in plates.values()]
    for adata in read:
        adata.obs["pass_filter"] = "full"
    project = Project(tmp_path / "project", CONFIG | {"plates": {"path": "tahoe", "by": "plate"}})
    write_release(project.folder / "tahoe", read, rows_per_group=100)
    ran = project.build("atlas")
    assert {f"load/plate{number}" for number in (1, 2, 3)} <= ran
    assert "split" not in ran
    assert not list(project.results.glob("samples"))
    atlas = ad.read_zarr(project.results / "atlas.zarr")
    assert atlas.n_obs == sum(adata.n_obs for adata in read)
    assert {"drug", "dose", "gene_count"} <= set(atlas.obs)
    assert not project.build("atlas")
