"""Benchmark of many small samples: all rules through Snakemake against a scanpy script in memory.

    python bench/samples.py FOLDER                       # 60 x 3,000 cells x 20,000 genes
    python bench/samples.py FOLDER --samples 500 --no-scanpy

scatlas: from gzip h5ad files to components, a map of some of the cells, atlas, figures and report.
scanpy: one script from the same files to components and the map of as many cells. Both choose 2,000
genes by batch and compute 50 components, with all cores, in turn; scatlas also without what the
script lacks: marker genes, explorer and copy by gene. Disk is what the run leaves.
Then one sample is replaced by another and the workflow runs again.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import runner
from make_plates import cells_of_kinds
from runner import ROOT, run_process, size_of
from workflow_run import Jobs, beside, idle_line, run_workflow

# Results that a script that ends at the map does not have.
NO_EXTRAS = {"markers": {"by": []}, "explore": {"page": False}, "by_gene": False}


def main() -> None:
    sizes = {"samples": 60, "cells": 3000, "genes": 20_000, "top": 2000, "comps": 50}
    parser = runner.parser(__doc__, folder="for samples and results", **sizes, rounds=1)
    parser.add_argument("--subset", type=int, default=20_000, help="cells of the map")
    parser.add_argument("--no-scanpy", action="store_true")
    args = parser.parse_args()
    folder = args.folder / f"{args.samples}x{args.cells}x{args.genes}"
    samples = make_samples(folder, args.samples, args.cells, args.genes)
    source = sum(map(size_of, samples))
    peer = [
        *(sys.executable, ROOT / "bench/sides/scanpy_samples.py", folder / "out_scanpy"),
        *("--top", args.top, "--comps", args.comps, "--embed", args.subset, "--plates", *samples),
    ]

    def build(*, again: bool = False, **settings: object) -> Jobs:
        return run_workflow(
            folder,
            samples,
            subset=args.subset,
            again=again,
            hvg={"n_top_genes": args.top},
            consensus={"n_top_genes": args.top},
            pca={"n_comps": args.comps},
            **settings,
        )

    ours, theirs, to_map = [], [], []
    for _ in range(args.rounds):
        shutil.rmtree(folder / "results", ignore_errors=True)
        to_map.append(build(**NO_EXTRAS).wall)
        shutil.rmtree(folder / "results", ignore_errors=True)
        ours.append(build())
        if not args.no_scanpy:
            theirs.append(run_process(peer, folder / "scanpy.log"))
    disk = size_of(folder / "results")
    peak = max(job.peak for job in ours[-1].records.values())
    least = statistics.median(to_map)
    ratio = f", ratio {statistics.median(run.wall for run in theirs) / least:.2f}" if theirs else ""
    lines = [
        *runner.head("scanpy", "anndata", "numba", "zarr", "snakemake"),
        f"# {args.samples} samples x {args.cells:,} cells x {args.genes:,} genes, "
        f"{ours[0].values / 1e6:.0f} M values, {source / 1e9:.2f} GB of gzip h5ad",
        *beside(ours, theirs),
        idle_line(ours[-1], len(os.sched_getaffinity(0))),
        f"scatlas without marker genes, explorer and copy by gene: {least:.1f} s{ratio}",
        f"peak of a process of scatlas {peak / 1e6:.0f} MB, "
        f"disk {disk / 1e9:.2f} GB: {disk / source:.1f} times the sources",
        f"snakemake -n of the finished atlas: {plan(folder):.1f} s",
    ]
    sample(1_000_000, args.cells, args.genes).write_h5ad(samples[0], compression="gzip")
    lines.append(f"again with one sample replaced: {build(again=True).wall:.1f} s")
    runner.publish(lines, args.out)


def plan(folder: Path) -> float:
    """Seconds of a dry run."""
    start = time.perf_counter()
    command = [
        *(sys.executable, "-m", "snakemake", "--snakefile", ROOT / "Snakefile", "-n", "--quiet"),
        *("--directory", folder, "--configfile", folder / "config.json"),
    ]
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def make_samples(folder: Path, n: int, cells: int, genes: int) -> list[Path]:
    """Make samples of droplet data in a folder, unless they exist."""
    paths = [folder / f"sample{i}.h5ad" for i in range(1, n + 1)]
    folder.mkdir(parents=True, exist_ok=True)
    for i, path in enumerate(paths):
        if not path.exists():
            sample(i, cells, genes).write_h5ad(path, compression="gzip")
    return paths


def sample(number: int, n_cells: int, n_genes: int) -> ad.AnnData:
    """Cells of six kinds with about 3,000 counts each; all samples are of one study."""
    study = np.random.default_rng(0)
    base = study.gamma(0.3, 1.0, n_genes)
    kinds = [base * study.lognormal(0, 1, n_genes) for _ in range(6)]
    shares = np.stack([np.cumsum(kind / kind.sum()) for kind in kinds])
    rng = np.random.default_rng([1, number])
    kind, depth = rng.integers(6, size=n_cells), rng.poisson(3000, n_cells)
    x = cells_of_kinds(rng, shares, kind, depth)
    obs = pd.DataFrame({"kind": kind.astype(str)}, index=[f"cell{i}" for i in range(n_cells)])
    return ad.AnnData(x, obs=obs, var=pd.DataFrame(index=[f"gene{j}" for j in range(n_genes)]))


if __name__ == "__main__":
    main()
