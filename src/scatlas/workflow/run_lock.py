"""One run at a time makes a folder of results: its lock, and jobs that Slurm still has.

Snakemake's own lock stays after a killed run; the system frees this one, however a process ends.
The file names machine and process, so that the next run knows of one that was killed.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import subprocess
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, NamedTuple

from scatlas.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger("snakemake.logging")  # it takes texts, without arguments
LOCK = "logs/run.lock"


def lock_results(folder: Path, *, on_cluster: bool = False, unlock: bool = False) -> IO[str] | None:
    """Lock a folder until :func:`release` of the result; None if the file system has no locks. Jobs
    of a killed run may go on ``on_cluster``, or on another machine: ``unlock`` forgets it.
    """
    path = folder / LOCK
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.open("a+"))
        except OSError as error:
            problem = f"{error.filename} cannot be written ({error.strerror})"
            raise InputError(f"outdir: {problem}: name another folder") from error
        if not _is_locked(file, fcntl.LOCK_EX, folder):
            return None
        file.seek(0)
        machine, number, where = (file.read() or "\t\t").split("\t")
        # Some file systems keep the locks of each machine apart.
        if (where or machine not in ("", socket.gethostname())) and not unlock:
            raise InputError(
                f"{folder.absolute()}: the run of process {number} on {machine} was killed, or is "
                "still running: give the command once with --unlock, then without, when neither "
                "it nor any of its jobs runs"
            )
        if machine and not unlock:
            notice = f"{folder}: process {number} was killed, this run goes on from there"
            logger.info(notice)
        file.truncate(0)
        file.write(f"{socket.gethostname()}\t{os.getpid()}\t{'cluster' if on_cluster else ''}")
        file.flush()
        stack.pop_all()
        return file


def share_results(folder: Path) -> IO[str] | None:
    """Let no run write in a folder until the result is closed; None if it has no lock."""
    try:
        file = (folder / LOCK).open()
    except OSError:
        return None
    return file if _is_locked(file, fcntl.LOCK_SH, folder) else None


def _is_locked(file: IO[str], how: int, folder: Path) -> bool:
    """Lock a file, unless its file system has no locks; one without a lock is closed."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        msg = f"another Snakemake is running in {folder.absolute()}: wait until it has ended"
        raise InputError(msg) from None
    except OSError as error:
        notice = f"{file.name} cannot be locked ({error}): start one run at a time"
        logger.info(notice)
        file.close()
        return False
    return True


def release(file: IO[str] | None) -> None:
    """End a lock of :func:`lock_results`, with nothing left in its file."""
    if file:
        file.truncate(0)
        file.close()


# In a folder of results, while jobs of a run may be in the queue: the name of all its jobs.
RUN_FILE = "manifests/runs/slurm.run"
# A job in another state has ended, or begins only if somebody lets it.
_LIVE = {"PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "STOPPED", "SIGNALING"}
_LIVE |= {"RESIZING", "STAGE_OUT", "REQUEUED"}
# Why a job waits for others alone.
_USUAL_REASONS = {"", "None", "Priority", "Resources"}


class QueuedJob(NamedTuple):
    """A job that Slurm lists, or remembers; the step is its rule and plate."""

    number: str
    state: str
    reason: str = ""
    step: str = ""

    @property
    def is_live(self) -> bool:
        return self.state in _LIVE

    @property
    def is_held_up(self) -> bool:
        """Whether something else than other jobs keeps it waiting."""
        return self.state == "PENDING" and self.reason not in _USUAL_REASONS


def jobs_of_run(run: str, *options: str) -> list[QueuedJob]:
    """Ask Slurm's controller for the jobs of a run, also for those that ended a while ago."""
    ask = ["squeue", "--noheader", "--states=all", "--format=%i|%T|%r|%k", f"--name={run}"]
    try:
        done = subprocess.run(
            [*ask, *options], check=True, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        problem = " ".join(str(getattr(error, "stderr", None) or error).split())
        raise InputError(
            f"Slurm does not list the jobs of the run {run} ({problem}): give the command on a "
            f"login node of the cluster, or delete {RUN_FILE} among the results if none is left"
        ) from error
    # Snakemake's executor writes the step as a comment.
    lines = done.stdout.replace("|rule_", "|").replace("_wildcards_", " of ").splitlines()
    return [QueuedJob(*line.split("|", 3)) for line in lines if "|" in line]


def jobs_of_last_run(folder: Path) -> tuple[str, list[QueuedJob]]:
    """Name and jobs of the run whose jobs may still be in the queue; without one no name."""
    path = folder / RUN_FILE
    run = path.read_text("utf-8") if path.exists() else ""
    return run, jobs_of_run(run) if run else []


def refuse_live_jobs(folder: Path) -> None:
    """Refuse to start beside jobs of an earlier run, and where the queue cannot be read."""
    run, jobs = jobs_of_last_run(folder)
    if n := sum(job.is_live for job in jobs):
        raise InputError(
            f"{folder}: jobs of the run {run} are in Slurm's queue ({n:,}), and would write beside "
            f"those of another: give scancel --name={run} to end them, or wait until squeue "
            f"--name={run} lists none, and give the same command again"
        )
