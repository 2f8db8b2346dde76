"""What reruns, what does not, and that a rerun gives the same bytes."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import anndata as ad
import numpy as np
import psutil
import pytest

from scatlas.datasets import write_plate
from tests.workflow.conftest import PLATES
from tests.workflow.runs import ROOT, Project, assert_same_outputs

pytestmark = pytest.mark.workflow

PLATE_STEPS = ("load", "qc_filter", "normalize", "hvg", "select_genes")
ATLAS_STEPS = ("concat_on_disk", "pca", "atlas", "subset", "umap", "report")


def all_jobs(plates=PLATES) -> set[str]:
    return {f"{step}/{p}" for step in PLATE_STEPS for p in plates} | {"consensus", *ATLAS_STEPS}


@pytest.fixture
def copy(built: Project, tmp_path: Path) -> Project:
    """The built atlas in another folder, with Snakemake's memory of it, free to be changed."""
    new = Project(tmp_path / "copy", dict(built.config))
    # Times are kept, links between the stores are not needed.
    shutil.copytree(built.folder, new.folder, dirs_exist_ok=True)
    return new


def test_every_step_runs_once_and_then_there_is_nothing_to_do(project: Project):
    assert project.build() == all_jobs()
    again = project.run()
    assert again.returncode == 0
    assert "Nothing to be done" in again.stdout
    assert project.build() == set()


def test_two_runs_give_the_same_bytes_for_any_number_of_cores(built: Project, project: Project):
    project.build(cores=1)
    assert_same_outputs(project.outputs(), built.outputs())


def test_a_changed_plate_that_leaves_the_consensus_touches_no_other_plate(
    copy: Project, plates: dict[str, Path], tmp_path: Path
):
    adata = ad.read_h5ad(plates["p2"])
    kept = np.flatnonzero(adata.obs["pass_filter"] == "full")[0]
    adata.X.data[adata.X.indptr[kept]] += 1
    changed = tmp_path / "p2.h5ad"
    write_plate(changed, adata)
    sheet = dict(plates) | {"p2": changed}
    copy.write_plates(sheet)
    genes = (copy.results / "consensus_genes.tsv").read_bytes()
    old = copy.outputs()

    ran = copy.build()

    assert (copy.results / "consensus_genes.tsv").read_bytes() == genes, "a premise of this test"
    assert ran == {f"{step}/p2" for step in PLATE_STEPS} | {"consensus", *ATLAS_STEPS}
    new = copy.outputs()
    assert new["plates/p2/size_factors.parquet"] != old["plates/p2/size_factors.parquet"]
    assert {
        n for n in old if n.startswith(("plates/p1", "plates/p3")) and new[n] != old[n]
    } == set()


def test_changed_qc_bounds_do_not_load_again(copy: Project):
    copy.config["qc"] = {"min_genes": 40}
    copy.write_config()
    ran = copy.build()
    assert ran == {job for job in all_jobs() if not job.startswith("load/")}


def test_a_changed_umap_setting_reruns_the_umap_alone(copy: Project):
    copy.config["umap"] = {"min_dist": 0.3}
    copy.write_config()
    assert copy.build() == {"umap", "report"}


def test_a_deleted_store_is_made_again(copy: Project):
    old = copy.outputs()
    shutil.rmtree(copy.results / "plates/p3/counts.zarr")
    assert "load/p3" in copy.build()
    assert_same_outputs(copy.outputs(), old)


@pytest.mark.parametrize("rule", ["load", "concat_on_disk"])
def test_a_job_killed_while_writing_leaves_nothing_that_looks_finished(
    rule: str, built: Project, project: Project
):
    store = {"load": "plates/p1/counts.zarr", "concat_on_disk": "merged.zarr"}[rule]
    final = project.results / store
    partial = final.parent / f".{final.name}.partial"
    running = subprocess.Popen(
        project.command(), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 240
        while not partial.exists():
            assert time.monotonic() < deadline
            assert running.poll() is None, "Snakemake ended before the store was begun"
            time.sleep(0.0005)
        killed = kill_job(running.pid, f"{rule}.py", store)
        assert running.wait(timeout=240) != 0
    finally:
        stop(running.pid)
    assert killed
    assert not (final / "zarr.json").exists()

    project.build()

    assert not partial.exists()
    assert_same_outputs(project.outputs(), built.outputs())


def kill_job(pid: int, script: str, store: str) -> bool:
    """SIGKILL the Python process that runs a script on a store."""
    for process in psutil.Process(pid).children(recursive=True):
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        python = bool(line) and Path(line[0]).name.startswith("python")
        if (
            python
            and any(w.endswith(script) for w in line)
            and any(w.endswith(store) for w in line)
        ):
            process.kill()
            return True
    return False


def stop(pid: int) -> None:
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in processes:
        process.kill()
