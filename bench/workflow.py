"""Benchmark of all rules through Snakemake against a plain scanpy script.

    python bench/workflow.py FOLDER                     # 4 plates x 200,000 cells

scatlas: `snakemake` with all rules, from sources to atlas, UMAP, figures and report, with one
process per job. scanpy: one script (bench/sides/scanpy_dask.py) from sources to the UMAP of as many
cells, without validation, atlas, report or reruns. Both use all cores, in turn, --rounds times.
"""

from __future__ import annotations

import sys

import runner
from runner import ROOT, run_process
from workflow_run import QC, beside, make_plates, run_workflow


def main() -> None:
    sizes = {"plates": 4, "cells": 200_000, "genes": 62_710, "comps": 300}
    parser = runner.parser(__doc__, folder="for plates and results", **sizes, rounds=1)
    parser.add_argument("--subset", type=int, default=20_000, help="cells of the UMAP")
    parser.add_argument("--chunk", type=int, default=20_000, help="cells per block of scanpy")
    parser.add_argument("--min-plates", type=int, default=2, help="votes for a consensus gene")
    args = parser.parse_args()
    layout = ("--index-dtype", "int32", "--chunk", "31000")
    plates = make_plates(args.folder, args.plates, args.cells, args.genes, *layout)
    peer = [
        *(sys.executable, ROOT / "bench/sides/scanpy_dask.py", args.folder / "out_scanpy"),
        *("--comps", args.comps, "--chunk", args.chunk, "--embed", args.subset),
        *("--min-plates", args.min_plates),
        *("--plates", *plates),
    ]
    settings = {"qc": QC, "consensus": {"min_plates": args.min_plates}}
    settings["pca"] = {"n_comps": args.comps}
    ours, theirs = [], []
    for _ in range(args.rounds):
        ours.append(run_workflow(args.folder, plates, subset=args.subset, **settings))
        theirs.append(run_process(peer, args.folder / "scanpy.log"))
    lines = [
        *runner.head("scanpy", "anndata", "dask", "numba", "zarr", "snakemake"),
        f"# {args.plates} plates x {args.cells:,} cells, {ours[0].values / 1e6:.0f} M values",
        *beside(ours, theirs),
    ]
    runner.publish(lines, args.out)


if __name__ == "__main__":
    main()
