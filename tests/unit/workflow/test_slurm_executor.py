"""Jobs in Slurm's queue: no run waits for one that has ended, none starts beside another's."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest

from scatlas.errors import InputError
from scatlas.workflow import run_lock, slurm_executor
from scatlas.workflow.command_line import status
from scatlas.workflow.command_line.main import main
from scatlas.workflow.run_lock import RUN_FILE, QueuedJob, jobs_of_run, refuse_live_jobs
from scatlas.workflow.slurm_executor import PATIENCE, watch

LATENCY = 60


class Executor:
    """The plugin's executor as it was seen: it yields the jobs whose state it does not know, and
    none at all where its question fails."""

    run_uuid = "a-run"
    answers = True

    def __init__(self, workflow, logger):
        self.workflow, self.logger = workflow, logger
        self._submitted_job_clusters: set[str] = set()
        self._job_submission_executor = ThreadPoolExecutor(1)
        self.submitted, self.done, self.failed, self.cancelled = [], [], [], []

    def run_jobs(self, jobs):
        for job in jobs:
            self._job_submission_executor.submit(self.submitted.append, job)

    def report_job_success(self, info):
        self.done.append(info.external_jobid)

    def report_job_error(self, info, msg=None, **more):
        self.failed.append(msg)

    async def check_active_jobs(self, active_jobs):
        for job in active_jobs if self.answers else []:
            yield job

    def cancel_jobs(self, active_jobs):
        self.cancelled += [info.external_jobid for info in active_jobs]

    def shutdown(self):
        pass


class Run:
    """A run with one job, number 1, and the queue that Slurm tells; None: it does not answer."""

    def __init__(self, folder: Path):
        self.output, self.now, self.queue = folder / "out", 0.0, []
        plugin = SimpleNamespace(name="slurm", executor=Executor)
        watch(plugin, folder)
        settings = SimpleNamespace(latency_wait=LATENCY)
        workflow = SimpleNamespace(execution_settings=settings)
        self.executor = plugin.executor(workflow, logging.getLogger("test"))
        self.info = SimpleNamespace(job=self.job("out"), external_jobid="1", aux=None)

    def job(self, name: str) -> SimpleNamespace:
        path = str(self.output.with_name(name))
        return type("Job", (), {"output": [path], "is_group": lambda _: False})()

    def jobs_of_run(self, run: str, *options: str) -> list[QueuedJob]:
        if self.queue is None:
            raise InputError("the queue cannot be asked")
        return [QueuedJob("1", *words) for words in self.queue]

    def submit(self, *others: SimpleNamespace) -> None:
        self.executor.run_jobs([self.info.job, *others])

    def look(self, after: float = 10) -> int:
        """Look at the queue some seconds later: number of jobs that go on."""
        self.now += after

        async def check() -> list:
            return [job async for job in self.executor.check_active_jobs([self.info])]

        return len(asyncio.run(check()))


@pytest.fixture
def run(tmp_path: Path, monkeypatch) -> Run:
    new = Run(tmp_path)
    for module in (slurm_executor, run_lock):
        monkeypatch.setattr(module, "jobs_of_run", new.jobs_of_run)
    monkeypatch.setattr(slurm_executor.time, "monotonic", lambda: new.now)
    return new


ENDED = [[], [("CANCELLED",)], [("PREEMPTED", "None")], [("a new state",)]]


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


def test_a_job_that_slurm_calls_completed_is_done(run: Run):
    run.submit()
    run.queue = [("COMPLETED",)]
    assert [run.look(), run.look()] == [1, 0]
    assert run.executor.done == ["1"]


def test_jobs_that_wait_or_run_go_on(run: Run):
    run.submit()
    for state in ("PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING"):
        run.queue = []
        assert run.look() == 1, "one look that misses it is no end"
        run.queue = [(state, "None")]
        assert run.look(PATIENCE) == 1
    run.executor.answers = False
    for queue in (run.queue, None):
        run.queue = queue
        assert [run.look(), run.look()] == [1, 1], "not forgotten"


def test_what_keeps_a_run_waiting_is_named_once_after_ten_minutes(run: Run, caplog):
    run.submit()
    for queue, named in {
        (("PENDING", "JobHeldUser", "load of p1"),): "job 1 (load of p1): JobHeldUser",
        None: "the queue cannot be asked",
        (("PENDING", "Priority"),): "",
    }.items():
        caplog.clear()
        run.queue = queue
        run.look()
        assert caplog.text == ""
        run.look(PATIENCE)
        run.look(PATIENCE)
        assert len(caplog.messages) == bool(named)
        assert named in caplog.text


def test_an_error_says_why_a_job_refused_to_begin_its_step(run: Run, tmp_path: Path):
    log = tmp_path / "log"
    for aux in ({"slurm_logfile": log}, {"slurm_logfile": tmp_path / "lost"}, None):
        log.write_text('WorkflowError in file "x.smk", line 3:\na.tsv has changed\n')
        run.executor.report_job_error(SimpleNamespace(external_jobid="2", aux=aux), msg="failed.")
    assert run.executor.failed == ["failed. a.tsv has changed. ", "failed. ", "failed. "]


def test_ctrl_c_cancels_what_was_just_submitted_and_submits_no_more(run: Run):
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
    run.submit(run.job("other"))
    run.queue = [("PENDING",)]
    executor.cancel_jobs([])
    assert (executor.submitted, executor.cancelled) == ([], ["1"])
    run.queue = None
    executor.cancel_jobs([run.info])
    assert executor.cancelled == ["1", "1"], "those that Snakemake knows"


def test_the_name_of_a_run_stays_until_none_of_its_jobs_is_left(run: Run, tmp_path: Path, caplog):
    run.executor.shutdown()
    assert not (tmp_path / RUN_FILE).exists(), "nothing was submitted"
    run.submit()
    assert (tmp_path / RUN_FILE).read_text() == "a-run"
    for queue in (None, [("RUNNING",)]):
        run.queue = queue
        run.executor.shutdown()
        assert (tmp_path / RUN_FILE).exists()
    assert "give scancel --name=a-run to end them" in caplog.text
    run.queue = [("COMPLETED",)]
    run.executor.shutdown()
    assert not (tmp_path / RUN_FILE).exists()


def test_modules_of_a_workflow_share_its_executor_for_slurm_and_others_are_left_alone(
    tmp_path: Path,
):
    plugin = SimpleNamespace(name="slurm", executor=Executor)
    for name in "ab":
        watch(plugin, tmp_path / name)
    assert [folder.name for folder in plugin.executor.folders] == ["a", "b"]
    assert plugin.executor.__mro__.count(Executor) == 1
    plugin = SimpleNamespace(name="local", executor=Executor)
    watch(plugin, tmp_path)
    assert plugin.executor is Executor


def test_the_installed_executor_has_what_is_watched():
    from snakemake_executor_plugin_slurm import Executor as Installed

    methods = {name for name in vars(Executor) if not name.startswith("__")} - {"answers"}
    assert {name for name in methods - {"run_uuid"} if not hasattr(Installed, name)} == set()
    assert {"run_uuid", "_submitted_job_clusters", "_job_submission_executor"} <= {
        *Installed.__post_init__.__code__.co_names
    }


# The queue, from a stand-in for squeue ----------------------------------------------------------

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
    project = SimpleNamespace(folder=str(results), labels=None)
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
