"""Run the whole workflow through Snakemake on this machine; compare with the expected run time.

    python bench/gpu/workflow.py FOLDER --plates 6 --cells 1000000              # one GPU
    python bench/gpu/workflow.py FOLDER --plates 6 --cells 1000000 --backend cpu
    python bench/gpu/workflow.py FOLDER --plates 1 --cells 11441407 --genes 45854 \
        --preset config/cell-atlas-11m.yaml

From the plates' files to components, clusters, and a map of all cells, with the report. Makes
--sources gzip plates in Tahoe's layout in FOLDER (by make_plates.py, on the GPU), copies them
for the other plates, waits until the disk has them, and runs `snakemake` with the profile of such a
machine: several jobs at once, and two on the GPU. Sources and stores are in the page cache where
they fit. The first, uncounted run, of plates of a few cells, compiles the kernels.

Prints the seconds of the command, when each job ran and on how many cores, what `snakemake -n`
expected, and the average of the GPU's use.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import yaml

sys.path.append(str(Path(__file__).parents[1]))

import runner
from runner import ROOT
from workflow_run import QC, expected_time, idle_line, run_workflow

# As many as neighbours by an index and cells outside the sample take, which have own kernels.
FEW_CELLS, FEW_SAMPLED = 8000, 11_000


def main() -> None:
    sizes = {"plates": 6, "cells": 1_000_000, "genes": 62_710, "comps": 300}
    parser = runner.parser(__doc__, folder="for plates and results", **sizes)
    parser.add_argument("--sources", type=int, default=2, help="different plates to make")
    parser.add_argument("--backend", default="gpu", choices=["gpu", "cpu"])
    parser.add_argument("--map", default="all", choices=["all", "sample"], help="cells of the map")
    parser.add_argument("--subset", type=int, default=100_000, help="cells of the sample")
    parser.add_argument(
        "--all-results",
        action="store_true",
        help="marker genes, explore.html and by_gene.zarr, too",
    )
    parser.add_argument("--budget", default="auto", help="block budget of the jobs")
    parser.add_argument("--preset", type=Path, help="config to run, instead of these settings")
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    settings = {
        "backend": args.backend,
        "qc": QC,
        "consensus": {"min_plates": 2},
        "pca": {"n_comps": args.comps},
        "map": {"cells": args.map},
        "compute": {"block_budget": args.budget},
    }
    if args.preset:
        # Without its plates, and without its cluster of several GPUs.
        compute = {"backend": args.backend, "compute": {"block_budget": args.budget}}
        settings = yaml.safe_load(args.preset.read_text()) | compute
        del settings["plates"], settings["outdir"]
        args.subset = None
    if not args.all_results:
        settings |= {"markers": {"by": []}, "explore": {"page": False}, "by_gene": False}
    profile = ROOT / "profiles" / ("local-gpu" if args.backend == "gpu" else "default")
    run = {"options": ["--profile", str(profile)]}
    few = plates_of(args.folder / "few", min(2, args.plates), FEW_CELLS, args)
    compiling = settings | {"pca": {"n_comps": 50}}
    run_workflow(args.folder / "few", few, subset=args.subset and FEW_SAMPLED, **run, **compiling)
    compile_rounds((args.folder / "few/results/embedding").resolve(), args.backend)
    plates = plates_of(args.folder / "plates", args.sources, args.cells, args)
    # The sheet refuses two rows with one file.
    for number in range(len(plates), args.plates):
        path = plates[0].with_name(f"copy{number + 1}.h5ad")
        if not path.exists():
            shutil.copyfile(plates[number % args.sources], path)
        plates.append(path)
    os.sync()  # plates of users were written long ago
    read = gpu_use()
    with runner.sampled(read or (lambda: 0), 0.25) as use:
        jobs = run_workflow(args.folder, plates, subset=args.subset, **run, **settings)
    lines = runner.head("snakemake", "numpy", "anndata", "zarr", "h5py", "numba")
    lines += [
        f"# {args.plates} plates x {args.cells:,} cells x {args.genes:,} genes, "
        f"{jobs.values / 1e9:.2f}e9 values; {args.sources} of them are different",
        f"snakemake --profile {profile.name}, {cores} cores: {jobs.wall:.1f} s, "
        f"{jobs.values / jobs.wall / 1e6:.0f} M values/s",
        idle_line(jobs, cores),
        expected_time(args.folder, **run),
    ]
    if read:
        lines.append(f"use of the GPU, average of {len(use)} samples: {sum(use) / len(use):.0f}%")
    lines.append(f"{'job':<24}{'begin':>8}{'end':>8}{'seconds':>9}{'cores':>7}{'peak GB':>9}")
    for name, job in sorted(jobs.records.items(), key=lambda item: item[1].end):
        cores = job.processor_seconds / max(job.seconds, 0.01)
        times = f"{job.end - job.seconds:>8.0f}{job.end:>8.0f}{job.seconds:>9.1f}"
        lines.append(f"{name:<24}{times}{cores:>7.1f}{job.peak / 1e9:>9.2f}")
    runner.publish(lines, args.out)


def plates_of(folder: Path, n: int, n_cells: int, args: Namespace) -> list[Path]:
    """Make plates, unless they exist, all at once."""
    folder = folder / f"cells{n_cells}"
    processes = []
    paths = [folder / f"plate{number}.h5ad" for number in range(1, n + 1)]
    for number, path in enumerate(paths, 1):
        if not path.exists():
            size = ["--cells", str(n_cells), "--genes", str(args.genes), "--first", str(number)]
            make = [sys.executable, ROOT / "bench/make_plates.py", folder, "--gpu", *size]
            processes.append(subprocess.Popen(make))
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit("a plate could not be made")
    return paths


def compile_rounds(embedding: Path, backend: str) -> None:
    """Cluster a few cells as `leiden` clusters more than a million."""
    code = "import sys, leiden; leiden.IGRAPH_CELLS = 0; leiden.main(sys.argv[1:])"
    paths = ["--neighbors", embedding / "neighbors.zarr", "--leiden", embedding / "rounds.zarr"]
    rest = ["--manifest", embedding / "rounds.json", "--threads", "4", "--backend", backend]
    subprocess.run([sys.executable, "-c", code, *paths, *rest], check=True, cwd=ROOT / "scripts")


def gpu_use() -> Callable[[], int] | None:
    """Function that returns the use of the GPU in percent."""
    if shutil.which("nvidia-smi") is None:
        return None
    import pynvml

    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    return lambda: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu


if __name__ == "__main__":
    main()
