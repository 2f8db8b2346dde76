"""One file of many samples: each is a plate (``plates: {path: ..., by: ...}``)."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import anndata as ad
import numpy as np
import pytest

from scatlas.datasets import simulate_plates, write_release
from tests.workflow import warm
from tests.workflow.conftest import CONFIG
from tests.workflow.runs import ROOT, Project, run_python

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

    project.change(plates={"path": "all.h5ad", "by": "batch"})
    assert "all.h5ad: obs has no column 'batch' (plates.by)" in project.run("atlas").stdout


def test_the_page_leads_from_a_release_to_the_effects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Each command and each block of docs/tahoe.md, with three control wells per plate."""
    page = (ROOT / "docs/tahoe.md").read_text()
    blocks = dict(re.findall(r"```(bash|yaml|python)\n(.*?)```", page, re.DOTALL))
    assert page.count("```") == 2 * len(blocks)
    plates = [*simulate_plates(n_plates=3, n_cells=900, n_genes=300, n_lines=3).values()]
    write_release(tmp_path / "tahoe", plates, rows_per_group=100)
    monkeypatch.chdir(tmp_path)

    def scatlas(*words: str) -> str:
        path = warm.environment()["PATH"]
        command = ("-m", "scatlas.workflow.command_line", *words)
        done = run_python(*command, cwd=tmp_path, cold=True, PATH=path)
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout

    init, *others = (shlex.split(line)[1:] for line in blocks["bash"].splitlines())
    scatlas(*init)
    with Path("atlas.yaml").open("a") as config:
        config.write(blocks["yaml"])
    for words in others:
        scatlas(*words)
    assert "3 plates, nothing to run" in scatlas("check")
    assert not Path("results/samples").exists(), "a copy of the release"

    full = sum((adata.obs["pass_filter"] == "full").sum() for adata in plates)
    read = [json.loads(f.read_text()) for f in Path("results/manifests/load").glob("plate?.json")]
    assert sum(facts["n_cells"] for facts in read) == full
    assert f"3 plates with {full:,} cells" in Path("atlas.yaml").read_text().replace("\n# ", " ")
    assert {"drug", "dose", "gene_count"} <= set(ad.read_zarr("results/atlas.zarr").obs)
    names: dict = {}
    exec(blocks["python"].replace("CVCL_0546", "SIM_0002"), names)
    line = names["line"].obs
    assert set(line["n_replicates"]) == {1}
    assert set(line["n_controls"]) == {3}
    assert set(line["df_residual"]) == {6}, "three control wells less one on each plate"
    assert len(line) == 21, "7 drugs, a dose on each plate"
    assert names["table"]["fdr"].between(0, 1).all()
    assert len(names["table"]) > 50
