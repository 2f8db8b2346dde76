"""Jobs of a run in Slurm's queue, and the file that keeps the run's name for the next run."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, NamedTuple

from scatlas.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

# In a folder of results, while jobs of a run may be in the queue: the name of all its jobs.
RUN_FILE = "manifests/runs/slurm.run"
# The others have ended, or begin only if somebody lets them.
_LIVE = frozenset({
    *("PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING"),
    *("STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT", "REQUEUED"),
})  # fmt: skip
# Reasons that need nobody's help.
_USUAL_REASONS = frozenset({"", "None", "(null)", "Priority", "Resources"})


class QueuedJob(NamedTuple):
    """A job that Slurm lists, or remembers."""

    number: str
    state: str
    reason: str = ""
    step: str = ""  # rule and plate

    @property
    def is_live(self) -> bool:
        """Whether it waits or runs."""
        return self.state in _LIVE

    @property
    def is_held_up(self) -> bool:
        """Whether something else than other jobs keeps it waiting."""
        return self.state == "PENDING" and self.reason not in _USUAL_REASONS


def jobs_of_run(run: str, *options: str) -> list[QueuedJob]:
    """Ask Slurm's controller for the jobs of a run, also for those that ended a while ago.

    Raises
    ------
    InputError
        There is no squeue here, or it cannot ask.
    """
    ask = ["squeue", "--noheader", "--states=all", "--format=%i|%T|%r|%k", *options]
    try:
        done = subprocess.run(
            [*ask, f"--name={run}"], check=True, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        problem = getattr(error, "stderr", None) or error
        msg = (
            f"the queue of Slurm cannot be asked for the jobs of the run {run} "
            f"({' '.join(str(problem).split())}): give the command on a login node of the cluster, "
            f"or delete {RUN_FILE} among the results if none of these jobs is left"
        )
        raise InputError(msg) from error
    return parse_queue(done.stdout)


def parse_queue(text: str) -> list[QueuedJob]:
    """Jobs of squeue's lines; the lines that name a cluster have no columns."""
    # The comment of Snakemake's executor.
    text = text.replace("|rule_", "|").replace("_wildcards_", " of ")
    return [QueuedJob(*line.split("|", 3)) for line in text.splitlines() if "|" in line]


def last_run(folder: Path) -> str:
    """Name of the last run whose jobs may be in the queue; empty without one."""
    path = folder / RUN_FILE
    return path.read_text("utf-8").strip() if path.exists() else ""


def jobs_of_last_run(folder: Path) -> list[QueuedJob] | None:
    """Jobs of the last run as :func:`jobs_of_run`; None if none of them is left."""
    run = last_run(folder)
    return jobs_of_run(run) if run else None


def refuse_live_jobs(folder: Path) -> None:
    """Refuse to start beside jobs of an earlier run, and forget that run if there are none.

    Raises
    ------
    InputError
        Jobs are left, or the queue cannot be asked.
    """
    if run := last_run(folder):
        if n := sum(job.is_live for job in jobs_of_run(run)):
            raise InputError(f"{folder}: {left_jobs(run, n)}")
        (folder / RUN_FILE).unlink()


def left_jobs(run: str, n: int) -> str:
    """Sentence about jobs that are left in the queue."""
    return (
        f"jobs of the run {run} are in Slurm's queue ({n:,}), and would write beside those of "
        f"another: end them with scancel --name={run} (or wait until squeue --name={run} lists "
        "none), and give the same command again"
    )
