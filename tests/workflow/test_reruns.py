"""Which steps a change reruns, and that a rerun gives the same bytes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import psutil
import pytest

from scatlas.datasets import write_plate
from scatlas.workflow.integrity import run_record
from tests.workflow.conftest import CONFIG, PLATES, SAMPLE_STEPS
from tests.workflow.runs import ROOT, Project, assert_same_outputs

pytestmark = pytest.mark.workflow

PLATE_STEPS = ("load", "qc_filter", "normalize", "hvg", "select_genes")
MERGE_STEPS = ("concat_on_disk", "pca", "subset", *SAMPLE_STEPS, "map", "atlas")
ATLAS_STEPS = (*MERGE_STEPS, "merge_by_gene", "cell_groups", "markers", "report")
GROUP_SUMS = {f"group_sums/{plate}" for plate in PLATES}


def all_jobs(plates=PLATES) -> set[str]:
    steps = (*PLATE_STEPS, "by_gene", "group_sums")
    return {f"{step}/{p}" for step in steps for p in plates} | {"consensus", *ATLAS_STEPS}


@pytest.fixture
def copy(built: Project, tmp_path: Path) -> Project:
    """Copy of the built atlas with Snakemake's records, which a test may change."""
    return built.copied(tmp_path / "copy")


def test_every_step_runs_once_and_then_there_is_nothing_to_do(copy: Project):
    assert set(copy.records()) == all_jobs()
    for plate in PLATES:
        log = (copy.results / f"logs/hvg/{plate}.log").read_text()
        assert f"plate {plate}: load took the moments, no counts are read" in log
    before = copy.records()
    again = copy.run()
    assert again.returncode == 0
    assert "Nothing to be done" in again.stdout
    assert copy.records() == before


