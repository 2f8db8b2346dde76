"""A second look at the jobs of Snakemake's executor for Slurm, which waits for ever for a job whose
state it does not know, or that Slurm has forgotten.
"""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from snakemake.exceptions import WorkflowError
from snakemake.io import is_flagged

from scatlas.errors import InputError
from scatlas.io.files.atomic import atomic_path
from scatlas.io.files.listing import stamp
from scatlas.workflow.run_lock import RUN_FILE, QueuedJob, jobs_of_run, refuse_live_jobs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from snakemake.executors.local import Executor
else:
    Executor = object  # that of the plugin is a base beside it

# Seconds until a job that does not begin, or a queue that does not answer, is named.
PATIENCE = 600


def watch(plugin: Any, folder: Path) -> None:
    """Let the executor of a plugin for Slurm be watched, for a folder of results."""
    if plugin.name != "slurm":
        return
    if not issubclass(plugin.executor, WatchedJobs):
        plugin.executor = type("Executor", (WatchedJobs, plugin.executor), {"folders": []})
    plugin.executor.folders.append(folder.absolute())


class WatchedJobs(Executor):  # type: ignore[misc] # Snakemake has no types
    """The executor for Slurm; a job that two looks at the queue do not list as waiting or running
    has ended: its outputs decide whether it is done, or repeated.
    """

    folders: list[Path]

    def __init__(self, workflow: Any, logger: Any) -> None:
        self._reported: set[str] = set()
        self._stamps: dict[Any, dict[str, str]] = {}
        self._missed: dict[str, float] = {}
        self._since: dict[str, float] = {}
        self._named: set[str] = set()
        super().__init__(workflow, logger)

    def run_jobs(self, jobs: Sequence[Any]) -> None:
        """Submit jobs; before the first ones, keep the run's name for the next run."""
        if not self._stamps:
            for folder in self.folders:
                (folder / RUN_FILE).parent.mkdir(parents=True, exist_ok=True)
                with atomic_path(folder / RUN_FILE) as partial:
                    partial.write_text(self.run_uuid, encoding="utf-8")
        self._stamps |= {job: _stamps(job) for job in jobs}
        super().run_jobs(jobs)

    def report_job_success(self, job_info: Any) -> None:
        self._reported.add(job_info.external_jobid)
        super().report_job_success(job_info)

    def report_job_error(self, job_info: Any, msg: str | None = None, **more: Any) -> None:
        """Note that a job has failed, and say why it did not begin its step."""
        self._reported.add(job_info.external_jobid)
        msg = f"{msg or ''} {_refusal((job_info.aux or {}).get('slurm_logfile'))}"
        super().report_job_error(job_info, msg=msg, **more)

    async def check_active_jobs(self, active_jobs: list[Any]) -> AsyncIterator[Any]:
        """Report the jobs that have ended, and yield the others."""
        async for _ in super().check_active_jobs(active_jobs):
            pass
        # Where its question fails, the executor forgets all jobs.
        left = [job for job in active_jobs if job.external_jobid not in self._reported]
        listed = await asyncio.to_thread(self._listed) if left else None
        for job in left:
            if listed is None or not self._has_ended(job, listed.get(job.external_jobid)):
                yield job

    def _listed(self) -> dict[str, QueuedJob] | None:
        """Jobs of the run by their numbers; None if Slurm does not answer."""
        options = ["--clusters=all"] if self._submitted_job_clusters else []
        try:
            found = jobs_of_run(self.run_uuid, *options)
        except InputError as error:
            self._name_lasting({str(error)})
            return None
        self._name_lasting(
            {f"job {job.number} ({job.step}): {job.reason}" for job in found if job.is_held_up}
        )
        return {job.number: job for job in found}

    def _name_lasting(self, troubles: set[str]) -> None:
        """Name what has kept the run waiting for ten minutes, once."""
        now = time.monotonic()
        self._since = {text: self._since.get(text, now) for text in troubles}
        long = {text for text, first in self._since.items() if now - first >= PATIENCE}
        if new := sorted(long - self._named):
            self._named.update(new)
            self.logger.warning(
                f"The run waits for Slurm, for ten minutes by now: {'; '.join(new)}. If it does "
                "not pass, mend the profile or the job (scontrol), and end the job with scancel, "
                "which is then submitted again"
            )

    def _has_ended(self, job_info: Any, found: QueuedJob | None) -> bool:
        """Whether a job has ended, which is then reported."""
        number, now = job_info.external_jobid, time.monotonic()
        if found and found.is_live:
            self._missed.pop(number, None)
            return False
        if number not in self._missed:
            self._missed[number] = now
            return False
        old, stamps = self._stamps[job_info.job], _stamps(job_info.job)
        is_new = stamps and all(Path(p).exists() and stamps[p] != old.get(p) for p in stamps)
        if is_new or (found and found.state == "COMPLETED"):
            self.report_job_success(job_info)
            return True
        # Another machine may see an output later.
        if now - self._missed[number] < self.workflow.execution_settings.latency_wait:
            return False
        if found:  # somebody could let it begin, beside the job that repeats it
            self._cancel([job_info])
        state = f"is {found.state}" if found else "is no longer known to Slurm"
        log = (job_info.aux or {}).get("slurm_logfile")
        self.report_job_error(
            job_info,
            msg=f"job {number} of Slurm {state}, and its outputs are not complete.",
            aux_logs=[str(log)] if log else [],
        )
        return True

    def cancel_jobs(self, active_jobs: list[Any]) -> None:
        """Cancel the jobs, also those that were just submitted, and submit no other."""
        self._job_submission_executor.shutdown(cancel_futures=True)
        if (listed := self._listed()) is not None:
            live = [number for number, job in listed.items() if job.is_live]
            active_jobs = [SimpleNamespace(external_jobid=number) for number in live]
        self._cancel(active_jobs)

    def _cancel(self, jobs: list[Any]) -> None:
        """Cancel jobs, some of which may have ended by now."""
        try:
            super().cancel_jobs(jobs)
        except WorkflowError as error:
            self.logger.info(str(error))

    def shutdown(self) -> None:
        """End, and say which jobs are left."""
        super().shutdown()
        if not self._stamps:
            return
        try:
            refuse_live_jobs(self.folders[0])
        except InputError as error:
            self.logger.warning(str(error))
        else:
            for folder in self.folders:
                (folder / RUN_FILE).unlink(missing_ok=True)


def _refusal(log: Path | None) -> str:
    """Sentence in Slurm's log of a job whose Snakemake ended while it read the workflow."""
    text = log.read_text("utf-8", "replace") if log and log.exists() else ""
    found = re.search(r"^WorkflowError in file .*:\n(.+)", text, re.MULTILINE)
    return f"{found[1]}. " if found else ""


def _stamps(job: Any) -> dict[str, str]:
    jobs = job.jobs if job.is_group() else [job]
    paths = [path for one in jobs for path in one.output if not is_flagged(path, "temp")]
    return {path: stamp(path) for path in paths}
