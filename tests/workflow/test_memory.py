"""The resident memory of a plate's jobs depends on the block budget, not on the plate."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scatlas.workflow import script
from tests.workflow.runs import ROOT, Project

pytestmark = pytest.mark.workflow

SMALL, LARGE = 3_000, 11_000
STEPS = ("load", "qc_filter", "normalize", "hvg", "select_genes", "group_sums")


def peaks(folder: Path, cells: int) -> tuple[dict[str, float], int]:
    """Peak MB of each step on one plate, and the plate's number of values."""
    size = ["--plates", "1", "--cells", str(cells), "--genes", "20000"]
    make = [sys.executable, str(ROOT / "bench/make_plates.py"), str(folder), *size]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    config = {
        "plates": "plates.tsv",
        "qc": {"filter": "pass_filter == 'full'"},
        "hvg": {"n_top_genes": 500},
        "consensus": {"min_plates": 1},
        "pca": {"n_comps": 20},
        "markers": {"by": ["cell_line"]},
        "compute": {"block_budget": "64MB"},
    }
    project = Project(folder, config, cold=True)
    project.write_plates({"p": folder / "plate1.h5ad"})
    # One at a time: a process goes on with the next step, and keeps what it has imported.
    project.build("atlas", "results/plates/p/group_sums.h5", cores=1)
    manifests = project.results / "manifests"
    names = [*(f"{rule}/p" for rule in STEPS), "concat_on_disk", "pca", "atlas"]
    records = {
        name: json.loads(script.run_record(manifests / f"{name}.json").read_text())
        for name in names
    }
    values = json.loads((manifests / "load/p.json").read_text())["n_values"]
    return {name: r["peak_memory_bytes"] / 1e6 for name, r in records.items()}, values


def test_memory_does_not_grow_with_the_plate(tmp_path: Path):
    small, few = peaks(tmp_path / "small", SMALL)
    large, many = peaks(tmp_path / "large", LARGE)
    growth = {name: large[name] - small[name] for name in small}
    # The additional counts as float32 with int64 indices, and the row of a cell in obs (twice the
    # 1.5 kB of the documentation, for a copy).
    added = (many - few) * 12 / 1e6
    allowed = (LARGE - SMALL) * 3e-3
    assert added > 4 * allowed, "a premise of this test"
    assert {name: mb for name, mb in growth.items() if mb > allowed} == {}
