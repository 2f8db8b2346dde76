"""Run every GPU benchmark and the tests of the GPU in one command, in less than ten minutes.

    python bench/gpu/all.py OUT --folder SCRATCH
    python bench/gpu/all.py OUT --folder SCRATCH --only tests workflow*

SCRATCH needs 60 GB; each benchmark writes its result to OUT/NAME.txt as it ends, and what it
printed to OUT/NAME.log. The tests run beside the first benchmark's plates on other cores. One that
fails or exceeds its time does not stop the others; the exit status then is 1.
"""

from __future__ import annotations

import argparse
import fnmatch
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from harness import ROOT

BENCH = ROOT / "bench/gpu"


class Benchmark(NamedTuple):
    """A command, with {s} for the scratch folder, and the most seconds it may take.

    ``beside``: it runs at the same time as the next one.
    """

    command: str
    seconds: int
    beside: bool = False


PYTEST = "-m pytest -q -p no:cacheprovider"
PLATE = f"{BENCH}/make_plate.py {{s}}/plate1"
BENCHMARKS = {
    "tests": Benchmark(f"{PYTEST} -n 4 {ROOT}/tests/gpu --deselect-shared-gpu", 300, beside=True),
    "workflow-gpu": Benchmark(f"{BENCH}/workflow.py {{s}} --plates 6 --cells 1000000", 240),
    "workflow-cpu": Benchmark(
        f"{BENCH}/workflow.py {{s}} --plates 6 --cells 1000000 --backend cpu --map sample", 240
    ),
    "map": Benchmark(f"{BENCH}/map.py --cells 100000 11400000", 120),
    "make-zarr": Benchmark(f"{PLATE}.zarr --cells 500000", 60),
    "vs_rsc-zarr": Benchmark(
        f"{BENCH}/vs_rsc.py {{s}}/rsc --store {{s}}/plate1.zarr --peer 8:20000 16:50000 "
        "--rounds 3 --peer-rounds 1 --budget 544MB",
        200,
    ),
    "vs_rsc-256MB": Benchmark(
        f"{BENCH}/vs_rsc.py {{s}}/rsc --store {{s}}/plate1.zarr --peer --rounds 3", 80
    ),
    "serial": Benchmark(f"{ROOT}/bench/serial.py {{s}}/serial --cells 50000 200000", 120),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder for results and logs")
    parser.add_argument("--folder", type=Path, required=True, help="scratch folder")
    parser.add_argument("--only", nargs="*", default=["*"], help="names, with * and ?")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    args.folder.mkdir(parents=True, exist_ok=True)
    failed, beside = [], []
    for name, benchmark in BENCHMARKS.items():
        if not any(fnmatch.fnmatch(name, pattern) for pattern in args.only):
            continue
        job = start(name, benchmark, args)
        beside.append((name, job))
        if not benchmark.beside:
            failed += [name for name, job in beside if job.wait()]
            beside = []
    failed += [name for name, job in beside if job.wait()]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def start(name: str, benchmark: Benchmark, args: argparse.Namespace) -> subprocess.Popen:
    """Start a command under a time limit; print its seconds when it ends."""
    words = shlex.split(benchmark.command.format(s=args.folder))
    if "pytest" not in words and "make_plate" not in words[0]:
        words += ["--out", str(args.out / f"{name}.txt")]
    command = shlex.join([sys.executable, *words])
    log = shlex.quote(str(args.out / f"{name}.log"))
    begin = time.time()
    script = (
        f"timeout {benchmark.seconds} {command} > {log} 2>&1; code=$?; "
        f'echo "{name}: exit status $code after $(($(date +%s) - {begin:.0f})) s"; '
        f"tail -n 40 {log}; exit $code"
    )
    return subprocess.Popen(["bash", "-c", script])


if __name__ == "__main__":
    main()
