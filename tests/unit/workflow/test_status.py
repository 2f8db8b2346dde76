"""States of steps, from a summary of Snakemake and the files of the steps."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from types import SimpleNamespace

from scatlas.workflow.command_line import status
from scatlas.workflow.command_line.main import main
from scatlas.workflow.command_line.status import _rules, steps_of
from tests.unit.test_repository import RULES

SUMMARY = """\
output_file\tdate\trule\tlog-file(s)\tstatus\tplan
out/manifests/pca.json\t-\tpca\t-\tmissing\tupdate pending
out/plates/a/counts.zarr/zarr.json\t-\tload\t-\tok\tno update
out/manifests/load/a.json\t-\tload\t-\tok\tno update
out/manifests/load/b.json\t-\tload\t-\tmissing\tupdate pending
out/manifests/load/c.json\t-\tload\t-\tmissing\tupdate pending
out/manifests/load/d.json\t-\tload\t-\tmissing\tupdate pending
"""


def test_states_of_steps(tmp_path: Path):
    out = tmp_path / "out"
    runs = out / "manifests/load/runs"
    runs.mkdir(parents=True)
    for plate in "abcd":
        (runs / f"{plate}.lock").touch()
    (runs / "a.json").write_text(json.dumps({}))
    (out / "manifests/load/b.refused").write_text("b.h5ad: X is missing")
    with (runs / "c.lock").open("w") as running:
        fcntl.flock(running, fcntl.LOCK_EX)
        steps = [*steps_of(SUMMARY.replace("out/", f"{out}/"), out)]
    assert [(step.rule, step.plate, step.state) for step in steps] == [
        ("pca", "", "to run"),
        ("load", "a", "done"),
        ("load", "b", "failed"),
        ("load", "c", "running"),
        ("load", "d", "failed"),
    ]
    assert steps[2].reason == "b.h5ad: X is missing"
    assert steps[4].reason == f"it was stopped or has failed: see {out}/logs/load/d.log"


def test_steps_that_ran_before_are_not_failures(tmp_path: Path):
    out = tmp_path / "out"
    runs = out / "manifests/load/runs"
    runs.mkdir(parents=True)
    (runs / "b.lock").touch()
    (runs / "b.json").touch()  # its source has changed since
    line = SUMMARY.splitlines()[4].replace("out/", f"{out}/")
    (step,) = steps_of(f"{SUMMARY.splitlines()[0]}\n{line}", out)
    assert step.state == "to run"


def test_status_for_programs_names_failures_and_files(tmp_path: Path, monkeypatch, capsys):
    out = tmp_path / "out"
    (out / "manifests/load").mkdir(parents=True)
    (out / "manifests/load/b.refused").write_text("b.h5ad: X is missing")
    summary = SUMMARY.replace("out/", f"{out}/")
    monkeypatch.setattr(status, "read_project", lambda _: (SimpleNamespace(folder=str(out)), []))
    monkeypatch.setattr(status, "plan", lambda *_: summary)
    assert main(["status", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["errors"] == [{"message": "b.h5ad: X is missing", "plate": "b"}]
    assert told["n_steps"] == {"done": 1, "running": 0, "failed": 1, "to run": 3}
    first, *_, last = told["steps"]
    files = [f"{out}/plates/a/counts.zarr", f"{out}/manifests/load/a.json"]
    assert [*first.values()] == ["load", "a", "done", None, files]
    assert [last[key] for key in ("rule", "plate", "state")] == ["pca", None, "to run"]


def test_all_rules_are_in_the_order():
    assert {*RULES} - {*_rules()} == set()
