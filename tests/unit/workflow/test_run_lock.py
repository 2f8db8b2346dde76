"""One run at a time makes a folder of results, and a killed run does not lock it for ever."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from scatlas.errors import InputError
from scatlas.workflow.run_lock import lock_results, release

LOCK_AND_DIE = """
import os, sys
from pathlib import Path
from scatlas.workflow.run_lock import lock_results

kept = lock_results(Path(sys.argv[1]), on_cluster=sys.argv[2] == "cluster")
os.kill(os.getpid(), 9)
"""


def killed(folder: Path, where: str = "here") -> None:
    subprocess.run([sys.executable, "-c", LOCK_AND_DIE, str(folder), where], check=False)
    assert (folder / "logs/run.lock").read_text()


def refusal(folder: Path, **options: bool) -> str:
    with pytest.raises(InputError) as caught:
        lock_results(folder, **options)
    return str(caught.value)


@pytest.mark.parametrize("unlock", [False, True])
def test_a_folder_has_one_run_at_a_time(tmp_path: Path, unlock: bool):
    first, other = lock_results(tmp_path / "a"), lock_results(tmp_path / "b")
    assert refusal(tmp_path / "a", unlock=unlock) == (
        f"another Snakemake is running in {tmp_path}/a: wait until it has ended"
    )
    release(first)
    release(other)
    release(lock_results(tmp_path / "a"))
    assert (tmp_path / "a/logs/run.lock").read_text() == ""


def test_a_killed_run_of_this_machine_needs_no_command(tmp_path: Path, caplog):
    killed(tmp_path)
    with caplog.at_level(logging.INFO):
        release(lock_results(tmp_path))
    assert "was killed, this run goes on from there" in caplog.text
    release(lock_results(tmp_path))
    assert caplog.text.count("was killed") == 1


def test_a_killed_run_whose_jobs_may_go_on_needs_the_command(tmp_path: Path, monkeypatch):
    killed(tmp_path / "cluster", "cluster")
    killed(tmp_path / "elsewhere")
    here = socket.gethostname()
    assert f" on {here} was killed, or is still running: give" in refusal(tmp_path / "cluster")
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    for folder in (tmp_path / "cluster", tmp_path / "elsewhere"):
        assert f" on {here} was killed, or is still running: give" in refusal(folder)
        release(lock_results(folder, unlock=True))
        release(lock_results(folder))


def test_results_that_cannot_be_written_are_refused_by_a_sentence(tmp_path: Path):
    (tmp_path / "file").touch()
    assert refusal(tmp_path / "file") == (
        f"outdir: {tmp_path}/file/logs cannot be written (Not a directory): name another folder"
    )
