"""Neighbours and UMAP of scatlas beside scanpy's, and umap-learn's UMAP of scatlas's graph."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import map_cells as cells
import scanpy as sc

import scatlas as sa
from scatlas.compute.threads import use_threads

if TYPE_CHECKING:
    import anndata as ad
    import numpy as np

SAME_GRAPH = "same graph"  # scanpy's UMAP of the graph of scatlas
COMPILED_ON = 12_000


@dataclass
class Found:
    """Best times of a side, and what came out of its last run."""

    neighbors: cells.Spent | None = None
    umap: cells.Spent | None = None
    measures: tuple[float, float, float] | None = None
    bits: set[str] = field(default_factory=set)

    @property
    def wall(self) -> float:
        """Seconds of both steps."""
        return sum(step.wall for step in (self.neighbors, self.umap) if step)


def lines(n_cells: int, threads: list[int], n_rounds: int) -> list[str]:
    """Lines of the table. All sides compile first, then take turns."""
    x = cells.simulate(cells.random_labels(n_cells))
    rows = cells.draw(n_cells, cells.N_MEASURED)
    exact = cells.exact_neighbors(x, rows)
    n_cores = len(os.sched_getaffinity(0))
    sides = [("scatlas", n) for n in threads]
    sides += [("scanpy", n_cores), (SAME_GRAPH, n_cores)]
    found = {side: Found() for side in sides}
    for side in sides:
        run(side, cells.with_components(x[:COMPILED_ON]), Found())
    for _ in range(n_rounds):
        for side in sides:
            adata = cells.with_components(x)
            run(side, adata, found[side])
            if found[side].measures is None:
                layout = adata.obsm["X_umap"]
                found[side].measures = (
                    cells.recall(exact, rows, adata),
                    cells.trust(x, layout),
                    cells.kept_neighbors(exact, rows, layout),
                )
    bits = set.union(*(found[side].bits for side in sides if side[0] == "scatlas"))
    return [
        f"\n## neighbours and UMAP of {n_cells:,} cells x {cells.N_COMPS}, best of {n_rounds}; "
        f"trustworthiness of {min(cells.N_TRUSTED, n_cells):,} cells among themselves",
        f"{'side':<12}{'threads':>8}{'neighbours':>12}{'UMAP':>8}{'both':>8}{'CPU':>8}"
        f"{'faster':>8}{'recall':>8}{'trust':>8}{'kept':>8}",
        *(_row(side, found[side], found["scanpy", n_cores].wall) for side in sides),
        f"scatlas: {len(bits)} set of bits with {', '.join(map(str, threads))} threads",
    ]


def run(side: tuple[str, int], adata: ad.AnnData, found: Found) -> None:
    """Compute the neighbours and the UMAP with the defaults, and note times and bits."""
    name, n_threads = side
    with use_threads(n_threads):
        if name == "scanpy":
            spent, _ = cells.timed(sc.pp.neighbors, adata, cells.N_NEIGHBORS, use_rep="X_pca")
        else:
            spent, _ = cells.timed(sa.pp.neighbors, adata, cells.N_NEIGHBORS, use_rep="X_pca")
        if name != SAME_GRAPH:
            found.neighbors = min(spent, found.neighbors or spent)
        umap = sa.tl.umap if name == "scatlas" else sc.tl.umap
        spent, _ = cells.timed(umap, adata)
        found.umap = min(spent, found.umap or spent)
    arrays = [adata.obsm["X_umap"], *(adata.obsp[key].data for key in sorted(adata.obsp))]
    found.bits.add(_hash(arrays))


def _hash(arrays: list[np.ndarray]) -> str:
    total = hashlib.sha256()
    for array in arrays:
        total.update(array.tobytes())
    return total.hexdigest()


def _row(side: tuple[str, int], found: Found, scanpy: float) -> str:
    steps = [step for step in (found.neighbors, found.umap) if step]
    near = f"{found.neighbors.wall:>12.2f}" if found.neighbors else f"{'-':>12}"
    ratio = f"{scanpy / found.wall:>7.2f}x" if found.neighbors else f"{'-':>8}"
    return (
        f"{side[0]:<12}{side[1]:>8}{near}{found.umap.wall:>8.2f}{found.wall:>8.2f}"
        f"{sum(step.cpu for step in steps):>8.1f}{ratio}"
        + "".join(f"{value:>8.4f}" for value in found.measures)
    )
