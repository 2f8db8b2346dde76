"""Which jobs run side by side on a machine of 16 cores and one GPU.

A dry run with the real profiles tells the jobs. Snakemake's own scheduler then chooses which of
them to start, on a clock that jumps from the end of one job to that of the next. No job runs.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from pathlib import Path

import pytest
import yaml
from snakemake.scheduling.greedy import Scheduler, SchedulerSettings

from scatlas.workflow.run_time import TimedJob, run_seconds
from tests.workflow.runs import ROOT, run_python

pytestmark = pytest.mark.workflow

PLATES = [f"p{number}" for number in range(1, 13)]  # four at a time
# At the end of the Snakefile: the jobs and limits of a dry run as JSON.
TELL = """
import json

JOBS_FILE = Path.cwd() / "jobs.json"


@atexit.register
def tell():
    jobs = planned_jobs()
    names = [[job.rule.name, job.wildcards_dict.get("plate")] for job in jobs]
    timed = [vars(job) for job in timed_jobs(jobs)]
    JOBS_FILE.write_text(json.dumps([names, timed, run_limits()]))
"""


@dataclass(frozen=True)
class Plan:
    names: list[tuple[str, str | None]]
    jobs: list[TimedJob]
    limits: dict[str, int]
    printed: str


@dataclass(frozen=True)
class Candidate:
    """What Snakemake's scheduler reads of a job."""

    number: int
    scheduler_resources: dict[str, int]
    priority: int
    input: tuple[()] = ()

    def __hash__(self) -> int:
        return self.number


@dataclass(frozen=True)
class Run:
    """A job in the schedule, with its start and end in seconds."""

    rule: str
    plate: str | None
    job: TimedJob
    start: float
    end: float


def dry_run(folder: Path, backend: str, *options: str) -> Plan:
    """Plan for plates of seven million cells, on 16 cores."""
    for name in ("src", "config", "envs", "scripts", "workflow"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "Snakefile").write_text((ROOT / "Snakefile").read_text() + TELL)
    rows = ["plate\tpath\tn_cells", *(f"{plate}\t{plate}.h5ad\t7000000" for plate in PLATES)]
    (folder / "plates.tsv").write_text("\n".join([*rows, ""]))
    for plate in PLATES:
        (folder / f"{plate}.h5ad").touch()
    config = {"plates": "plates.tsv", "backend": backend, "map": {"cells": "sample"}}
    (folder / "my.yaml").write_text(yaml.safe_dump(config))
    words = ("--directory", folder, "--configfile", folder / "my.yaml", "--dry-run", *options)
    snakemake = ("-m", "snakemake", "--snakefile", folder / "Snakefile", "--cores", "16")
    done = run_python(*snakemake, "--nocolor", *words)
    assert done.returncode == 0, done.stdout[-6000:]
    names, jobs, limits = json.loads((folder / "jobs.json").read_text())
    return Plan(
        [(rule, plate) for rule, plate in names],
        [TimedJob(**job) for job in jobs],
        {name: limit for name, limit in limits.items() if name != "_nodes"},
        done.stdout,
    )


def schedule(plan: Plan) -> list[Run]:
    """Schedule of Snakemake's greedy scheduler, by start."""
    scheduler = Scheduler(None, SchedulerSettings(), logging.getLogger())
    unfinished = {number: set(job.needs) for number, job in enumerate(plan.jobs)}
    waiting, free, now = set(unfinished), dict(plan.limits), 0.0
    running: list[tuple[float, int]] = []
    runs = []
    while waiting or running:
        ready = [
            Candidate(number, dict(plan.jobs[number].requests), plan.jobs[number].priority)
            for number in sorted(waiting)
            if not unfinished[number]
        ]
        for chosen in scheduler.select_jobs(ready, ready, free, {}) if ready else []:
            job = plan.jobs[chosen.number]
            waiting.remove(chosen.number)
            heappush(running, (now + job.seconds, chosen.number))
            runs.append(Run(*plan.names[chosen.number], job, now, now + job.seconds))
            free = {name: left - job.requests[name] for name, left in free.items()}
        now, number = heappop(running)
        free = {name: left + plan.jobs[number].requests[name] for name, left in free.items()}
        for needed in unfinished.values():
            needed.discard(number)
    return runs


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Plan]:
    profile = ("--profile", str(ROOT / "profiles/local-gpu"))
    return {
        "cpu": dry_run(tmp_path_factory.mktemp("cpu"), "cpu"),
        "gpu": dry_run(tmp_path_factory.mktemp("gpu"), "gpu", *profile),
    }


