"""Added and dropped plates, changed settings: which steps rerun, with the bytes of a new run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.workflow.runs import Project, assert_same_outputs

pytestmark = pytest.mark.workflow

PLATE_STEPS = ("load", "qc_filter", "normalize", "hvg", "select_genes")
MERGE = {"consensus", "concat_on_disk", "pca", "atlas"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, two: Project) -> Project:
    """Two plates and the genes that are variable on either plate, up to the atlas."""
    return two.copied(tmp_path_factory.mktemp("partial"))


def ages(project: Project, plate: str) -> dict[str, int]:
    """Time of each file of a plate."""
    files = (project.results / "plates" / plate).rglob("*")
    return {str(path): path.stat().st_mtime_ns for path in files if path.is_file()}


def test_plates_come_and_go_and_the_others_are_not_touched(
    project: Project, plates: dict[str, Path], tmp_path: Path
):
    """The atlas already has the variable genes of the new plate: the other plates are reused."""
    before, genes = project.outputs(), (project.results / "consensus_genes.tsv").read_bytes()
    old = {plate: ages(project, plate) for plate in ("p1", "p2")}
    assert any("gram.zarr" in name for name in old["p1"])
    sheet = {name: plates[name] for name in ("p1", "p2")}

    duplicate = shutil.copy(plates["p1"], tmp_path / "copy.h5ad")  # no file may occur twice
    project.write_plates({**sheet, "copy": duplicate})
    assert project.build("atlas") == {f"{step}/copy" for step in PLATE_STEPS} | MERGE
    assert (project.results / "consensus_genes.tsv").read_bytes() == genes, "a premise of this test"
    assert {plate: ages(project, plate) for plate in old} == old

    project.write_plates(sheet)
    assert project.build("atlas") == MERGE
    assert {plate: ages(project, plate) for plate in old} == old
    # Results of a dropped plate do no harm; they can be deleted.
    shutil.rmtree(project.results / "plates/copy")
    for left in project.results.glob("manifests/*/copy.json"):
        left.unlink()
    assert project.build("atlas") == set()
    assert_same_outputs(project.outputs(), before)


def test_other_components_take_no_pass_over_the_plates(project: Project):
    project.change(pca={"n_comps": 7})
    assert project.build("atlas") == {"pca", "atlas"}


def test_one_plate_is_done_again_on_demand_and_no_other(project: Project):
    before = project.outputs()
    other = ages(project, "p2")
    ran = project.build("atlas", "--forcerun", "results/plates/p1/counts.zarr/zarr.json")
    assert "load/p1" in ran
    assert not [job for job in ran if job.endswith("/p2")]
    assert ages(project, "p2") == other
    assert_same_outputs(project.outputs(), before)
