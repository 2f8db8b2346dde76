"""Expected run time: a simulation of the jobs of a run on the cores and GPUs that it may use."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from scatlas.workflow.costs import JOB_START_S, SNAKEMAKE_START_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class TimedJob:
    """A job with its expected duration; the jobs that it needs are positions in a list of jobs."""

    seconds: float
    requests: Mapping[str, int]
    """Resources that it occupies, ``{"_cores": 8, "gpu": 1}``."""
    needs: Sequence[int] = ()
    priority: int = 0


def simulate(jobs: Sequence[TimedJob], limits: Mapping[str, int]) -> list[tuple[float, float]]:
    """Start and end of each job in seconds. Jobs start one after another, in the order of their
    priority, then of the list, as soon as those that they need have ended and there is room.
    ``limits`` has the largest sum of each resource over the jobs that run at a time; a job that
    requests more gets the limit, as in Snakemake.
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
