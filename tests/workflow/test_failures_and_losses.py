"""After a failure, a loss or damage a run ends with the right bytes or with a sentence."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from base64 import b64encode
from pathlib import Path

import anndata as ad
import pytest

from scatlas.errors import InputError
from scatlas.io.files.local_zarr import open_store
from scatlas.workflow.run_lock import LOCK, lock_results, release
from tests.workflow.conftest import CONFIG, EACH, made_once
from tests.workflow.runs import ROOT, Project, assert_same_outputs, errors

pytestmark = pytest.mark.workflow

# Every store of the workflow.
STORES = {
    *("atlas.zarr", "by_gene.zarr", "counts.zarr", "gram.zarr", "harmony.zarr", "merged.zarr"),
    *("pca.zarr", "pseudobulk.zarr", "selected.zarr"),
    *("subset.zarr", "neighbors.zarr", "umap.zarr", "leiden.zarr"),
}
OPTIONAL = {
    "doublets": {},
    "integrate": {"key": ["plate"]},
    "pseudobulk": {"by": ["cell_line"]},
}


@pytest.fixture
def atlas(two: Project, tmp_path: Path) -> Project:
    """Atlas of two plates that one test may change."""
    return two.copied(tmp_path / "project")


@pytest.fixture(scope="session")
def full(shared: Path, plates: dict[str, Path]) -> Project:
    """Results of two plates with every optional rule: read only."""
    some = {name: plates[name] for name in ("p1", "p2")}
    return made_once(shared / "full", EACH | OPTIONAL, some)


def test_a_step_that_failed_is_run_again_whatever_stands_behind_it(full: Project, tmp_path: Path):
    """It lacks its manifest: first and last steps, checkpoints, steps of a plate and of all."""
    project = full.copied(tmp_path / "project")
    assert "Nothing to be done" in project.run("-n").stdout
    for name in ("load/p1", "consensus", "pca", "cell_groups", "pseudobulk/p1", "report"):
        path = project.results / f"manifests/{name}.json"
        aside = path.rename(tmp_path / "aside")
        assert name.partition("/")[0] in project.planned(), name
        aside.rename(path)


def test_a_step_that_fails_is_never_covered_by_the_older_atlas(
    atlas: Project, plates: dict[str, Path]
):
    before, sheet = atlas.outputs(), {name: plates[name] for name in ("p1", "p2")}
    bad = ad.read_h5ad(plates["p2"])
    bad.X = bad.X.astype("float32")
    bad.X.data[3] += 0.5
    bad.write_h5ad(atlas.folder / "p2.h5ad")
    atlas.write_plates(sheet | {"p2": "p2.h5ad"})
    for _ in range(2):
        failed = atlas.run("atlas")
        assert failed.returncode == 1
        (sentence,) = errors(failed.stdout)
        assert "a fractional value" in sentence
    # A failure does not remove the older atlas.
    assert (atlas.results / "atlas.zarr/zarr.json").exists()
    atlas.write_plates(sheet)
    qc = atlas.config["qc"]
    atlas.change(qc={"filter": "no_such_column == 'full'"})
    for _ in range(2):
        failed = atlas.run("atlas")
        assert failed.returncode == 1
        assert all("no_such_column" in sentence for sentence in errors(failed.stdout))
    atlas.change(qc=qc)
    atlas.build("atlas")
    assert_same_outputs(atlas.outputs(), before)


def test_no_file_of_any_store_is_lost_unseen(full: Project, tmp_path: Path):
    """Each file is in the record of its step, and no store opens without one of its chunks."""
    listed = set()
    for path in (full.results / "manifests").rglob("runs/*.json"):
        for output, files in json.loads(path.read_bytes())["outputs"].items():
            listed |= {Path(os.path.normpath(path.parent / output / name)) for name in files}
    results = [path for path in full.results.rglob("*") if path.is_file()]
    outputs = {path for path in results if path.name != ".snakemake_timestamp"}
    not_checked = {full.results / name for name in ("logs", "benchmarks", "manifests")}
    assert {path for path in outputs - listed if not not_checked & {*path.parents}} == set()

    results = full.copied(tmp_path / "project").results
    stores = {path.parent for path in results.rglob("*.zarr/zarr.json")}
    assert {store.name for store in stores} == STORES
    for store in stores:
        open_store(store)
        chunks = {path for path in store.rglob("*") if path.is_file() and path.name != "zarr.json"}
        # Flags, keys and the record, whose chunks of zeros alone are not written.
        chunks -= {*store.glob("**/params/*/c"), *store.glob("uns/scatlas/**/c")}
        chunks -= {*store.glob("uns/neighbors/*_key/c")}
        for chunk in chunks:
            aside = chunk.rename(tmp_path / "aside")
            with pytest.raises(InputError, match=f"lacks 1 of .*{chunk.relative_to(store)}"):
                open_store(store)
            aside.rename(chunk)


def test_a_lost_shard_is_never_read_as_zeros(atlas: Project):
    before = atlas.outputs()
    # A product is made again.
    (atlas.results / "atlas.zarr/obsm/X_pca/c/0/0").unlink()
    assert atlas.build("atlas") == {"atlas"}
    assert_same_outputs(atlas.outputs(), before)
    # Each store, and the step that reads it.
    readers = {"merged.zarr": "pca", "plates/p1/selected.zarr": "concat_on_disk"}
    readers["plates/p1/counts.zarr"] = "hvg/p1"
    for store in readers:
        (atlas.results / store / "X/data/c/0").unlink()
    # No step needs the stores: nothing runs, and their remains do not pass for complete stores.
    assert atlas.build("atlas") == set()
    assert [store for store in readers if (atlas.results / store / "zarr.json").exists()] == []
    # Steps that read the stores make Snakemake create them again.
    manifests = [f"results/manifests/{step}.json" for step in readers.values()]
    atlas.build("atlas", "--forcerun", *manifests)
    assert_same_outputs(atlas.outputs(), before)


def test_a_file_with_other_bytes_ends_with_its_mend(built: Project, tmp_path: Path):
    project = built.copied(tmp_path / "project")
    before = project.outputs()
    for name in ("atlas.zarr/X/data/c/0", "consensus_genes.tsv"):
        path = project.results / name
        damaged = bytearray(path.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        path.unlink()  # a hard link in another store keeps the bytes
        path.write_bytes(damaged)
        failed = project.run("atlas")
        assert failed.returncode == 1
        assert "is not what its step has written" in failed.stdout
        assert "Traceback" not in failed.stdout
        (said,) = re.findall(r"\(rm -r (.*?)\)", failed.stdout)
        mended = project.folder / said
        assert mended == project.results / name.partition("/")[0]
        shutil.rmtree(mended) if mended.is_dir() else mended.unlink()
        project.build("atlas")
        assert_same_outputs(project.outputs(), before)


# Snakemake that never finds the last step ready.
EARLY = """
import sys
import snakemake.cli
from snakemake.dag import DAG
ready = DAG._ready
DAG._ready = lambda dag, job: ready(dag, job) and job.rule.name != "atlas"
sys.exit(snakemake.cli.main(sys.argv[1:]))
"""


def test_a_run_that_snakemake_ends_early_is_no_success(atlas: Project):
    shutil.rmtree(atlas.results / "atlas.zarr")
    shutil.rmtree(atlas.results / "merged.zarr")
    python, _, _, *options = atlas.command("atlas")
    command = [python, "-c", EARLY, *options, "--keep-going"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.search(r"Snakemake ended with \d of \d+ steps left", done.stderr)
    assert "atlas" in atlas.build("atlas")


def test_results_that_would_be_made_as_they_were_stay_though_snakemake_forgot_them(
    full: Project, tmp_path: Path
):
    """A cluster's job may succeed after its Snakemake was killed."""
    project = full.copied(tmp_path / "project")
    shutil.rmtree(project.folder / ".snakemake")
    assert project.build() == set()


