"""Benchmark of `select_genes` on a GPU: with 4, 8 and 16 cores, one to four jobs at once.

    python bench/gpu/jobs.py FOLDER --source plate.zarr --small small.zarr --out FILE

Loads both plates to FOLDER once. Then jobs, forked from a process with the libraries as Snakemake's
are, run at once on the first 4, 8 and 16 cores of this process, and divide cores and GPU; fastest
of --rounds. Cores: processor time by time. GPU: share of the time in which a kernel runs (NVML).
Plates a minute: of jobs one after another in as many places.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes import Structure, byref, c_uint
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import runner
from chain import Chain
from runner import ROOT

from scatlas.compute import gpu_devices

CLIENT = ROOT / "src/scatlas/workflow/fork_client.py"
SCRIPT = ROOT / "scripts/select_genes.py"
HEAD = f"{'':<44}{'seconds':>8}{'M values/s':>12}{'cores':>7}{'GPU':>6}"


def main() -> None:
    parser = runner.parser(__doc__, folder="for results", rounds=1, genes=2000)
    parser.add_argument("--source", type=Path, required=True, help="plate of 500,000 cells or more")
    parser.add_argument("--small", type=Path, required=True, help="plate of some thousand cells")
    parser.add_argument("--cores", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2, 3, 4], help="jobs at once")
    parser.add_argument("--here", action="store_true", help="measure on the cores of this process")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    chains = {name: chain(args, name) for name in ("source", "small")}
    if args.here:
        measure(args, chains)
        return
    for name, made in chains.items():
        if not (made.out / "consensus_genes.tsv").exists():
            prepare(made, getattr(args, name), args.folder / f"{name}.log")
    os.sync()
    cells, values = size(chains["source"])
    about = f"# {cells:,} cells, {values:,} values"
    lines = [*runner.head("numpy", "cupy-cuda13x", "numcodecs"), about, HEAD]
    given = sorted(os.sched_getaffinity(0))
    for cores in args.cores:
        if cores > len(given):
            lines.append(f"{cores} cores: this process may use {len(given)}")
            continue
        pin = partial(os.sched_setaffinity, 0, given[:cores])
        log = args.folder / f"cores{cores}.log"
        with log.open("w") as err:
            words = [sys.executable, __file__, *sys.argv[1:], "--here"]
            run = subprocess.run(words, preexec_fn=pin, stdout=subprocess.PIPE, stderr=err)
        lines += [json.loads(line) for line in run.stdout.splitlines() if line.startswith(b'"')]
        if run.returncode:
            reason = log.read_text()[-2000:]
            lines.append(f"{cores} cores: exit status {run.returncode} after these lines\n{reason}")
        (args.folder / "lines.txt").write_text("\n".join(lines))  # if the time ends
    runner.publish(lines, args.out)


def say(line: str) -> None:
    print(json.dumps(line), flush=True)


def chain(args: Namespace, name: str) -> Chain:
    """Scripts of one plate, `p`."""
    return Chain(args.folder / name, "gpu", 16, "auto", args.genes, 1, 50)


def prepare(made: Chain, source: Path, log: Path) -> None:
    """Run the scripts before `select_genes`."""
    jobs = [made.load("p", source), *made.genes("p"), made.consensus(["p"])]
    with log.open("w") as err:
        for job in jobs:
            words = [sys.executable, ROOT / f"scripts/{job.step}.py", *job.argv]
            subprocess.run(words, check=True, stderr=err)


def size(made: Chain) -> tuple[int, int]:
    """Cells and values of the plate."""
    loaded = json.loads((made.out / "manifests/load/p.json").read_text())
    return loaded["n_cells"], loaded["n_values"]


def measure(args: Namespace, chains: dict[str, Chain]) -> None:
    """Say the lines of a number of cores."""
    cores, use = len(os.sched_getaffinity(0)), gpu_use()
    n_values = size(chains["source"])[1]
    # Until the server is ready jobs start in a new Python.
    for _ in range(60):
        run_jobs(chains["small"], 1, cores)
        if "new Python" not in (args.folder / "small/job0.log").read_text():
            break
        time.sleep(1)
    for jobs in args.jobs:
        found = []
        for _ in range(args.rounds):
            with runner.sampled(use, 0.02) as samples:
                found.append((*run_jobs(chains["source"], jobs, max(1, cores // jobs)), samples))
        seconds, work, samples = min(found, key=lambda run: run[0])
        name = f"{cores} cores: {jobs} jobs at once, {60 * jobs / seconds:.0f} plates a minute"
        say(row(name, seconds, jobs * n_values, work, samples))


def row(name: str, seconds: float, values: int, work: float, samples: list[int]) -> str:
    busy = sum(samples) / len(samples)
    rate = f"{values / seconds / 1e6:>12.0f}{work / seconds:>7.1f}"
    return f"{name:<44}{seconds:>8.2f}{rate}{busy:>5.0f}%"


def select(made: Chain, number: int, share: int, threads: int) -> list[str]:
    """Options of a job that shares the GPU with others."""
    out = made.out / f"job{number}"
    shutil.rmtree(out, ignore_errors=True)
    own = f"--selected {out}/s.zarr --gram {out}/g.zarr --manifest {out}/m.json"
    return [*made.select("p").argv, *f"{own} --threads {threads} --gpu-share 1/{share}".split()]


def run_jobs(made: Chain, n: int, threads: int) -> tuple[float, float]:
    """Seconds until all jobs have ended, and the processor seconds of all."""
    logs = [made.out / f"job{i}.log" for i in range(n)]
    env = os.environ | {"SCATLAS_FORK_SERVER": str(os.getpid())}

    def run(i: int) -> None:
        command = [sys.executable, "-IS", CLIENT, SCRIPT, *argv[i]]
        with logs[i].open("w") as log:
            subprocess.run(command, env=env, check=True, stdout=log, stderr=log)

    argv = [select(made, i, n, threads) for i in range(n)]
    begin = time.perf_counter()
    with ThreadPoolExecutor(n) as pool:
        list(pool.map(run, range(n)))
    seconds = time.perf_counter() - begin
    records = [json.loads((made.out / f"job{i}/runs/m.json").read_text()) for i in range(n)]
    return seconds, sum(record["processor_seconds"] for record in records)


class _Use(Structure):
    _fields_ = [("gpu", c_uint), ("memory", c_uint)]


def gpu_use() -> Callable[[], int]:
    """Function that returns the use of the GPU in percent."""
    nvml = gpu_devices._nvml()
    handle, use = gpu_devices._handles(nvml, 1)[0], _Use()

    def read() -> int:
        nvml.nvmlDeviceGetUtilizationRates(handle, byref(use))
        return use.gpu

    return read


if __name__ == "__main__":
    main()
