"""Benchmark of many small samples: all rules through Snakemake against a scanpy script in memory.

    python bench/samples.py FOLDER                       # 60 x 3,000 cells x 20,000 genes
    python bench/samples.py FOLDER --samples 500 --no-scanpy

scatlas: from gzip h5ad files to components, a map of some of the cells, atlas, figures and report.
scanpy: one script from the same files to components and the map of as many cells. Both choose 2,000
genes by batch and compute 50 components, with all cores, in turn. Disk is what the run leaves.
Then one sample is replaced by another and the workflow runs again.
"""

from __future__ import annotations

import argparse
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
import scipy.sparse as sp
from run_side import ROOT, machine, publish, run_side
from workflow_run import Jobs, by_rule, run_workflow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--cells", type=int, default=3000)
    parser.add_argument("--genes", type=int, default=20_000)
    parser.add_argument("--top", type=int, default=2000)
    parser.add_argument("--comps", type=int, default=50)
    parser.add_argument("--subset", type=int, default=20_000, help="cells of the map")
    parser.add_argument("--no-scanpy", action="store_true")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, help="also write the result to this file")
    args = parser.parse_args()
    folder = args.folder / f"{args.samples}x{args.cells}x{args.genes}"
    samples = make_samples(folder, args.samples, args.cells, args.genes)
    source = sum(path.stat().st_size for path in samples)
    peer = [
        *(sys.executable, ROOT / "bench/sides/scanpy_samples.py", folder / "out_scanpy"),
        *("--top", args.top, "--comps", args.comps, "--embed", args.subset, "--plates", *samples),
    ]

    def ours(*, again: bool = False) -> Jobs:
        return run_workflow(
            folder,
            samples,
            jobs=len(os.sched_getaffinity(0)),
            subset=args.subset,
            again=again,
            hvg={"n_top_genes": args.top},
            consensus={"n_top_genes": args.top},
            pca={"n_comps": args.comps},
        )

    runs, others = [], []
    for _ in range(args.rounds):
        shutil.rmtree(folder / "results", ignore_errors=True)
        runs.append(ours())
        if not args.no_scanpy:
            others.append(run_side(peer, folder / "scanpy.log"))
    seconds = statistics.median(run.wall for run in runs)
    disk = sum(path.stat().st_size for path in (folder / "results").rglob("*") if path.is_file())
    peak = max(job.peak for job in runs[-1].records.values())
    lines = [
        f"# python bench/samples.py FOLDER {' '.join(sys.argv[2:])}".rstrip(),
        machine("scatlas", "scanpy", "anndata", "numba", "zarr", "snakemake"),
        f"# {args.samples} samples x {args.cells:,} cells x {args.genes:,} genes, "
        f"{runs[0].values / 1e6:.0f} M values, {source / 1e9:.2f} GB of gzip h5ad",
        f"scatlas: {seconds:.1f} s, peak of a process {peak / 1e6:.0f} MB, "
        f"disk {disk / 1e9:.2f} GB: {disk / source:.1f} times the sources",
        "  seconds by rule, all jobs: "
        + ", ".join(f"{rule} {s:.1f}" for rule, (s, _) in by_rule(runs[-1]).items()),
    ]
    if others:
        theirs = statistics.median(run.wall for run in others)
        lines += [
            f"scanpy's script: {theirs:.1f} s, peak {others[-1].peak / 1e6:.0f} MB",
            "  seconds: " + ", ".join(f"{step} {s:.1f}" for step, s in others[-1].seconds.items()),
            f"ratio {theirs / seconds:.2f}",
        ]
    lines.append(f"snakemake -n of the finished atlas: {plan(folder):.1f} s")
    replace(samples[0], args.cells, args.genes)
    rerun = ours(again=True)
    lines.append(f"again with one sample replaced: {rerun.wall:.1f} s")
    publish(lines, args.out)


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


def replace(path: Path, cells: int, genes: int) -> None:
    """Replace a sample by other cells of the same study."""
    sample(1_000_000, cells, genes).write_h5ad(path, compression="gzip")


def sample(number: int, n_cells: int, n_genes: int) -> ad.AnnData:
    """Cells of six kinds with about 3,000 counts each; all samples are of one study."""
    study = np.random.default_rng(0)
    base = study.gamma(0.3, 1.0, n_genes)
    kinds = [base * study.lognormal(0, 1, n_genes) for _ in range(6)]
    shares = [np.cumsum(kind / kind.sum()) for kind in kinds]
    rng = np.random.default_rng([1, number])
    kind, depth = rng.integers(6, size=n_cells), rng.poisson(3000, n_cells)
    rows = []
    for k, n in zip(kind, depth, strict=True):
        drawn = np.searchsorted(shares[k], rng.random(n)).clip(max=n_genes - 1)
        rows.append(np.unique(drawn, return_counts=True))
    indptr = np.cumsum([0, *(genes.size for genes, _ in rows)])
    indices = np.concatenate([genes for genes, _ in rows]).astype(np.int32)
    counts = np.concatenate([counts for _, counts in rows]).astype(np.float32)
    x = sp.csr_matrix((counts, indices, indptr), shape=(n_cells, n_genes))
    obs = pd.DataFrame({"kind": kind.astype(str)}, index=[f"cell{i}" for i in range(n_cells)])
    return ad.AnnData(x, obs=obs, var=pd.DataFrame(index=[f"gene{j}" for j in range(n_genes)]))


if __name__ == "__main__":
    main()