NO_CUPY = """
import runpy, sys
sys.modules["cupy"] = None  # its import fails
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_hvg_starts_no_gpu_if_load_took_the_moments(built: Project, tmp_path: Path):
    plate = built.results / "plates/p1"
    table, manifest = tmp_path / "hvg.parquet", tmp_path / "hvg.json"

    def hvg(*moments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                *(sys.executable, "-c", NO_CUPY, "scripts/hvg.py", "--plate", "p1"),
                *("--store", plate / "counts.zarr", "--min-cells", "0"),
                *("--config", '{"hvg": {"n_top_genes": 150}}'),
                *("--size-factors", plate / "size_factors.parquet", "--table", table),
                *("--manifest", manifest, "--backend", "gpu", "--threads", "1", *moments),
            ],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip

    done = hvg("--moments", plate / "moments.parquet")
    assert done.returncode == 0, done.stderr
    assert table.read_bytes() == (plate / "hvg.parquet").read_bytes()
    assert "backend" not in json.loads(run_record(manifest).read_bytes())
    failed = hvg()
    assert failed.returncode == 1
    assert "CuPy is not installed" in failed.stderr


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

    ran = copy.build("atlas", "embedding")

    assert (copy.results / "consensus_genes.tsv").read_bytes() == genes, "a premise of this test"
    assert ran == {f"{step}/p2" for step in PLATE_STEPS} | {"consensus", *MERGE_STEPS}
    new = copy.outputs()
    assert new["plates/p2/size_factors.parquet"] != old["plates/p2/size_factors.parquet"]
    assert {
        n for n in old if n.startswith(("plates/p1", "plates/p3")) and new[n] != old[n]
    } == set()


def test_changed_qc_bounds_do_not_load_again(copy: Project):
    tables = [pd.read_parquet(copy.results / f"plates/{p}/qc.parquet") for p in PLATES]
    bound = int(max(table["total_counts"].quantile(0.1) for table in tables))
    copy.change(qc=CONFIG["qc"] | {"min_counts": bound})
    planned = copy.run("consensus", "--dry-run").stdout
    jobs = re.findall(r"^(load|qc_filter|hvg) +(\d+)$", planned, re.MULTILINE)
    assert set(jobs) == {("qc_filter", "3"), ("hvg", "3")}
    # A column of the plate sheet groups all cells of a plate.
    copy.change(qc=CONFIG["qc"] | {"mads": 5, "by": "donor"})
    done = copy.run("results/plates/p1/hvg.parquet")
    assert done.returncode == 0, done.stdout
    summary = json.loads((copy.results / "plates/p1/qc_summary.json").read_text())
    assert [bounds["group"] for bounds in summary["bounds"]] == ["all"]
    assert summary["removed"]["mads_pct_mt"] > 0
    assert (
        json.loads((copy.results / "manifests/hvg/p1.json").read_text())["n_cells"]
        == (summary["n_kept"])
    )


def test_a_bound_on_genes_that_are_called_by_ids_names_the_column_to_set(
    tmp_path: Path, plates: dict[str, Path]
):
    """The bound is set after loading, and must not load the plate again."""
    adata = ad.read_h5ad(plates["p1"])
    adata.var["feature_name"] = adata.var_names
    adata.var_names = [f"ENSG{i:05}" for i in range(adata.n_vars)]
    write_plate(tmp_path / "ids.h5ad", adata)
    project = Project(tmp_path / "project", CONFIG | {"consensus": {"min_plates": 1}})
    project.write_plates({"p1": tmp_path / "ids.h5ad"})
    tables = "results/plates/p1/qc.parquet"
    assert project.build(tables) == {"load/p1", "qc_filter/p1"}

    project.change(qc=CONFIG["qc"] | {"max_pct_mt": 4.0})
    failed = project.run(tables)

    assert failed.returncode != 0
    sentence = r"error: plate p1: qc.max_pct_mt is 4, .* in var\['feature_name'\] begin with"
    assert re.search(sentence, failed.stdout)
    project.config["qc"]["gene_names"] = "feature_name"
    project.write_config()
    assert project.build(tables) == {"load/p1", "qc_filter/p1"}
    summary = json.loads((project.results / "plates/p1/qc_summary.json").read_text())
    assert summary["removed"]["max_pct_mt"] > 0

    project.config["qc"]["gene_names"] = None
    project.write_config()
    early = project.run(tables)
    assert early.returncode != 0
    assert re.search(rf"error: .*{tmp_path}/ids.h5ad: qc.max_pct_mt is 4", early.stdout)


def test_rare_genes_are_dropped_without_loading_again(copy: Project, plates: dict[str, Path]):
    facts = copy.results / "manifests/normalize/p1.json"
    assert json.loads(facts.read_text())["n_genes_dropped"] == 0
    copy.change(qc=CONFIG["qc"] | {"drop_rare_genes": 30})
    ran = copy.build("consensus")
    steps = ("qc_filter", "normalize", "hvg")
    assert ran == {f"{step}/{p}" for step in steps for p in PLATES} | {"consensus"}
    log = (copy.results / "logs/hvg/p1.log").read_text()
    assert "plate p1: the counts are read, because load took the moments for other cells" in log
    n_rare = (ad.read_h5ad(plates["p1"]).X.getnnz(axis=0) < 30).sum()
    assert json.loads(facts.read_text())["n_genes_dropped"] == n_rare > 0
    copy.change(qc=CONFIG["qc"] | {"drop_rare_genes": 251})
    done = copy.run("consensus")
    assert done.returncode != 0
    sentence = r"error: plate p\d: no gene is expressed in 251 cells .* qc.drop_rare_genes"
    assert re.search(sentence, done.stdout)


def test_qc_bounds_that_take_no_cell_change_no_byte_of_the_stores(copy: Project):
    old = copy.outputs()
    copy.change(qc=CONFIG["qc"] | {"min_genes": 1})
    ran = copy.build("atlas")
    assert {f"qc_filter/{p}" for p in PLATES} <= ran
    assert not ran & {f"load/{p}" for p in PLATES}
    new = copy.outputs()
    stores = [name for name in old if ".zarr/" in name or name.endswith((".h5ad", ".npz"))]
    # The record in the atlas changes, its manifest does not.
    record = [name for name in stores if name.startswith("atlas.zarr/uns/scatlas/")]
    assert [name for name in record if new[name] != old[name]] == [
        "atlas.zarr/uns/scatlas/config/c"
    ]
    assert new["manifests/atlas.json"] == old["manifests/atlas.json"]
    stores = [name for name in stores if name not in record]
    assert stores
    assert [name for name in stores if new[name] != old[name]] == []


@pytest.mark.parametrize(
    ("section", "value", "steps"),
    [
        ("umap", {"min_dist": 0.3}, {"umap"}),
        ("neighbors", {"n_neighbors": 10}, {"neighbors", "umap", "leiden", "markers", *GROUP_SUMS}),
    ],
)
def test_a_changed_key_of_the_sample_reruns_what_it_concerns(
    copy: Project, section: str, value: dict, steps: set[str]
):
    """Marker genes follow if a cell has another cluster."""
    copy.change(**{section: value})
    assert copy.build() == steps | {"embedding", "map", "atlas", "cell_groups", "report"}


def test_clusters_and_colours_rerun_what_they_concern(copy: Project):
    copy.change(report={"colors": ["cell_line"]})
    assert copy.planned() == {"report"}
    copy.change(leiden={"resolution": 0.5})
    later = {"embedding", "map", "atlas", "cell_groups", "report"}
    assert copy.planned() - {"group_sums", "markers"} == {"leiden"} | later


def test_a_deleted_store_is_made_again_when_it_is_needed(copy: Project):
    """A finished atlas needs no counts, so users may delete them."""
    shutil.rmtree(copy.results / "plates/p3/counts.zarr")
    assert copy.build() == set()
    copy.change(hvg={"n_top_genes": 140})
    loaded = {job for job in copy.build("consensus") if job.startswith("load/")}
    assert loaded == {"load/p3"}


@pytest.fixture
def project(tmp_path: Path, one: Project, plates: dict[str, Path]) -> Project:
    """Project with one plate, not run yet."""
    new = Project(tmp_path / "project", dict(one.config))
    new.write_plates({"p1": plates["p1"]})
    return new


@pytest.fixture
def interrupted(project: Project):
    """Kill a run while it writes a store; return its exit status."""

    def interrupt(script: str, store: str, *, everything: bool, cores: int = 2) -> int:
        final = project.results / store
        for _ in range(5):
            code = interrupt_once(final, script, store, everything=everything, cores=cores)
            if not (everything and (final / "zarr.json").exists()):
                break
            # The store was complete before the signal came: once more.
            assert project.run("--unlock").returncode == 0
            shutil.rmtree(final)
        return code

    def interrupt_once(
        final: Path, script: str, store: str, *, everything: bool, cores: int
    ) -> int:
        partial = final.parent / f".{final.name}.partial"
        running = subprocess.Popen(
            project.command("atlas", cores=cores),
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + 300
            while not partial.exists():
                assert time.monotonic() < deadline
                assert running.poll() is None, "Snakemake ended before the store was begun"
                time.sleep(0.0005)
            if everything:
                stop(running.pid)
            else:
                assert kill_job(running.pid, script, store)
            code = running.wait(timeout=300)
        finally:
            stop(running.pid)
        return code

    return interrupt


def test_a_job_killed_while_writing_is_done_again(interrupted, one: Project, project: Project):
    """On one core, the other atlas on two: every byte is the same."""
    assert interrupted("load.py", "plates/p1/counts.zarr", everything=False, cores=1) == 0
    assert_same_outputs(project.outputs(), one.outputs())


def test_a_run_killed_while_writing_leaves_nothing_that_looks_finished(
    interrupted, one: Project, project: Project
):
    assert interrupted("concat_on_disk.py", "merged.zarr", everything=True) != 0
    merged = project.results / "merged.zarr"
    assert not (merged / "zarr.json").exists()
    assert not (project.results / "manifests/concat_on_disk.json").exists()
    assert (merged.parent / ".merged.zarr.partial").exists(), "a premise: it was being written"

    ran = project.build("atlas")

    assert not ran & {f"{step}/p1" for step in PLATE_STEPS}
    assert not (merged.parent / ".merged.zarr.partial").exists()
    assert_same_outputs(project.outputs(), one.outputs())


def kill_job(pid: int, script: str, store: str) -> bool:
    """Kill (SIGKILL) the Python process that runs a script on a store."""
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
