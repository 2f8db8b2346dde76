"""Benchmark of the work that does not spread over cores, as 16 of them would feel it.

    python bench/serial.py FOLDER --cells 50000 200000 --genes 62710

Simulates two plates of each size in FOLDER (once), runs the workflow's scripts on them, and prints
for each step how many nanoseconds it takes for one more stored value of its input:

- ``work``: processor time of all threads,
- ``main``: processor time of the main thread,
- ``GIL``: time in which a thread holds the interpreter lock (500 samples per second of py-spy,
  which ``pip install py-spy`` brings),
- ``stage``: processor time of the busiest pool of one thread (a writer, a table),
- the least time on 16, 32 and 64 cores: the share of the work, or the longest serial part.

Work that does not grow with the values, such as imports and tables of genes, is in neither: each
process first runs the same step on plates of a few cells, and the smaller plates' times are
subtracted from the larger ones'.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import threading
from argparse import Namespace
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import runner
from chain import Chain, Job
from runner import ROOT
from workflow_run import make_plates

from scatlas.io import open_counts

STEPS = ("load", "qc_filter", "hvg", "select_genes", "concat_on_disk", "pca")
# Pools with several threads.
PARALLEL = ("scatlas-block", "scatlas-encode", "scatlas-gram", "native")
# Cells of the plates of the first run.
FEW_CELLS = 1000
RATE = 500


@dataclass
class Cost:
    """Seconds of one step, summed over its jobs."""

    values: int = 0
    gil: float = 0.0
    threads: dict[str, float] = field(default_factory=dict)

    @property
    def work(self) -> float:
        """Seconds of all threads."""
        return sum(self.threads.values())

    @property
    def stage(self) -> tuple[float, str]:
        """Seconds and name of the busiest thread besides the main one."""
        others = [
            (seconds, name)
            for name, seconds in self.threads.items()
            if name not in (*PARALLEL, "MainThread")
        ]
        return max(others, default=(0.0, "-"))

    def bound(self, cores: int) -> float:
        """Least seconds on some cores: nothing is faster than its longest serial part."""
        return max(self.work / cores, self.threads["MainThread"], self.gil, self.stage[0])

    def minus(self, other: Cost) -> Cost:
        """What more values have cost more."""
        threads = {name: t - other.threads.get(name, 0) for name, t in self.threads.items()}
        return Cost(self.values - other.values, self.gil - other.gil, threads)


def run(warm: Job, job: Job, cost: Cost, folder: Path) -> None:
    """Run a job after a smaller one in one process, and add its cost."""
    times, stacks = folder / "threads.json", folder / f"stacks-{job.step}-{job.plate or 'all'}.txt"
    words = [times, ROOT / f"scripts/{job.step}.py", json.dumps(warm.argv), json.dumps(job.argv)]
    command = [sys.executable, __file__, "--here", *words]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(
        [str(part) for part in command], text=True, **pipes | {"stderr": None}
    )
    while process.stdout.readline().strip() not in ("ready", ""):
        pass
    spy = ["py-spy", "record", "--gil", "--nonblocking", "-r", str(RATE), "-f", "raw"]
    spy += ["-o", str(stacks), "-p", str(process.pid)]
    spy = subprocess.Popen(spy, text=True, **pipes)
    spy.stdout.readline()  # it has attached
    process.stdin.write("\n")
    process.stdin.close()
    if process.wait():
        sys.exit(f"{job.step} failed")
    spy.communicate()
    for name, seconds in json.loads(times.read_text()).items():
        cost.threads[name] = cost.threads.get(name, 0.0) + seconds
    for line in stacks.read_text().splitlines():
        _, _, count = line.rpartition(" ")
        # A stack that was read while it changed may have no count.
        if "runner.py" not in line and count.isdecimal():  # not the watcher
            cost.gil += int(count) / RATE


def jobs(folder: Path, cells: int, args: Namespace) -> tuple[Chain, list[Job]]:
    """Jobs from two plates, which are made unless they exist, to X_pca."""
    folder.mkdir(parents=True, exist_ok=True)
    plates = {path.stem: path for path in make_plates(folder, 2, cells, args.genes)}
    shutil.rmtree(folder / "results", ignore_errors=True)  # no step replaces an older result
    chain = Chain(folder / "results", "cpu", args.threads, "auto", args.top_genes, 1, args.comps)
    return chain, chain.all(plates)


def measure(args: Namespace, cells: int) -> dict[str, Cost]:
    """Cost of each step on two plates."""
    folder = args.folder / f"cells{cells}"
    _, warm = jobs(args.folder / f"cells{FEW_CELLS}", FEW_CELLS, args)
    for job in warm:
        command = [sys.executable, str(ROOT / f"scripts/{job.step}.py"), *job.argv]
        subprocess.run(command, check=True)
    chain, work = jobs(folder, cells, args)
    costs = {step: Cost() for step in STEPS}
    for first, job in zip(warm, work, strict=True):
        run(first, job, costs.setdefault(job.step, Cost()), folder)
    for plate in ("plate1", "plate2"):
        for step, store in (("load", "counts"), ("concat_on_disk", "selected")):
            with open_counts(chain.at(plate, f"{store}.zarr")) as counts:
                costs[step].values += counts.matrix.n_values
    for step in ("qc_filter", "hvg", "select_genes"):
        costs[step].values = costs["load"].values
    costs["pca"].values = costs["concat_on_disk"].values
    return costs


def run_here(file: str, script: str, warm: str, options: str) -> None:
    """Run a script twice, and write the processor seconds of each thread of the second run.

    The first run imports modules and loads compiled kernels. Then ``ready`` is printed and a line
    awaited, so that a profiler can attach. Threads of one pool add up; those that Python did not
    start are ``native``. The kernel keeps the time of a thread only while it lives, so all are read
    every 10 ms, which misses at most that much of each.
    """
    sys.argv = [script]
    module = runpy.run_path(script)
    blocks = not script.endswith("concat_on_disk.py")
    module["script"].run_main(lambda: module["main"](json.loads(warm)), blocks=blocks)
    print("ready", flush=True)
    sys.stdin.readline()
    nanoseconds: dict[int, int] = {}
    names: dict[int, str] = {}

    def read() -> None:
        names.update({thread.native_id or 0: thread.name for thread in threading.enumerate()})
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # it ended meanwhile
                nanoseconds[int(task.name)] = int((task / "schedstat").read_text().split()[0])

    read()
    before = dict(nanoseconds)
    with runner.sampled(read, 0.01):
        module["main"](json.loads(options))
    read()
    found: dict[str, float] = defaultdict(float)
    for task, time in nanoseconds.items():
        name = re.sub(r"[-_]\d+(_\d+)?$", "", names.get(task, "native"))
        found[name] += (time - before.get(task, 0)) / 1e9
    found.pop("watcher", None)
    Path(file).write_text(json.dumps(found))


def main() -> None:
    if sys.argv[1:2] == ["--here"]:
        run_here(*sys.argv[2:])
        return
    sizes = {"genes": 62_710, "top_genes": 2000, "comps": 300}
    sizes["threads"] = len(os.sched_getaffinity(0))
    parser = runner.parser(__doc__, folder="for plates and results", **sizes)
    parser.add_argument("--cells", type=int, nargs=2, default=[50_000, 200_000])
    args = parser.parse_args()
    few, many = sorted(args.cells)
    before, after = measure(args, few), measure(args, many)
    lines = [
        *runner.head("numba", "numpy", "py-spy"),
        "# two plates; ns per further stored value; under each step the seconds of its threads",
        f"{'step':<16}{'M values':>10}{'work':>9}{'main':>9}{'GIL':>9}{'stage':>9}{'of work':>9}"
        f"{'16':>9}{'32':>9}{'64':>9}  busiest thread",
    ]
    for step in STEPS:
        cost = after[step].minus(before[step])
        seconds, name = cost.stage
        parts = (cost.work, cost.threads["MainThread"], cost.gil, seconds)
        cells = "".join(f"{part / cost.values * 1e9:>9.3f}" for part in parts)
        bounds = "".join(f"{cost.bound(n) / cost.values * 1e9:>9.2f}" for n in (16, 32, 64))
        share = f"{seconds / cost.work:>9.1%}"
        lines.append(f"{step:<16}{cost.values / 1e6:>10.1f}{cells}{share}{bounds}  {name}")
        pools = sorted(cost.threads.items(), key=lambda item: -item[1])
        lines.append("#   " + ", ".join(f"{pool} {value:.2f}" for pool, value in pools))
    runner.publish(lines, args.out)


if __name__ == "__main__":
    main()
