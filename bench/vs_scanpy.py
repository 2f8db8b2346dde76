"""Benchmark from plates to X_pca: scatlas against scanpy with Dask.

    python bench/vs_scanpy.py FOLDER                  # 4 plates x 50,000 cells x 62,710 genes
    python bench/vs_scanpy.py FOLDER --formats gzip --rounds 5 --chunk 10000

Makes the plates in FOLDER (once; gzip and uncompressed h5ad of the same counts, about 1,450 values
per cell). Then all sides do the same work in turn, --rounds times: filter, normalise, logarithm,
2,000 highly variable genes per plate, consensus of two plates (about 1,000 genes for simulated
plates), selection of these genes, merge, 300 components. The sides are

- scanpy with Dask as in the published notebook (bench/sides/scanpy_dask.py), with its best number
  of cells per block and one worker per core;
- scatlas's functions as in a notebook (bench/sides/scatlas_functions.py), with the same outputs;
- the scripts of the workflow in one process (bench/sides/scatlas_steps.py), which also store
  validated counts, tables and manifests, so no source is decoded again when bounds change.

All files are in the page cache. An uncounted run of each side on fewer plates compiles the kernels.
Times are medians; the seconds of a step are summed over the plates. Fails unless all sides find the
same genes on every plate and the same components.
"""

from __future__ import annotations

import json
import statistics
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import runner
from runner import ROOT, Run, run_process
from workflow_run import make_plates

PEER = "scanpy"
SIDES = {
    "functions": "scatlas_functions.py",
    "scripts": "scatlas_steps.py",
    PEER: "scanpy_dask.py",
}


def main() -> None:
    sizes = {"plates": 4, "cells": 50_000, "genes": 62_710, "comps": 300}
    parser = runner.parser(__doc__, folder="for plates and results", **sizes, rounds=3)
    parser.add_argument("--min-plates", type=int, default=2, help="votes for a consensus gene")
    parser.add_argument("--chunk", type=int, default=20_000, help="cells per block of scanpy")
    parser.add_argument("--formats", default="gzip,raw")
    args = parser.parse_args()
    lines = runner.head("scanpy", "anndata", "dask", "numba", "zarr", "h5py")
    for kind in args.formats.split(","):
        # The layout of AnnData.write_h5ad: int32 indices, chunks of 31,000.
        layout = ["--index-dtype", "int32", "--chunk", "31000"]
        layout += ["--no-compression"] if kind == "raw" else []
        size = (args.plates, args.cells, args.genes)
        plates = make_plates(args.folder / kind, *size, *layout)
        runs: dict[str, list[Run]] = {side: [] for side in SIDES}
        for side in SIDES:
            run_round(side, plates[: args.min_plates], args)  # not counted: compiles kernels
        for _ in range(args.rounds):
            for side in SIDES:
                runs[side].append(run_round(side, plates, args))
        difference = compare(args.folder)
        lines += table(kind, runs, difference)
        print("\n".join(lines), file=sys.stderr, flush=True)
    runner.publish(lines, args.out)


def run_round(side: str, plates: list[Path], args: Namespace) -> Run:
    """Run one side once."""
    own = ["--chunk", args.chunk] if side == PEER else []
    out = args.folder / f"out_{side}"
    same = ["--comps", args.comps, "--min-plates", args.min_plates, "--plates", *plates]
    command = [sys.executable, ROOT / "bench/sides" / SIDES[side], out, *own, *same]
    for path in plates:  # another side may have evicted them from the page cache
        runner.warm(path)
    return run_process(command, args.folder / f"{side}.log")


def compare(folder: Path) -> float:
    """Check that all sides agree; return the largest distance of a component from scanpy's span."""
    theirs = json.loads((folder / f"out_{PEER}/result.json").read_text())
    # Components of nearly equal variance may be rotated: each must lie in the span of scanpy's.
    # scanpy's float32 Gram matrix limits the agreement.
    PCs = np.load(folder / f"out_{PEER}/PCs.npy").astype(float)
    span, _ = np.linalg.qr(PCs)
    closest = 1.0
    for side in SIDES.keys() - {PEER}:
        ours = json.loads((folder / f"out_{side}/result.json").read_text())
        assert ours["hvgs"] == theirs["hvgs"], f"{side}: highly variable genes differ"
        assert ours["genes"] == theirs["genes"], f"{side}: consensus genes differ"
        a = np.load(folder / f"out_{side}/PCs.npy").astype(float)
        assert a.shape == PCs.shape
        inside = np.linalg.norm(span.T @ a, axis=0)[:-10].min()
        leading = np.abs((a * PCs).sum(axis=0))[:20].min()
        assert inside > 0.999, f"{side}: a component is not the peer's: {inside}"
        assert leading > 0.999, f"{side}: a leading component is not the peer's: {leading}"
        closest = min(closest, float(inside))
    return 1 - closest


def table(kind: str, runs: dict[str, list[Run]], difference: float) -> list[str]:
    """Table of results of one format."""
    lines = [f"\n## {kind} h5ad to X_pca, medians of {len(runs[PEER])} rounds"]
    for side in SIDES:
        steps = {
            step: statistics.median(run.seconds[step] for run in runs[side])
            for step in runs[side][0].seconds
        }
        step_times = ", ".join(f"{step} {seconds:.2f}" for step, seconds in steps.items())
        lines.append(f"{side}: {step_times}")
    lines.append(f"{'':<10}{'seconds':>9}{'rounds':>32}{'peak MB':>10}{'ratio':>8}  by round")
    theirs = [run.total for run in runs[PEER]]
    for side in SIDES:
        totals = [run.total for run in runs[side]]
        each = " ".join(f"{total:.2f}" for total in totals)
        peak = max(run.peak for run in runs[side]) / 1e6
        ratio = statistics.median(theirs) / statistics.median(totals)
        ratios = " ".join(f"{b / a:.1f}" for a, b in zip(totals, theirs, strict=True))
        median = statistics.median(totals)
        lines.append(f"{side:<10}{median:>9.2f}{each:>32}{peak:>10.0f}{ratio:>8.1f}  {ratios}")
    lines.append(
        f"the same genes on all plates; components within {difference:.0e} of the peer's span"
    )
    return lines


if __name__ == "__main__":
    main()