def moments(runs: list[Run]) -> list[list[Run]]:
    """The jobs that run at the start of each job."""
    return [[other for other in runs if other.start <= run.start < other.end] for run in runs]


def n_running(now: list[Run], rule: str) -> int:
    return sum(run.rule == rule for run in now)


def test_gpu_jobs_run_beside_jobs_that_load(plans):
    runs = schedule(plans["gpu"])
    at_once = [(n_running(now, "load"), n_running(now, "hvg")) for now in moments(runs)]
    # hvg takes seconds if load has taken the moments, so two of them seldom meet.
    assert any(n_load >= 2 and n_gpu >= 1 for n_load, n_gpu in at_once)
    assert max(sum(run.job.requests["gpu"] for run in now) for now in moments(runs)) == 4
    assert max(n_running(now, "select_genes") for now in moments(runs)) == 4


def test_a_step_to_the_map_waits_for_one_copy_by_gene(plans):
    runs = schedule(plans["cpu"])
    ends = [run.end for run in runs if run.rule == "by_gene"]
    start = next(run.start for run in runs if run.rule == "concat_on_disk")
    selected = max(run.end for run in runs if run.rule == "select_genes")
    assert start <= min(end for end in ends if end >= selected) < max(ends)


def test_four_jobs_that_load_fill_the_cores(plans):
    at_once = [n_running(now, "load") for now in moments(schedule(plans["cpu"]))]
    assert at_once[3] == max(at_once) == 4


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_cores_are_busy_while_plates_are_loaded(plans, device: str):
    """Time of the cores until `hvg` of the last plate starts."""
    runs = schedule(plans[device])
    end = max(run.start for run in runs if run.rule == "hvg")
    used = sum(
        run.job.requests["_cores"] * (min(run.end, end) - min(run.start, end)) for run in runs
    )
    assert used > 0.85 * 16 * end


def waiting_plates(runs: list[Run]) -> int:
    """Most plates that are loaded, and whose `hvg` has not started, when another one is loaded."""
    starts = {(run.rule, run.plate): run.start for run in runs}
    loads = [run for run in runs if run.rule == "load"]
    return max(
        sum(one.end <= load.start < starts["hvg", one.plate] for one in loads) for load in loads
    )


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_plate_goes_on_before_the_next_is_loaded(plans, device: str):
    plan = plans[device]
    assert {plan.jobs[i].priority for i, (rule, _) in enumerate(plan.names) if rule == "hvg"} == {1}
    assert waiting_plates(schedule(plan)) <= 4, "as many as are loaded at a time"
    equal = replace(plan, jobs=[replace(job, priority=0) for job in plan.jobs])
    assert waiting_plates(schedule(equal)) > 4, "without priorities"


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_the_expected_run_time_is_that_of_the_schedule(plans, device: str):
    plan = plans[device]
    scheduled = max(run.end for run in schedule(plan))
    assert run_seconds(plan.jobs, plan.limits) == pytest.approx(scheduled, rel=0.1)
    (line,) = [line for line in plan.printed.splitlines() if line.startswith("Expected run time")]
    n_minutes = run_seconds(plan.jobs, plan.limits) / 60
    assert f"about {n_minutes:.0f} minutes on 16 cores" in line
    assert (" and 1 GPU," in line) == (device == "gpu")
