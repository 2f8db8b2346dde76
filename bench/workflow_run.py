"""Run the whole workflow on simulated plates; collect time and memory of each job."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from runner import ROOT, Run

# Section qc for simulated plates in Tahoe's layout.
QC = {"filter": "pass_filter == 'full'"}


class Job(NamedTuple):
    """A job by its run record.

    Attributes
    ----------
    seconds, processor_seconds
        That it took.
    peak
        Peak resident bytes.
    end
        Seconds from the command to the job's end.
    """

    seconds: float
    processor_seconds: float
    peak: int
    end: float


@dataclass(frozen=True)
class Jobs:
    """A run of the workflow.

    Attributes
    ----------
    wall
        Seconds from the command to its end.
    values
        Stored counts of all plates.
    records
        Jobs by name (``load/plate1``).
    """

    wall: float
    values: int
    records: dict[str, Job]


def make_plates(folder: Path, n: int, cells: int, genes: int, *options: str) -> list[Path]:
    """Make plates in Tahoe's layout in a folder, unless they exist."""
    paths = [folder / f"plate{i}.h5ad" for i in range(1, n + 1)]
    if not all(path.exists() for path in paths):
        size = ("--plates", n, "--cells", cells, "--genes", genes)
        make = [sys.executable, ROOT / "bench/make_plates.py", folder, *size, *options]
        subprocess.run([str(part) for part in make], check=True)
    return paths


def run_workflow(
    folder: Path,
    plates: list[Path],
    *,
    jobs: int | None = None,
    subset: int | None,
    again: bool = False,
    options: Sequence[str] = (),
    **settings: object,
) -> Jobs:
    """Run all rules on these plates, with new results in ``folder/results``.

    Parameters
    ----------
    jobs
        Cores for Snakemake; all by default.
    subset
        Cells of the UMAP; None: those of the settings.
    again
        Run what changed; otherwise everything.
    options
        More options of Snakemake.
    settings
        Sections of the config.
    """
    sheet = folder / "plates.tsv"
    rows = [f"{path.stem}\t{path.resolve()}" for path in plates]
    sheet.write_text("\n".join(["plate\tpath", *rows, ""]))
    sample = {"subset": {"n_cells": subset}} if subset else {}
    config = {"plates": "plates.tsv", **sample, **settings}
    (folder / "config.json").write_text(json.dumps(config))
    force = [] if again else ["--forceall"]
    command = _snakemake(folder, jobs, *force, *options, "--quiet", "all")
    begin, clock = time.perf_counter(), time.time()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall = time.perf_counter() - begin
    manifests = folder / "results/manifests"
    records = {}
    for path in sorted(manifests.rglob("runs/*.json")):
        record = json.loads(path.read_text())
        name = (path.parent.parent / path.stem).relative_to(manifests).as_posix()
        records[name] = Job(
            record["seconds"],
            record["processor_seconds"],
            record["peak_memory_bytes"],
            path.stat().st_mtime - clock,  # written at its end
        )
    loads = (manifests / f"load/{path.stem}.json" for path in plates)
    values = sum(json.loads(load.read_text())["n_values"] for load in loads)
    return Jobs(wall, values, records)


def without_jobs(jobs: Jobs) -> float:
    """Seconds of a run in which no job worked: the start, and gaps between jobs."""
    busy = until = 0.0
    for job in sorted(jobs.records.values(), key=lambda job: job.end - job.seconds):
        busy += max(job.end - max(job.end - job.seconds, until), 0)
        until = max(until, job.end)
    return jobs.wall - busy


def idle_line(jobs: Jobs, cores: int) -> str:
    """Line of the time without jobs, and of that which the jobs alone would need on all cores."""
    idle, work = without_jobs(jobs), sum(job.processor_seconds for job in jobs.records.values())
    return (
        f"no job at work: {idle:.1f} s, {idle / jobs.wall:.0%} of the run; "
        f"{len(jobs.records)} jobs, {work / cores:.1f} s of all cores"
    )


def expected_time(folder: Path, *, jobs: int | None = None, options: Sequence[str] = ()) -> str:
    """Sentence of ``snakemake -n`` about the time of the last :func:`run_workflow`."""
    command = _snakemake(folder, jobs, "--forceall", *options, "-n", "--quiet", "rules")
    done = subprocess.run(command, check=True, text=True, capture_output=True)
    found = re.search(r"Expected run time: .*", done.stdout + done.stderr)
    return found[0] if found else "no expected run time"


def _snakemake(folder: Path, jobs: int | None, *options: str) -> list[str]:
    cores = jobs or len(os.sched_getaffinity(0))
    return [
        *(sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")),
        *("--directory", str(folder), "--configfile", str(folder / "config.json")),
        *("--cores", str(cores), *options),
    ]


def by_rule(jobs: Jobs) -> dict[str, tuple[float, int]]:
    """Total seconds and highest peak of each rule's jobs."""
    rules: dict[str, tuple[float, int]] = {}
    for name, job in jobs.records.items():
        rule = name.partition("/")[0]
        before = rules.get(rule, (0.0, 0))
        rules[rule] = before[0] + job.seconds, max(before[1], job.peak)
    return rules


def beside(ours: Sequence[Jobs], theirs: Sequence[Run]) -> list[str]:
    """Lines of the runs of all rules, and of those of a peer's script, if there are any."""
    seconds = statistics.median(run.wall for run in ours)
    lines = [
        f"scatlas, all rules through Snakemake: {seconds:.1f} s",
        "  seconds by rule, all jobs (some may run at once): "
        + ", ".join(f"{rule} {s:.1f}" for rule, (s, _) in by_rule(ours[-1]).items()),
    ]
    if theirs:
        peer, last = statistics.median(run.wall for run in theirs), theirs[-1]
        lines += [
            f"scanpy's bare script: {peer:.1f} s, peak {last.peak / 1e6:.0f} MB",
            "  seconds: " + ", ".join(f"{step} {s:.1f}" for step, s in last.seconds.items()),
            f"ratio {peer / seconds:.2f}",
        ]
    return lines
