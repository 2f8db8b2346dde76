"""One run at a time makes a folder of results, and a killed run does not lock it for ever."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from scatlas.errors import InputError
from scatlas.workflow.run_lock import LOCK, lock_results, release, share_results


def killed(folder: Path, where: str = "") -> None:
    """What a killed run of this machine leaves (tests/workflow/test_reruns.py kills one)."""
    (folder / "logs").mkdir(parents=True)
    (folder / LOCK).write_text(f"{socket.gethostname()}\t7\t{where}")


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
    assert (tmp_path / "a" / LOCK).read_text() == ""


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


def test_nobody_makes_results_that_another_run_reads(tmp_path: Path):
    assert share_results(tmp_path) is None, "of an older version"
    making = lock_results(tmp_path)
    with pytest.raises(InputError, match="another Snakemake is running"):
        share_results(tmp_path)
    release(making)
    with share_results(tmp_path), share_results(tmp_path):
        assert "another Snakemake is running" in refusal(tmp_path)
    release(lock_results(tmp_path))


def test_results_that_cannot_be_written_are_refused_by_a_sentence(tmp_path: Path):
    (tmp_path / "file").touch()
    assert refusal(tmp_path / "file") == (
        f"outdir: {tmp_path}/file/logs cannot be written (Not a directory): name another folder"
    )
