"""UMAP in rounds beside umap-learn's order of moves, on one graph: seconds and kept neighbours.

    python bench/sides/umap_rounds.py 100000 --threads 1 2

Simulated cells along the branches of a tree, 50 components, 15 exact or approximate neighbours of
``sa.pp.neighbors``. Sides take turns in one process, compiled before; each line has elapsed and
processor seconds, because other work on the machine changes the former only. Trustworthiness is that
of 5,000 cells among themselves.
"""

from __future__ import annotations

import argparse
import time

import anndata as ad
import numpy as np
from sklearn.manifold import trustworthiness

from scatlas import pp, tl
from scatlas.compute.threads import use_threads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cells", type=int)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--turns", type=int, default=2)
    args = parser.parse_args()
    for method in ("umap", "umap-learn"):
        tl.umap(with_graph(5000), maxiter=2, method=method)
    adata = with_graph(args.cells)
    shown = np.random.default_rng(1).choice(args.cells, min(args.cells, 5000), replace=False)
    sides = [("umap", n) for n in args.threads] + [("umap-learn", 1)]
    for method, n_threads in sides * args.turns:
        wall, processor = time.perf_counter(), time.process_time()
        with use_threads(n_threads):
            tl.umap(adata, method=method)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        kept = trustworthiness(adata.obsm["X_pca"][shown], adata.obsm["X_umap"][shown])
        print(
            f"{args.cells} cells, {method}, {n_threads} threads: {wall:.1f} s, "
            f"{processor:.1f} processor s, trustworthiness {kept:.4f}",
            flush=True,
        )


def with_graph(n_cells: int, *, n_branches: int = 30, width: int = 50) -> ad.AnnData:
    rng = np.random.default_rng(0)
    nodes = np.zeros((n_branches + 1, width))
    parents = [int(rng.integers(0, i)) for i in range(1, n_branches + 1)]
    for i, parent in enumerate(parents, 1):
        nodes[i] = nodes[parent] + rng.normal(size=width) * np.linspace(4, 0.6, width)
    branch = rng.choice(n_branches, n_cells, p=rng.dirichlet(np.full(n_branches, 1.5)))
    place = rng.random((n_cells, 1))
    x = nodes[1:][branch] * place + nodes[parents][branch] * (1 - place)
    x += rng.normal(size=(n_cells, width)) * np.linspace(1.2, 0.5, width)
    adata = ad.AnnData(np.zeros((n_cells, 1), np.float32))
    adata.obsm["X_pca"] = x.astype(np.float32)
    pp.neighbors(adata)
    return adata


if __name__ == "__main__":
    main()
