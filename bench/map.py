"""Benchmark of the map of all cells against scanpy, all parts in one run or each alone.

    python bench/map.py --out FILE
    python bench/map.py --parts scanpy --cells 100000 --threads 1 2 4 --rounds 2
    python bench/map.py --parts sizes --sizes 100000 1000000 2000000
    python bench/map.py --parts ingest --new 100000 1000000 --scanpy-new 1000000
    python bench/map.py --parts clusters --clustered 200000 20000

Cells are simulated: 400 groups of very unequal size with 8 inner dimensions each, in 50 components.

scanpy
    Neighbours and UMAP with the defaults, scatlas with each number of threads, scanpy with all, and
    scanpy's UMAP (umap-learn) of the graph of scatlas. Sides take turns in one process, after each
    has compiled on fewer cells. Recall is the share of the exact neighbours of 1,000 cells in the
    graph, "kept" the share of them that are as near on the map.
sizes
    The same of scatlas alone by number of cells, each in a fresh process, with its peak memory; and
    a model of 11.4 and 95.6 million cells on 16 cores (bench/map_sizes.py).
ingest
    Projection of new cells on a map of 100,000, beside ``sc.tl.ingest`` (bench/map_ingest.py).
clusters
    Leiden of all cells beside Leiden of a sample with votes (bench/map_clusters.py).
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

import map_clusters
import map_ingest
import map_scanpy
import map_sizes
from run_side import machine, publish

PARTS = ("scanpy", "sizes", "ingest", "clusters")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=PARTS)
    add("--cells", type=int, default=100_000, help="of scanpy")
    add("--threads", type=int, nargs="+", default=[1, 2, 4])
    add("--rounds", type=int, default=2)
    add("--sizes", type=int, nargs="+", default=[100_000, 200_000, 500_000, 1_000_000, 2_000_000])
    add("--reference", type=int, default=100_000, help="cells of the map")
    add("--new", type=int, nargs="+", default=[100_000, 1_000_000], help="cells, ascending")
    add("--scanpy-new", type=int, default=1_000_000, help="new cells that scanpy gets, at most")
    add("--clustered", type=int, nargs=2, default=[200_000, 20_000], help="cells, and the sample")
    add("--out", type=Path, help="file for the tables")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    parts = {
        "scanpy": lambda: map_scanpy.lines(args.cells, args.threads, args.rounds),
        "sizes": lambda: map_sizes.lines(args.sizes),
        "ingest": lambda: map_ingest.lines(args.reference, args.new, args.scanpy_new),
        "clusters": lambda: map_clusters.lines(*args.clustered),
    }
    packages = ("scatlas", "scanpy", "umap-learn", "pynndescent", "scipy", "numpy", "numba")
    lines = [f"# python {' '.join(sys.argv)}", machine(*packages)]
    for name in args.parts:
        lines += parts[name]()
        print("\n".join(lines), end="\n\n", file=sys.stderr, flush=True)
    publish(lines, args.out)


if __name__ == "__main__":
    main()
