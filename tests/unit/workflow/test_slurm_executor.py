"""No run waits for a job that has ended, or whose end Slurm's executor does not know."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest

from scatlas.errors import InputError
from scatlas.workflow import slurm_executor
from scatlas.workflow.slurm_executor import PATIENCE, watch
from scatlas.workflow.slurm_queue import RUN_FILE, QueuedJob

LATENCY = 60


class Executor:
    """The plugin's executor as it was seen: it yields the jobs whose state it does not know, and
    none at all where its question fails."""

    run_uuid = "a-run"

    def __init__(self, workflow, logger):
        self.workflow, self.logger = workflow, logger
        self._submitted_job_clusters: set[str] = set()
        self._job_submission_executor = ThreadPoolExecutor(1)
        self.answers = True
        self.submitted, self.done, self.failed, self.cancelled = [], [], [], []

    def run_jobs(self, jobs):
        for job in jobs:
            self._job_submission_executor.submit(self.submitted.append, job)

    def report_job_success(self, info):
        self.done.append(info.external_jobid)

    def report_job_error(self, info, msg=None, **more):
        self.failed.append(msg)

    async def check_active_jobs(self, active_jobs):
        for job in active_jobs:
            if self.answers:
                yield job

    def cancel_jobs(self, active_jobs):
        self.cancelled += [info.external_jobid for info in active_jobs]

    def shutdown(self):
        self._job_submission_executor.shutdown()


class Job:
    """A job with one output, of Snakemake."""

    def __init__(self, output: Path):
        self.output = [str(output)]

    def is_group(self):
        return False


class Run:
    """A run with one job, number 1, and the queue that Slurm tells; None: it does not answer."""

    def __init__(self, folder: Path, monkeypatch, kind: type = Executor):
        self.output, self.now, self.queue = folder / "out", 0.0, []
        self.plugin = SimpleNamespace(name="slurm", executor=kind)
        watch(self.plugin, folder)
        settings = SimpleNamespace(latency_wait=LATENCY)
        workflow = SimpleNamespace(execution_settings=settings)
        self.executor = self.plugin.executor(workflow, logging.getLogger("test"))
        self.info = SimpleNamespace(job=Job(self.output), external_jobid="1", aux=None)
        monkeypatch.setattr(slurm_executor, "jobs_of_run", self.jobs_of_run)
        monkeypatch.setattr(slurm_executor.time, "monotonic", lambda: self.now)

    def jobs_of_run(self, run: str, *options: str) -> list[QueuedJob]:
        if self.queue is None:
            raise InputError("the queue cannot be asked: wait")
        return [QueuedJob("1", *words) for words in self.queue]

    def submit(self) -> None:
        self.executor.run_jobs([self.info.job])

    def look(self, after: float = 10) -> int:
        """Look at the queue some seconds later: number of jobs that go on."""
        self.now += after

        async def check() -> list:
            return [job async for job in self.executor.check_active_jobs([self.info])]

        return len(asyncio.run(check()))


@pytest.fixture
def run(tmp_path: Path, monkeypatch) -> Run:
    return Run(tmp_path, monkeypatch)


ENDED = [[], [("CANCELLED",)], [("PREEMPTED", "None")], [("REVOKED",)], [("a new state",)]]


@pytest.mark.parametrize("queue", ENDED)
def test_a_job_that_two_looks_do_not_list_is_done_if_its_outputs_are_new(run: Run, queue):
    run.output.write_text("of an earlier run")
    run.submit()
    run.output.unlink()
    run.queue = queue
    assert run.look() == 1
    run.output.write_text("new")
    assert run.look() == 0
    assert (run.executor.done, run.executor.failed) == (["1"], [])


@pytest.mark.parametrize("queue", ENDED)
def test_a_job_that_left_old_or_no_outputs_is_repeated(run: Run, queue):
    run.output.write_text("of an earlier run")
    run.submit()
    run.queue = queue
    assert [run.look(), run.look(), run.look(LATENCY)] == [1, 1, 0], "outputs may come late"
    assert run.executor.done == []
    (said,) = run.executor.failed
    assert ("is no longer known" in said) == (queue == [])
    assert run.executor.cancelled == ["1"] * len(queue), "it may not begin later"


def test_jobs_that_wait_or_run_go_on(run: Run):
    run.submit()
    for state in ("PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING"):
        run.queue = []
        assert run.look() == 1, "one look that misses it is no end"
        run.queue = [(state, "None")]
        assert run.look(PATIENCE) == 1


@pytest.mark.parametrize("queue", [[("RUNNING",)], None])
def test_jobs_are_not_forgotten_when_the_executors_question_fails(run: Run, queue):
    run.submit()
    run.executor.answers, run.queue = False, queue
    assert [run.look(), run.look()] == [1, 1]


def test_what_keeps_a_run_waiting_is_named_once_after_ten_minutes(run: Run, caplog):
    run.submit()
    run.queue = [("PENDING", "JobHeldUser", "load of p1")]
    run.look()
    assert caplog.text == ""
    run.look(PATIENCE)
    run.look(PATIENCE)
    assert caplog.text.count("because of JobHeldUser: load of p1 (job 1)") == 1
    run.queue = None
    run.look()
    run.look(PATIENCE)
    assert caplog.text.count("for ten minutes the queue cannot be asked") == 1
    run.queue = [("PENDING", "Priority")]
    caplog.clear()
    run.look()
    run.look(PATIENCE)
    assert caplog.text == ""


def test_ctrl_c_cancels_what_was_just_submitted_and_submits_no_more(run: Run, tmp_path: Path):
    answered = Event()

    class Pool(ThreadPoolExecutor):
        """Slurm answers when the pool has dropped the jobs that wait to be submitted."""

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            answered.set()
            super().shutdown()

    executor = run.executor
    executor._job_submission_executor = Pool(1)
    executor._job_submission_executor.submit(answered.wait)
    executor.run_jobs([run.info.job, Job(tmp_path / "other")])
    run.queue = [("PENDING",)]
    executor.cancel_jobs([])
    assert (executor.submitted, executor.cancelled) == ([], ["1"])
    run.queue = None
    executor.cancel_jobs([run.info])
    assert executor.cancelled == ["1", "1"], "those that Snakemake knows"


def test_the_name_of_a_run_stays_until_none_of_its_jobs_is_left(run: Run, tmp_path: Path, caplog):
    run.executor.shutdown()
    assert not (tmp_path / RUN_FILE).exists(), "nothing was submitted"
    run.executor._job_submission_executor = ThreadPoolExecutor(1)
    run.submit()
    assert (tmp_path / RUN_FILE).read_text() == "a-run"
    for queue in (None, [("RUNNING",)]):
        run.queue = queue
        run.executor.shutdown()
        assert (tmp_path / RUN_FILE).exists()
    assert "end them with scancel --name=a-run" in caplog.text
    run.queue = [("COMPLETED",)]
    run.executor.shutdown()
    assert not (tmp_path / RUN_FILE).exists()


def test_other_executors_are_left_alone(tmp_path: Path):
    plugin = SimpleNamespace(name="local", executor=Executor)
    watch(plugin, tmp_path)
    assert plugin.executor is Executor


def test_two_folders_of_one_workflow_have_one_executor(tmp_path: Path):
    plugin = SimpleNamespace(name="slurm", executor=Executor)
    watch(plugin, tmp_path / "a")
    first = plugin.executor
    watch(plugin, tmp_path / "b")
    assert plugin.executor is first
    assert [folder.name for folder in first.folders] == ["a", "b"]


def test_the_installed_executor_has_what_is_watched():
    from snakemake_executor_plugin_slurm import Executor as Installed

    wanted = ("run_jobs", "report_job_success", "report_job_error", "check_active_jobs")
    assert all(hasattr(Installed, name) for name in (*wanted, "cancel_jobs", "shutdown"))
    code = Installed.__post_init__.__code__.co_names
    assert {"run_uuid", "_submitted_job_clusters", "_job_submission_executor"} <= set(code)
