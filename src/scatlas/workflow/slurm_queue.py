"""Jobs of a run in Slurm's queue, and the file that keeps the run's name for the next run."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, NamedTuple

from scatlas.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

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
        """Whether it waits or runs."""
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
        msg = (
            f"Slurm does not list the jobs of the run {run} ({problem}): give the command on a "
            f"login node of the cluster, or delete {RUN_FILE} among the results if none is left"
        )
        raise InputError(msg) from error
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
        msg = (
            f"{folder}: jobs of the run {run} are in Slurm's queue ({n:,}), and would write beside "
            f"those of another: give scancel --name={run} to end them, or wait until squeue "
            f"--name={run} lists none, and give the same command again"
        )
        raise InputError(msg)
