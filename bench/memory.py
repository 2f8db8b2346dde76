"""Benchmark of peak memory: of every rule, or of every out-of-core function.

    python bench/memory.py FOLDER                       # 2 plates of 50,000 and of 400,000 cells
    python bench/memory.py FOLDER --functions           # each function on a plate of 200,000

Simulates the plates in FOLDER (once), runs the workflow on each size with one job at a time, and
prints the peak resident memory of each rule's process from the run records, to see whether it
depends on the size of a plate.

With --functions each function runs in a separate process on a plate that stays on disk
(bench/sides/function_memory.py). Its peak above the memory before the call, without its result, is
compared with its bound: the block budget and the additional memory of docs/memory.md, or 40% of the
free memory for some functions. Ends with an error if a function exceeds its bound.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from run_side import ROOT, machine, publish
from workflow_run import QC, by_rule, make_plates, run_workflow

from scatlas._util.byte_sizes import parse_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--plates", type=int, default=2)
    parser.add_argument("--cells", type=int, nargs=2, default=[50_000, 400_000])
    parser.add_argument("--genes", type=int, default=62_710)
    parser.add_argument("--budget", default="256MB")
    parser.add_argument("--comps", type=int, default=300)
    parser.add_argument("--functions", action="store_true", help="measure functions, not rules")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    args = parser.parse_args()
    if args.functions:
        measure_functions(args)
        return
    peaks, values = [], []
    for cells in args.cells:
        folder = args.folder / f"cells{cells}"
        folder.mkdir(parents=True, exist_ok=True)
        jobs = run_workflow(
            folder,
            make_plates(folder, args.plates, cells, args.genes),
            jobs=len(os.sched_getaffinity(0)),
            subset=5000,
            qc=QC,
            consensus={"min_plates": args.plates},
            pca={"n_comps": args.comps},
            compute={"block_budget": args.budget},
        )
        peaks.append({rule: peak / 1e6 for rule, (_, peak) in by_rule(jobs).items()})
        values.append(jobs.values / args.plates / 1e6)
    small, large = peaks
    lines = [
        f"# python bench/memory.py FOLDER --plates {args.plates} --cells {args.cells[0]} "
        f"{args.cells[1]} --genes {args.genes} --budget {args.budget} --comps {args.comps}",
        machine("scatlas", "anndata", "dask", "numba", "numpy", "zarr", "snakemake"),
        f"# a plate: {values[0]:.0f} M and {values[1]:.0f} M values; peak of a rule's jobs in MB",
        f"{'rule':<18}{args.cells[0]:>10,}{args.cells[1]:>10,}{'ratio':>8}",
    ]
    lines += [
        f"{rule:<18}{small[rule]:>10.0f}{large[rule]:>10.0f}{large[rule] / small[rule]:>8.2f}"
        for rule in small
    ]
    publish(lines, args.out)


# Functions that keep values of many cells, up to this share of the free memory.
SHARE_OF_MEMORY = 0.4
KEEPING = (
    "tl.rank_genes_groups, wilcoxon",
    "tl.rank_genes_groups, logreg",
    "get.aggregate, median",
)
# Functions that sum the Gram matrix of 2,000 genes: four matrices with errors and results.
GRAMS = ("pp.pca", "pp.pca, scaled", "pp.scrublet")
GRAM_BYTES = 4 * 8 * 2000**2
# Neighbours of 60,000 cells and simulated doublets; tables per cell.
SCRUBLET_BYTES, CELL_BYTES = 5e8, 400
# Bytes per gene: 15 numbers of sums and tests for each of 50 cell lines.
RANKED_BYTES = 15 * 8 * 50


def measure_functions(args: argparse.Namespace) -> None:
    """Measure the peak memory of each function on one plate."""
    cells = 200_000
    (plate,) = make_plates(args.folder / f"cells{cells}", 1, cells, args.genes)
    lines = [
        f"# python bench/memory.py FOLDER --functions --genes {args.genes} --budget {args.budget}",
        machine("scatlas", "anndata", "dask", "numba", "numpy", "zarr"),
        f"# a plate of {cells:,} cells; MB; start: libraries, tables, compiled kernels",
        f"{'function':<46}{'s':>7}{'start':>8}{'peak':>8}{'result':>8}{'working':>9}{'bound':>8}",
    ]
    over = []
    side = [sys.executable, ROOT / "bench/sides/function_memory.py"]
    names = subprocess.run([*side, "--list"], check=True, capture_output=True, text=True).stdout
    for name in names.splitlines():
        command = [*side, plate, name, "--budget", args.budget]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        work = found["peak"] - found["start"] - found["result"]
        bound = parse_bytes(args.budget) + GRAM_BYTES * (name in GRAMS)
        if name == "pp.scrublet":
            bound += SCRUBLET_BYTES + CELL_BYTES * cells
        elif name == "tl.rank_genes_groups, t-test":
            bound += RANKED_BYTES * args.genes
        elif name == "get.aggregate":
            bound += found["result"]  # its sums are as large as the result
        if name in KEEPING:
            bound = SHARE_OF_MEMORY * found["left"]
        sizes = (found["start"], found["peak"], found["result"], work, bound)
        columns = "".join(
            f"{size / 1e6:>{w}.0f}" for size, w in zip(sizes, (8, 8, 8, 9, 8), strict=True)
        )
        lines.append(f"{name:<46}{found['seconds']:>7.1f}{columns}")
        print(lines[-1], file=sys.stderr, flush=True)
        if work > bound:
            over.append(name)
    publish(lines, args.out)
    if over:
        sys.exit(f"above the bound: {'; '.join(over)}")


if __name__ == "__main__":
    main()
