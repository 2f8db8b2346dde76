"""The README's reader with 14 plates and a cluster, from an empty folder to the plan of the jobs.

The last line, which submits them, runs in tests/slurm on a cluster; here it is planned.
"""

from __future__ import annotations

import re

import pytest

from tests.first_hour import readme

pytestmark = pytest.mark.workflow

# What a reader would type: another name and limit of the partition.
EDITOR = """#!/bin/sh
sed -i 's/^  cpu: {max_runtime: 1d/  short: {max_runtime: 4h/' "$1"
"""
READER = "I have 14 plates and a cluster"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What ``-n`` prints, after the reader has edited the profile and written sheet and config."""
    made, (edit, planned, submitted) = readme.commands(READER)
    assert made[:2] == ["git clone <this repository> scatlas", "cd scatlas"]
    assert planned == f"{submitted} -n"
    folder = readme.clone(tmp_path_factory.mktemp("cluster"))
    editor = folder.parent / "editor"
    editor.write_text(EDITOR)
    editor.chmod(0o755)
    readme.run(edit, folder, EDITOR=str(editor))
    assert "\n  short: {max_runtime: 4h, " in (folder / edit.split()[-1]).read_text()
    readme.write_sheet_and_config(folder, 14)
    return readme.run(planned, folder)


def test_each_plate_has_its_jobs(plan: str):
    counts = dict(re.findall(r"^(\w+) +(\d+)$", plan, re.MULTILINE))
    assert {counts[rule] for rule in ("load", "qc_filter", "hvg", "select_genes")} == {"14"}
    assert counts["report"] == counts["atlas"] == "1"


def test_the_profile_is_that_of_slurm(plan: str):
    assert "Using profiles slurm" in plan


def test_the_plan_ends_with_what_the_jobs_request(plan: str):
    columns, *lines = plan[plan.index("rule            jobs  threads") :].splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.strip()}
    assert columns.split()[1:5] == ["jobs", "threads", "GPUs", "GB"]
    n_jobs, threads, gpus, memory = map(float, rows["load"][:4])
    assert (n_jobs, gpus) == (14, 0)
    assert 1 <= threads <= 8
    assert 0 < memory < 64  # limits of the partition
