"""Benchmark of all rules through Snakemake against a plain scanpy script.

    python bench/workflow.py FOLDER                     # 4 plates x 200,000 cells

scatlas: `snakemake` with all rules, from sources to atlas, UMAP, figures and report, with one
process per job. scanpy: one script (bench/sides/scanpy_dask.py) from sources to the UMAP of as many
cells, without validation, atlas, report or reruns. Both use all cores, in turn, --rounds times.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path

from run_side import ROOT, machine, publish, run_side
from workflow_run import QC, by_rule, make_plates, run_workflow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--plates", type=int, default=4)
    parser.add_argument("--cells", type=int, default=200_000)
    parser.add_argument("--genes", type=int, default=62_710)
    parser.add_argument("--comps", type=int, default=300)
    parser.add_argument("--subset", type=int, default=20_000, help="cells of the UMAP")
    parser.add_argument("--chunk", type=int, default=20_000, help="cells per block of scanpy")
    parser.add_argument("--min-plates", type=int, default=2, help="votes for a consensus gene")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, help="also write the result to this file")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    layout = ("--index-dtype", "int32", "--chunk", "31000")
    plates = make_plates(args.folder, args.plates, args.cells, args.genes, *layout)
    peer = [
        *(sys.executable, ROOT / "bench/sides/scanpy_dask.py", args.folder / "out_scanpy"),
        *("--comps", args.comps, "--chunk", args.chunk, "--embed", args.subset),
        *("--min-plates", args.min_plates),
        *("--plates", *plates),
    ]
    ours, theirs = [], []
    for _ in range(args.rounds):
        ours.append(
            run_workflow(
                args.folder,
                plates,
                jobs=len(os.sched_getaffinity(0)),
                subset=args.subset,
                qc=QC,
                consensus={"min_plates": args.min_plates},
                pca={"n_comps": args.comps},
            )
        )
        theirs.append(run_side(peer, args.folder / "scanpy.log"))
    seconds = [statistics.median(run.wall for run in runs) for runs in (ours, theirs)]
    lines = [
        f"# python bench/workflow.py FOLDER {' '.join(sys.argv[2:])}".rstrip(),
        machine("scatlas", "scanpy", "anndata", "dask", "numba", "zarr", "snakemake"),
        f"# {args.plates} plates x {args.cells:,} cells, {ours[0].values / 1e6:.0f} M values",
        f"scatlas, all rules through Snakemake: {seconds[0]:.1f} s",
        "  seconds by rule, all jobs (two may run at once): "
        + ", ".join(f"{rule} {s:.1f}" for rule, (s, _) in by_rule(ours[-1]).items()),
        f"scanpy's bare script: {seconds[1]:.1f} s, peak {theirs[-1].peak / 1e6:.0f} MB",
        "  seconds: " + ", ".join(f"{step} {s:.1f}" for step, s in theirs[-1].seconds.items()),
        f"ratio {seconds[1] / seconds[0]:.2f}",
    ]
    publish(lines, args.out)


if __name__ == "__main__":
    main()