def test_a_plate_replaced_by_an_older_file_is_loaded_though_snakemake_forgot(
    tmp_path: Path, plates: dict[str, Path]
):
    project = Project(tmp_path / "project", dict(EACH))
    plate = Path(shutil.copy2(plates["p2"], project.folder / "p2.h5ad"))
    project.write_plates({"p1": plates["p1"], "p2": plate})
    stores = [f"results/plates/{name}/counts.zarr/zarr.json" for name in ("p1", "p2")]
    project.build(*stores)
    shutil.rmtree(project.folder / ".snakemake")
    before = plate.stat()
    other = ad.read_h5ad(plate)[::-1].copy()
    plate.unlink()
    other.write_h5ad(plate)
    os.utime(plate, ns=(before.st_atime_ns, before.st_mtime_ns - 10**12))
    assert project.build(*stores) == {"load/p2"}


def test_results_whose_making_snakemake_forgot_are_made_again(atlas: Project):
    """One output of a step, or all: Snakemake compares nothing, not even the config."""
    metadata = atlas.folder / ".snakemake/metadata"
    lost, damaged = (f"results/plates/{plate}/qc_summary.json" for plate in ("p1", "p2"))
    (metadata / b64encode(lost.encode()).decode()).unlink()
    assert (metadata / b64encode(damaged.encode()).decode()).write_bytes(b"") == 0
    atlas.change(qc=CONFIG["qc"] | {"min_genes": 60})
    assert {"qc_filter/p1", "qc_filter/p2"} <= atlas.build("atlas")
    shutil.rmtree(atlas.folder / ".snakemake")
    atlas.change(pca={"n_comps": 5})
    assert "pca" in atlas.build("atlas")
    assert ad.read_zarr(atlas.results / "atlas.zarr").obsm["X_pca"].shape[1] == 5


