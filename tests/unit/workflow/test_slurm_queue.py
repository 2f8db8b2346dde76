"""Jobs of a run in Slurm's queue, from a stand-in for squeue."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from scatlas.errors import InputError
from scatlas.workflow.command_line import status
from scatlas.workflow.command_line.main import main
from scatlas.workflow.run_lock import RUN_FILE, QueuedJob, jobs_of_run, refuse_live_jobs

LINES = """\
CLUSTER: one
17|PENDING|PartitionTimeLimit|rule_load_wildcards_p1
18|RUNNING|None|rule_load_wildcards_p2
19|PREEMPTED|None|rule_pca
20|COMPLETED|None|rule_consensus
21|PENDING|Priority|rule_umap
"""


@pytest.fixture
def results(tmp_path: Path, monkeypatch) -> Path:
    """Results of a run, whose queue is in the file ``queue``."""
    squeue = tmp_path / "bin/squeue"
    squeue.parent.mkdir()
    squeue.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\ncat {tmp_path}/queue\n')
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{squeue.parent}:/usr/bin:/bin")
    (tmp_path / "queue").write_text(LINES)
    (tmp_path / RUN_FILE).parent.mkdir(parents=True)
    (tmp_path / RUN_FILE).write_text("a-run")
    return tmp_path


def test_one_question_tells_all_jobs_of_a_run(results: Path):
    found = jobs_of_run("a-run")
    assert "--name=a-run" in (results / "asked").read_text()
    assert found[0] == QueuedJob("17", "PENDING", "PartitionTimeLimit", "load of p1")
    assert [job.number for job in found if job.is_live] == ["17", "18", "21"]
    assert [job.number for job in found if job.is_held_up] == ["17"]


def test_a_run_does_not_start_beside_the_jobs_of_another(results: Path):
    with pytest.raises(InputError) as caught:
        refuse_live_jobs(results)
    assert str(caught.value) == (
        f"{results}: jobs of the run a-run are in Slurm's queue (3), and would write beside those "
        "of another: give scancel --name=a-run to end them, or wait until squeue --name=a-run "
        "lists none, and give the same command again"
    )
    (results / "queue").write_text("19|PREEMPTED|None|rule_pca\n")
    refuse_live_jobs(results)
    (results / "queue").write_text(LINES)
    (results / RUN_FILE).unlink()
    refuse_live_jobs(results)


def test_a_queue_that_does_not_answer_starts_no_second_run(results: Path, monkeypatch):
    (results / "queue").unlink()
    with pytest.raises(InputError, match=r"the run a-run \(cat: .*: give the command on a login"):
        refuse_live_jobs(results)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InputError, match="No such file or directory: 'squeue'"):
        refuse_live_jobs(results)


def test_status_names_jobs_that_do_not_begin_and_those_that_ended(
    results: Path, monkeypatch, capsys
):
    project = SimpleNamespace(folder=str(results))
    monkeypatch.setattr(status, "read_project", lambda _: (project, []))
    monkeypatch.setattr(status, "plan", lambda *_: "output_file\trule\tplan\n")
    main(["status"])
    said = capsys.readouterr().out
    assert "Slurm's job 17: load of p1: PENDING (PartitionTimeLimit)" in said
    assert "Slurm's job 19: pca: PREEMPTED" in said
    assert said.count("Slurm's job") == 2
    main(["status", "--json"])
    assert '{"number": "18", "state": "RUNNING", "reason": "None", "step": "load of p2"}' in (
        capsys.readouterr().out
    )
