"""A full disk: one sentence, no incomplete file, and the run continues when there is space."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workflow.runs import Project, assert_same_outputs, errors

pytestmark = pytest.mark.workflow

DISK = 16 * 2**20
ROOM = 2**17  # free bytes: enough for small files, not for the counts of a plate


@pytest.fixture
def disk(tmp_path: Path, one: Project, plates: dict[str, Path]) -> Iterator[Project]:
    """Project with its results on a separate small disk."""
    project = Project(tmp_path / "project", dict(one.config))
    project.write_plates({"p1": plates["p1"]})
    project.results.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(project.results)]
    try:
        mounted = subprocess.run(mount, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount here to make a small disk with")
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield project
    finally:
        subprocess.run(["umount", "--lazy", str(project.results)], check=True)


def test_a_run_goes_on_after_its_disk_was_full(disk: Project, one: Project):
    filler = disk.results / "somebody-elses.bin"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, DISK - ROOM)

    # The rules retry: the retry repeats the sentence without the work.
    failed = disk.run("atlas", "--retries", "1")

    assert failed.returncode != 0
    (sentence,) = errors(failed.stdout)
    assert f"no space left on the disk mounted at {disk.results} (" in sentence, failed.stdout
    assert "make room there, or set outdir to a folder on another disk" in sentence
    assert "Traceback" not in failed.stdout
    left = [path.relative_to(disk.results).as_posix() for path in disk.results.rglob("*")]
    assert [name for name in left if "partial" in name or name.endswith("counts.zarr/X")] == []
    assert "manifests/load/p1.json" not in left

    filler.unlink()
    disk.build("atlas")
    assert_same_outputs(disk.outputs(), one.outputs())