def test_a_second_run_with_the_same_results_is_refused(atlas: Project):
    """One with other results in the same folder is not."""
    atlas.change(umap={"min_dist": 0.3})
    first = lock_results(atlas.results)
    assert atlas.run("-n").returncode == 0, "which changes nothing"
    for second in (atlas.run(), atlas.run("--unlock")):
        assert second.returncode == 1
        assert f"another Snakemake is running in {atlas.results}: wait until it" in second.stdout
        assert "Traceback" not in second.stdout
    other = Project(atlas.folder, atlas.config | {"outdir": "other"})
    assert other.run("other/plates/p1/counts.zarr/zarr.json").returncode == 0
    release(first)
    atlas.write_config()
    assert "subset" in atlas.build("results/embedding/subset.zarr/zarr.json")


def test_a_run_that_was_killed_elsewhere_is_forgotten_with_unlock(atlas: Project):
    (atlas.results / LOCK).write_text("another\t7\t")
    second = atlas.run("atlas")
    assert "the run of process 7 on another was killed, or is still running: give" in second.stdout
    assert atlas.run("--unlock").returncode == 0
    (atlas.results / LOCK).write_text(f"{socket.gethostname()}\t7\t")
    assert "results: process 7 was killed, this run goes on from there" in atlas.run("atlas").stdout


def test_a_run_that_begins_as_another_ends_makes_its_folder_of_locks_again(atlas: Project):
    """Snakemake creates the folder at its start and removes it at its end."""
    snakefile = atlas.folder / "Snakefile"
    snakefile.write_text(
        "import shutil\n"
        f"include: {str(ROOT / 'Snakefile')!r}\n"
        "def after_its_removal(wildcards):\n"
        "    shutil.rmtree('.snakemake/locks')\n"
        "    return 'results/embedding/subset.zarr/zarr.json'\n"
        "rule afterwards:\n"
        "    input: after_its_removal\n"
    )
    command = atlas.command("afterwards")
    command[command.index("--snakefile") + 1] = str(snakefile)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_results_in_a_file_are_refused(project: Project):
    project.change(outdir="plates.tsv/results")
    failed = project.run("-n")
    assert failed.returncode == 1
    assert "outdir: plates.tsv is a file, not a folder: name another" in failed.stdout
    assert "Traceback" not in failed.stdout


def test_a_deleted_picture_and_a_deleted_table_are_made_again(full: Project, tmp_path: Path):
    project = full.copied(tmp_path / "project")
    before = project.outputs()
    (project.results / "markers.h5ad").unlink()
    assert project.build() == {"markers", "report"}
    assert_same_outputs(project.outputs(), before)
    (project.results / "figures/cells_kept.png").unlink()
    next((project.results / "figures/umap").glob("*.png")).unlink()
    assert project.build() == {"report"}
    assert_same_outputs(project.outputs(), before)
