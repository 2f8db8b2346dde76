"""Join the sample with its neighbours, UMAP and clusters."""

from __future__ import annotations

import json
from pathlib import Path

import h5py

from scatlas.io import atomic_path
from scatlas.workflow import script
from scatlas.workflow.sample import join_files, renumber


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--subset", type=Path, required=True, help="subset.h5ad")
    parser.add_argument("--parts", type=Path, nargs="+", required=True, help="h5ad of each step")
    parser.add_argument("--map", type=Path, help="manifest of map, which numbers the clusters")
    parser.add_argument("--embedding", type=Path, required=True, help="h5ad to write")
    args = parser.parse_args(argv)
    with script.recorded_run(args, outputs=[args.embedding]) as facts:
        with atomic_path(args.embedding) as path:
            join_files(path, args.subset, args.parts)
            if args.map:
                renumber(path, json.loads(args.map.read_text("utf-8"))["cluster_numbers"])
        with h5py.File(args.embedding, "r") as file:
            clusters = file["obs/leiden"]
            facts |= {"n_cells": clusters["codes"].size, "n_clusters": clusters["categories"].size}


if __name__ == "__main__":
    script.run_main(main)
