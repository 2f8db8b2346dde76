"""Peak memory of every rule on plates too large to hold: is it bounded by the block budget?

    python bench/memory.py FOLDER --plates 2 --cells 200000 --genes 62710

Simulates the plates in FOLDER (once), runs the workflow on them with one job at a time, and prints
what each job's process had resident at most, from the run records beside the manifests.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--plates", type=int, default=2)
    parser.add_argument("--cells", type=int, default=200_000)
    parser.add_argument("--genes", type=int, default=62_710)
    parser.add_argument("--budget", default="256MB")
    parser.add_argument("--comps", type=int, default=300)
    parser.add_argument("--out", type=Path, help="file for the table, beside standard output")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)

    plates = [args.folder / f"plate{i}.h5ad" for i in range(1, args.plates + 1)]
    if not all(path.exists() for path in plates):
        size = [
            "--plates",
            str(args.plates),
            "--cells",
            str(args.cells),
            "--genes",
            str(args.genes),
        ]
        make = ROOT / "bench/make_plates.py"
        subprocess.run([sys.executable, make, args.folder, *size], check=True)
    sheet = args.folder / "plates.tsv"
    rows = [f"{path.stem}\t{path.resolve()}" for path in plates]
    sheet.write_text("\n".join(["plate\tpath", *rows, ""]))
    config = args.folder / "config.json"
    settings = {
        "plates": "plates.tsv",
        "consensus": {"min_plates": 1},
        "pca": {"n_comps": args.comps},
        "subset": {"n_cells": 5000},
        "compute": {"block_budget": args.budget},
    }
    config.write_text(json.dumps(settings))
    command = [
        *(sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")),
        *("--directory", str(args.folder), "--configfile", str(config), "--cores", "2"),
        # One job at a time: each may use both cores, and none is slowed by another.
        *("--jobs", "1", "--forceall", "--quiet", "all", "--", "umap"),
    ]
    start = time.monotonic()
    subprocess.run(command, check=True, cwd=ROOT)
    wall = time.monotonic() - start
    report = table(args, wall)
    print(report)
    if args.out:
        args.out.write_text(report + "\n")


def table(args: argparse.Namespace, wall: float) -> str:
    manifests = args.folder / "results/manifests"
    records = {
        (path.parent.parent / path.stem).relative_to(manifests).as_posix(): json.loads(
            path.read_text()
        )
        for path in sorted(manifests.rglob("runs/*.json"))
    }
    values = sum(json.loads(p.read_text())["n_values"] for p in manifests.glob("load/plate?.json"))
    packages = ("scatlas", "anndata", "dask", "numba", "numpy", "zarr", "snakemake")
    lines = [
        (
            f"# python bench/memory.py FOLDER --plates {args.plates} --cells {args.cells} "
            f"--genes {args.genes} --budget {args.budget} --comps {args.comps}"
        ),
        f"# {time.strftime('%Y-%m-%d')}, {platform.machine()}, 2 cores, "
        + ", ".join(f"{p} {version(p)}" for p in packages),
        f"# {values / 1e6:.0f} M values, {values * 12 / 1e9:.1f} GB as float32 with int64 indices",
        f"# {wall:.0f} s with one job at a time",
        f"{'job':<26}{'peak MB':>9}{'seconds':>9}",
    ]
    lines += [
        f"{name:<26}{record['peak_memory_bytes'] / 1e6:>9.0f}{record['seconds']:>9.1f}"
        for name, record in records.items()
    ]
    worst = max(records, key=lambda name: records[name]["peak_memory_bytes"])
    lines.append(f"highest: {worst}, {records[worst]['peak_memory_bytes'] / 1e6:.0f} MB")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
