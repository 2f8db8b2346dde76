"""Side of bench/map.py: neighbours and UMAP of simulated cells, compiled before."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from map_cells import N_NEIGHBORS, random_labels, simulate, timed, with_components

import scatlas as sa


def main() -> None:
    n_cells = int(sys.argv[1])
    x = simulate(random_labels(n_cells))
    for n, say in ((min(n_cells, 12_000), False), (n_cells, True)):
        adata = with_components(x[:n])
        spent, _ = timed(sa.pp.neighbors, adata, N_NEIGHBORS, use_rep="X_pca")
        report("neighbours", *spent, say=say)
        spent, _ = timed(sa.tl.umap, adata)
        report("UMAP", *spent, say=say)
    report("recall", adata.uns["neighbors"]["params"].get("recall", 1.0), say=True)


def report(step: str, seconds: float, cpu: float | None = None, *, say: bool) -> None:
    if say:
        print(json.dumps({"step": step, "seconds": seconds}), flush=True)
        if cpu is not None:
            print(json.dumps({"step": f"{step}, CPU", "seconds": cpu}), flush=True)


if __name__ == "__main__":
    main()
