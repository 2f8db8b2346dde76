"""Seconds that a job of one tiny plate takes on the GPU, from the command to its end.

    python bench/gpu/start.py FOLDER --rounds 5 --out FILE

Nearly all of it is the start: Python, imports, CUDA, the pool of memory, kernels from CuPy's cache.
``select_genes.py`` runs in a new Python, and as the workflow runs it, forked from a process whose
libraries are imported; each on the GPU and on the CPU. The second table splits the start of
CUDA in a new Python. Runs take turns; the first of each is not counted.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import scatlas as sa

sys.path.append(str(Path(__file__).parents[1]))

import runner
from runner import ROOT

CLIENT = ROOT / "src/scatlas/workflow/fork_client.py"
PHASES = """
import json, time
times, last = {}, time.perf_counter()
def done(name):
    global last
    times[name], last = time.perf_counter() - last, time.perf_counter()
from scatlas.compute.backend import use_backend
done("import scatlas.compute")
import cupy
done("import cupy")
import rmm
done("import rmm")
with use_backend("gpu"):
    done("use_backend: lock, CUDA, pool")
    cupy.arange(10).sum().item()
    done("first kernel of CuPy, from its cache")
print(json.dumps(times))
"""


def main() -> None:
    args = runner.parser(__doc__, folder="for the plate", rounds=5).parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    command = prepare(args.folder)
    sides = [(way, backend) for way in ("new Python", "forked") for backend in ("gpu", "cpu")]
    seconds: dict[tuple[str, str], list[float]] = {side: [] for side in sides}
    for _ in range(args.rounds + 1):
        for side in sides:
            seconds[side].append(timed(args.folder, command, *side))
    lines = [*runner.head("numpy", "cupy-cuda13x"), "job of 100 cells x 400 genes: seconds"]
    for (way, backend), values in seconds.items():
        middle = statistics.median(values[1:])
        lines.append(
            f"{way:12}{backend}  {middle:.2f}  ({min(values[1:]):.2f} to {max(values):.2f})"
        )
    phases = [
        json.loads(subprocess.check_output([sys.executable, "-c", PHASES], text=True))
        for _ in range(args.rounds + 1)
    ]
    lines += ["start of CUDA in a new Python: seconds"]
    for name in phases[0]:
        lines.append(f"{statistics.median(run[name] for run in phases[1:]):.2f}  {name}")
    runner.publish(lines, args.out)


def prepare(folder: Path) -> list[str]:
    """Command of ``select_genes.py`` for a tiny plate."""
    plate = sa.datasets.simulate_plate(1, n_cells=100, n_genes=400)
    plate.write_h5ad(folder / "plate.h5ad", compression="gzip")
    store, factors = folder / "counts.zarr", folder / "factors.parquet"
    step = f"--plate none --threads 4 --manifest {folder}/manifest.json"

    def run(name: str, options: str) -> None:
        script = ROOT / f"scripts/{name}.py"
        subprocess.run([sys.executable, script, *f"{step} {options}".split()], check=True)

    run("load", f"--source {folder}/plate.h5ad --store {store}")
    run("qc_filter", f"--store {store} --table {folder}/qc.parquet --summary {folder}/qc.json")
    run("normalize", f"--qc {folder}/qc.parquet --table {factors}")
    (folder / "genes.tsv").write_text("\n".join(["gene", *plate.var_names[:20], ""]))
    options = f"{step} --store {store} --size-factors {factors} --genes {folder}/genes.tsv "
    options += f"--selected {folder}/selected.zarr --gram {folder}/gram.zarr"
    return [str(ROOT / "scripts/select_genes.py"), *options.split()]


def timed(folder: Path, command: list[str], way: str, backend: str) -> float:
    """Seconds of one job."""
    python = [sys.executable, "-IS", str(CLIENT)] if way == "forked" else [sys.executable]
    env = os.environ | {"SCATLAS_FORK_SERVER": str(os.getpid())}
    begin = time.perf_counter()
    with (folder / f"{way}-{backend}.log").open("w") as log:
        subprocess.run(
            [*python, *command, "--backend", backend], env=env, check=True, stderr=log, stdout=log
        )
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
