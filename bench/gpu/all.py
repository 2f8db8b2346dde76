"""Run every GPU benchmark and the tests of the GPU in one command, in less than ten minutes.

    python bench/gpu/all.py OUT --folder SCRATCH
    python bench/gpu/all.py OUT --folder SCRATCH --only tests workflow*

SCRATCH needs 60 GB. Each benchmark writes its result to OUT/NAME.txt and what it prints to
OUT/NAME.log. One that fails or exceeds its time does not stop the others; exit status 1 then.
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

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench/gpu"
_LINES = 25  # of each log that are printed


class Benchmark(NamedTuple):
    """A command, with {s} for the scratch folder, and the most seconds it may take."""

    command: str
    seconds: int


PYTEST = f"-m pytest -q -p no:cacheprovider {ROOT}/tests/gpu"
POOL_TESTS = f"{ROOT}/tests/gpu/test_compute.py"  # they fill the GPU's memory
SIZE = "--plates 6 --cells 1000000"
BENCHMARKS = {
    "tests": Benchmark(f"{PYTEST} -n 8 --dist worksteal --ignore {POOL_TESTS}", 160),
    "workflow-gpu": Benchmark(f"{BENCH}/workflow.py {{s}} {SIZE}", 300),
    "workflow-cpu": Benchmark(f"{BENCH}/workflow.py {{s}} {SIZE} --backend cpu --map sample", 200),
    "serial": Benchmark(f"{ROOT}/bench/serial.py {{s}}/serial --cells 50000 200000", 120),
    "tests-pool": Benchmark(f"-m pytest -q -p no:cacheprovider {POOL_TESTS}", 100),
    "make-zarr": Benchmark(
        f"{ROOT}/bench/make_plates.py {{s}} --gpu --zarr --index-dtype int32 --cells 500000", 60
    ),
    "vs_rsc-zarr": Benchmark(
        f"{BENCH}/vs_rsc.py {{s}}/rsc --store {{s}}/plate1.zarr --peer 8:20000 16:50000 "
        "--rounds 3 --peer-rounds 1 --budget 544MB",
        200,
    ),
    "vs_rsc-256MB": Benchmark(
        f"{BENCH}/vs_rsc.py {{s}}/rsc --store {{s}}/plate1.zarr --peer --rounds 3", 80
    ),
    "map": Benchmark(f"{BENCH}/map.py 1000000 11400000 --recall 0.98 0.98", 120),
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
    chosen = [
        name for name in BENCHMARKS if any(fnmatch.fnmatch(name, pattern) for pattern in args.only)
    ]
    failed = [name for name in chosen if run(name, BENCHMARKS[name], args)]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def run(name: str, benchmark: Benchmark, args: argparse.Namespace) -> int:
    """Exit status of a command, which gets a time limit; prints its seconds and its last lines."""
    words = shlex.split(benchmark.command.format(s=args.folder))
    if "pytest" not in words and "make_plate" not in words[0]:
        words += ["--out", str(args.out / f"{name}.txt")]
    log = args.out / f"{name}.log"
    begin = time.perf_counter()
    with log.open("w") as file:
        limit = ["timeout", "--kill-after=5", str(benchmark.seconds), sys.executable]
        code = subprocess.call([*limit, *words], stdout=file, stderr=subprocess.STDOUT)
    print(f"{name}: exit status {code} after {time.perf_counter() - begin:.0f} s")
    print("\n".join(log.read_text().splitlines()[-_LINES:]), flush=True)
    return code


if __name__ == "__main__":
    main()
