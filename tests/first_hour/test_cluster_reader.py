"""The README's reader with 14 plates and a cluster, from an empty folder to the plan of the jobs.

The last line, which submits them, runs in tests/slurm on a cluster; here it is planned.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.first_hour import readme

pytestmark = pytest.mark.workflow

# What a reader would type: another name and limit of the partition.
EDITOR = """#!/bin/sh
sed -i 's/^  cpu: {max_runtime: 1d/  short: {max_runtime: 4h/' "$1"
"""
READER = "I have 14 plates and a cluster"


def test_the_lines_plan_the_jobs_of_fourteen_plates(tmp_path: Path):
    """What ``-n`` prints, after the reader has edited the profile and written sheet and config."""
    made, (edit, planned, submitted) = readme.commands(READER)
    assert made[:2] == ["git clone <this repository> scatlas", "cd scatlas"]
    assert planned == f"{submitted} -n"
    folder = readme.clone(tmp_path)
    editor = folder.parent / "editor"
    editor.write_text(EDITOR)
    editor.chmod(0o755)
    readme.run(edit, folder, EDITOR=str(editor))
    assert "\n  short: {max_runtime: 4h, " in (folder / edit.split()[-1]).read_text()
    readme.write_sheet_and_config(folder, 14)

    plan = readme.run(planned, folder)

    assert "Using profiles slurm" in plan
    counts = dict(re.findall(r"^(\w+) +(\d+)$", plan, re.MULTILINE))
    assert {counts[rule] for rule in ("load", "qc_filter", "hvg", "select_genes")} == {"14"}
    assert counts["report"] == counts["atlas"] == "1"
    columns, *lines = plan[plan.index("rule            jobs  threads") :].splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.strip()}
    assert columns.split()[1:5] == ["jobs", "threads", "GPUs", "GB"]
    n_jobs, threads, gpus, memory = map(float, rows["load"][:4])
    assert (n_jobs, gpus) == (14, 0)
    assert 1 <= threads <= 8
    assert 0 < memory < 64  # limits of the partition
