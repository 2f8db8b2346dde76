"""Peak memory of every rule: does it depend on the size of a plate?

    python bench/memory.py FOLDER                       # 2 plates of 50,000 and of 400,000 cells

Simulates the plates in FOLDER (once), runs the workflow on each size with one job at a time, and
prints what each rule's process had resident at most, from the run records beside the manifests.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from run_side import machine, publish
from workflow_run import by_rule, make_plates, run_workflow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--plates", type=int, default=2)
    parser.add_argument("--cells", type=int, nargs=2, default=[50_000, 400_000])
    parser.add_argument("--genes", type=int, default=62_710)
    parser.add_argument("--budget", default="256MB")
    parser.add_argument("--comps", type=int, default=300)
    parser.add_argument("--out", type=Path, help="file for the table, beside standard output")
    args = parser.parse_args()
    peaks, values = [], []
    for cells in args.cells:
        folder = args.folder / f"cells{cells}"
        folder.mkdir(parents=True, exist_ok=True)
        jobs = run_workflow(
            folder,
            make_plates(folder, args.plates, cells, args.genes),
            jobs=len(os.sched_getaffinity(0)),
            min_plates=args.plates,
            subset=5000,
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


if __name__ == "__main__":
    main()
