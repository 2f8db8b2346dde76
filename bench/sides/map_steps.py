"""Side of bench/map.py: neighbours and UMAP of simulated cells, compiled before."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from map_cells import N_NEIGHBORS, Spent, random_labels, simulate, timed, with_components

import scatlas as sa


def main() -> None:
    n_cells = int(sys.argv[1])
    x = simulate(random_labels(n_cells))
    for n, say in ((min(n_cells, 12_000), False), (n_cells, True)):
        adata = with_components(x[:n])
        spent, _ = timed(sa.pp.neighbors, adata, N_NEIGHBORS, use_rep="X_pca")
        if say:
            report("neighbours", spent)
        spent, _ = timed(sa.tl.umap, adata)
        if say:
            report("UMAP", spent)
    print_json("recall", adata.uns["neighbors"]["params"].get("recall", 1.0))


def report(step: str, spent: Spent) -> None:
    print_json(step, spent.wall)
    print_json(f"{step}, CPU", spent.cpu)
    print_json(f"{step}, main thread", spent.main)


def print_json(name: str, value: float) -> None:
    print(json.dumps({"step": name, "seconds": value}), flush=True)


if __name__ == "__main__":
    main()
