"""Bad plates are left out (``plates.on_error: skip``), and named together if they stop a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import anndata as ad
import pytest

from tests.workflow.conftest import CONFIG
from tests.workflow.runs import Project
from tests.workflow.test_bad_plates import no_cell, other_genes, truncated

pytestmark = pytest.mark.workflow
SKIP = CONFIG | {"plates": {"sheet": "plates.tsv", "on_error": "skip"}}


def empty(path: Path, adata: ad.AnnData) -> None:
    adata[:0].write_h5ad(path)


SPOILED = {"damaged": truncated, "empty": empty, "foreign": other_genes, "dead": no_cell}


@pytest.fixture
def spoiled(tmp_path: Path, plates: dict[str, Path]) -> dict[str, Path]:
    """A bad plate of each kind."""
    paths = {name: tmp_path / f"{name}.h5ad" for name in SPOILED}
    for name, spoil in SPOILED.items():
        spoil(paths[name], ad.read_h5ad(plates["p2"]))
    return paths


def left_out(project: Project) -> dict[str, str]:
    return json.loads((project.results / "manifests/consensus.json").read_text())["left_out"]


def test_bad_plates_are_left_out_as_if_they_were_not_listed(
    tmp_path: Path, plates: dict[str, Path], spoiled: dict[str, Path], built: Project
):
    project = Project(tmp_path / "project", dict(SKIP))
    # A bad plate comes first, the others between good ones.
    first, *others = spoiled
    project.write_plates(
        {
            first: spoiled[first],
            "p1": plates["p1"],
            others[0]: spoiled[others[0]],
            "p2": plates["p2"],
            **{name: spoiled[name] for name in others[1:]},
            "p3": plates["p3"],
        }
    )
    done = project.run("atlas")
    assert done.returncode == 0, done.stdout[-6000:]
    said = done.stdout[done.stdout.index("4 of 7 plates are left out") :]
    for name in spoiled:
        assert str(spoiled[name]) in said or f"plate {name} has" in said

    assert set(left_out(project)) == set(spoiled)
    wanted, found = built.outputs(), project.outputs()
    found = {
        name: content
        for name, content in found.items()
        if not any(f"/{plate}" in name for plate in spoiled)
    }
    assert [name for name in found if found[name] != wanted[name]] == ["manifests/consensus.json"]
    assert "atlas.zarr/zarr.json" in found

    project.change(title="No step of a plate reads this")
    assert not project.build("atlas"), "an unchanged bad plate is tried again"
    shutil.copy(plates["p2"], spoiled["dead"])
    ran = project.build("atlas")
    assert {f"{step}/dead" for step in ("load", "qc_filter", "hvg", "select_genes")} <= ran
    assert {name for name in ran if name.startswith("load/")} == {"load/dead"}
    assert set(left_out(project)) == {"damaged", "empty", "foreign"}
    atlas = ad.read_zarr(project.results / "atlas.zarr")
    assert set(atlas.obs["plate"]) == {*plates, "dead"}


def test_all_bad_plates_of_a_run_are_named_together(
    tmp_path: Path, plates: dict[str, Path], spoiled: dict[str, Path]
):
    project = Project(tmp_path / "project", dict(CONFIG))
    # Genes are compared with the first plate, where it can be read.
    project.write_plates({"damaged": spoiled["damaged"], "p1": plates["p1"], **spoiled})
    stopped = project.run("--keep-going", "--until", "load")
    assert stopped.returncode != 0
    said = stopped.stdout[stopped.stdout.index("3 of 5 plates cannot be used") :]
    assert [name for name in ("damaged", "empty", "dead") if str(spoiled[name]) not in said] == []
    assert (project.results / "plates/p1/counts.zarr/zarr.json").exists(), "good plates go on"
