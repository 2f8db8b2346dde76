"""What a dry run prints: the resources that the jobs request, and their expected run time, by a
simulation of the jobs on the cores and GPUs that they may use.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from scatlas.workflow.costs import JOB_START_S, SNAKEMAKE_START_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class JobRequest:
    """Resources that one job requests; memory and disk in MB, run time in minutes."""

    rule: str
    threads: int
    mem_mb: int
    runtime: int
    gpu: float = 0
    disk_mb: int = 0


@dataclass(frozen=True)
class TimedJob:
    """A job with its expected duration; the jobs that it needs are positions in a list of jobs."""

    seconds: float
    requests: Mapping[str, int]  # resources that it occupies, {"_cores": 8, "gpu": 1}
    needs: Sequence[int] = ()
    priority: int = 0


def simulate(jobs: Sequence[TimedJob], limits: Mapping[str, int]) -> list[tuple[float, float]]:
    """Start and end of each job in seconds, in the order of priority, then of the list, as soon as
    its inputs are there and there is room. A job that requests more than ``limits`` gets these.
    """
    waits_for = [len(job.needs) for job in jobs]
    needed_by: defaultdict[int, list[int]] = defaultdict(list)
    for number, job in enumerate(jobs):
        for needed in job.needs:
            needed_by[needed].append(number)
    requests = [
        tuple(min(job.requests.get(name, 0), limit) for name, limit in limits.items())
        for job in jobs
    ]
    free = list(limits.values())
    # Ready jobs by their requests: if the first of a heap does not fit, none of it does.
    ready: defaultdict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
    running: list[tuple[float, int]] = []
    times = [(0.0, 0.0)] * len(jobs)
    now = next_start = float(SNAKEMAKE_START_S)

    def make_ready(number: int) -> None:
        heappush(ready[requests[number]], (-jobs[number].priority, number))

    for number, n_needed in enumerate(waits_for):
        if not n_needed:
            make_ready(number)
    while True:
        while fitting := [
            (heap[0], request)
            for request, heap in ready.items()
            if heap and all(a <= b for a, b in zip(request, free, strict=True))
        ]:
            _, request = min(fitting)
            _, number = heappop(ready[request])
            start = max(now, next_start)
            next_start = start + JOB_START_S
            times[number] = start, start + jobs[number].seconds
            free = [b - a for a, b in zip(request, free, strict=True)]
            heappush(running, (times[number][1], number))
        if not running:
            return times
        now, number = heappop(running)
        free = [b + a for a, b in zip(requests[number], free, strict=True)]
        for later in needed_by[number]:
            waits_for[later] -= 1
            if not waits_for[later]:
                make_ready(later)


def run_seconds(jobs: Sequence[TimedJob], limits: Mapping[str, int]) -> float:
    """Seconds from the start of Snakemake to the end of the last job of :func:`simulate`."""
    return max((end for _, end in simulate(jobs, limits)), default=0)


def sentence(seconds: float, cores: int, n_gpus: float) -> str:
    """One line for users, such as ``Expected run time: about 27 minutes on 16 cores``."""
    if seconds < 100:
        time = f"{max(round(seconds, -1), 10):.0f} seconds"
    elif seconds < 5400:
        time = f"{seconds / 60:.0f} minutes"
    else:
        time = f"{seconds / 3600:.1f} hours"
    machine = f"{cores} core{'s' * (cores != 1)}"
    if n_gpus:
        machine += f" and {n_gpus:.3g} GPU{'s' * (n_gpus != 1)}"
    return (
        f"Expected run time: about {time} on {machine}, by the costs that were measured on other "
        "machines (docs/performance.md)."
    )


def resource_table(requests: list[JobRequest]) -> str:
    """Table of requested resources with one row per rule, in the order of their first jobs."""
    rules: dict[str, list[JobRequest]] = defaultdict(list)
    for request in requests:
        rules[request.rule].append(request)
    rows = [["rule", "jobs", "threads", "GPUs", "GB each", "hours", "GPU hours", "disk GB"]]
    rows += [_table_row(rule, jobs) for rule, jobs in rules.items()]
    rows.append(_table_row("all", requests))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
    return "\n".join(
        [
            "Plan: resources that the jobs request. Threads, GPUs and GB are of the largest job,",
            "hours and disk of all jobs together. Most jobs take a tenth of their hours.",
            *lines,
        ]
    )


def _table_row(name: str, jobs: list[JobRequest]) -> list[str]:
    hours = sum(job.runtime for job in jobs) / 60
    gpu_hours = sum(job.runtime * job.gpu for job in jobs) / 60
    return [
        name,
        str(len(jobs)),
        str(max((job.threads for job in jobs), default=0)),
        f"{max((job.gpu for job in jobs), default=0):.3g}",
        f"{max((job.mem_mb for job in jobs), default=0) / 1e3:.1f}",
        f"{hours:.1f}",
        f"{gpu_hours:.1f}",
        f"{sum(job.disk_mb for job in jobs) / 1e3:.1f}",
    ]
