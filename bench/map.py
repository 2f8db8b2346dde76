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
    a model of 11.4 and 95.6 million cells on 16 cores, from measured costs alone. CPU seconds per
    cell: for neighbours ``a + b * sqrt(n)``, as a cell is compared with ``2.5 * sqrt(n)`` centres
    and with some lists of ``sqrt(n) / 2.5`` cells; for UMAP ``a + b * log2(n)``, as the rounds are
    the same and misses of the caches grow. Both are fitted to all sizes. The serial share ``s`` is
    that of the main thread, which waits while others work, at the largest size: ``c`` CPU seconds
    take ``c * (s + (1 - s) / t)`` seconds on ``t`` threads. Peaks per cell are those between the
    two largest sizes. Not in the model: memory bandwidth that cores share, and threads that wait
    for the last one of a round.
ingest
    Projection of new cells on a map of 100,000, beside ``sc.tl.ingest``. Both sides map the group
    and the UMAP coordinates of the same new cells onto the same reference, each in a fresh process:
    X of 100 genes, stored dense. scatlas reads it by blocks while it projects, scanpy before.
    Accuracy is the share of new cells with the simulated group. Groups lie apart, and scanpy's
    approximate search (pynndescent, started from the graph of the reference) then finds cells of
    other groups, whoever has computed the reference's neighbours: its accuracy and trustworthiness
    here are lower than on groups that touch, its time is that of its usual work.
    `tests/parity/test_ingest_vs_scanpy.py` compares both sides where both are exact.
clusters
    Leiden of all cells beside Leiden of a sample, whose other cells take the vote of their nearest.
    A group is found if a cluster has a Jaccard index of at least 0.5 with it; groups of up to 300
    cells are rare. A sample with strata holds at least 30 cells of each group.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import anndata as ad
import map_cells as cells
import numpy as np
import pandas as pd
import psutil
import runner
from runner import Run, run_process
from scipy.optimize import nnls
from sklearn.metrics import adjusted_rand_score

import scatlas as sa
from scatlas.compute.threads import use_threads
from scatlas.matrix import inverted_lists
from scatlas.matrix.projection import vote_labels

SAME_GRAPH = "same graph"  # scanpy's UMAP of the graph of scatlas
COMPILED_ON = 12_000
STEPS = {"neighbours": np.sqrt, "UMAP": np.log2}
MODEL_CELLS, MODEL_CORES = (11_400_000, 95_600_000), 16
N_GENES = 100
N_CLUSTER_GROUPS, SMALLEST, N_STRATUM, N_RARE, FOUND = 60, 30, 30, 300, 0.5


def main() -> None:
    parts = {
        "scanpy": lambda: beside_scanpy(args.cells, args.threads, args.rounds),
        "sizes": lambda: by_size(args.sizes),
        "ingest": lambda: ingested(args.reference, args.new, args.scanpy_new),
        "clusters": lambda: clustered(*args.clustered),
    }
    parser = runner.parser(__doc__, cells=100_000, rounds=2, reference=100_000)
    add = parser.add_argument
    add("--parts", nargs="+", choices=parts, default=[*parts])
    add("--threads", type=int, nargs="+", default=[1, 2, 4])
    add("--sizes", type=int, nargs="+", default=[100_000, 200_000, 500_000, 1_000_000, 2_000_000])
    add("--new", type=int, nargs="+", default=[100_000, 1_000_000], help="cells, ascending")
    add("--scanpy-new", type=int, default=1_000_000, help="new cells that scanpy gets, at most")
    add("--clustered", type=int, nargs=2, default=[200_000, 20_000], help="cells, and the sample")
    add("--here", nargs="+", help=argparse.SUPPRESS)  # a side of a part in this process
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.here:
        name, *values = args.here
        {"sizes": size_here, "ingest": ingest_here}[name](*values)
        return
    lines = runner.head("scanpy", "umap-learn", "pynndescent", "scipy", "numpy", "numba")
    for name in args.parts:
        lines += parts[name]()
        print("\n".join(lines), end="\n\n", file=sys.stderr, flush=True)
    runner.publish(lines, args.out)


def in_fresh_process(folder: Path, *words: object) -> Run:
    """Run a side, and return its figures as seconds of steps."""
    return run_process([sys.executable, __file__, "--here", *words], folder / "log.txt")


# -- beside scanpy ---------------------------------------------------------------------------------


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


def beside_scanpy(n_cells: int, threads: list[int], n_rounds: int) -> list[str]:
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
        *(_row_of_side(side, found[side], found["scanpy", n_cores].wall) for side in sides),
        f"scatlas: {len(bits)} set of bits with {', '.join(map(str, threads))} threads",
    ]


def run(side: tuple[str, int], adata: ad.AnnData, found: Found) -> None:
    """Compute the neighbours and the UMAP with the defaults, and note times and bits."""
    import scanpy as sc  # not in a fresh process of scatlas, whose memory is measured

    name, n_threads = side
    with use_threads(n_threads):
        near = (sc if name == "scanpy" else sa).pp.neighbors
        spent, _ = cells.timed(near, adata, cells.N_NEIGHBORS, use_rep="X_pca")
        if name != SAME_GRAPH:
            found.neighbors = min(spent, found.neighbors or spent)
        umap = sa.tl.umap if name == "scatlas" else sc.tl.umap
        spent, _ = cells.timed(umap, adata)
        found.umap = min(spent, found.umap or spent)
    arrays = [adata.obsm["X_umap"], *(adata.obsp[key].data for key in sorted(adata.obsp))]
    found.bits.add(hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest())


def _row_of_side(side: tuple[str, int], found: Found, scanpy: float) -> str:
    steps = [step for step in (found.neighbors, found.umap) if step]
    near = f"{found.neighbors.wall:>12.2f}" if found.neighbors else f"{'-':>12}"
    ratio = f"{scanpy / found.wall:>7.2f}x" if found.neighbors else f"{'-':>8}"
    return (
        f"{side[0]:<12}{side[1]:>8}{near}{found.umap.wall:>8.2f}{found.wall:>8.2f}"
        f"{sum(step.cpu for step in steps):>8.1f}{ratio}"
        + "".join(f"{value:>8.4f}" for value in found.measures)
    )


# -- by number of cells ----------------------------------------------------------------------------


def by_size(sizes: list[int]) -> list[str]:
    """Lines of the table and of the model."""
    n_threads = len(os.sched_getaffinity(0))
    runs = {}
    with tempfile.TemporaryDirectory() as folder:
        for n_cells in sizes:
            runs[n_cells] = in_fresh_process(Path(folder), "sizes", n_cells)
    table = [
        f"\n## scatlas by number of cells, {n_threads} threads, a fresh process each",
        f"{'cells':>12}{'neighbours':>12}{'UMAP':>9}{'both':>9}{'CPU':>9}{'us per cell':>13}"
        f"{'peak GB':>9}{'recall':>8}",
    ]
    for n_cells, run in runs.items():
        walls = [run.seconds[step] for step in STEPS]
        cpu = sum(run.seconds[f"{step}, CPU"] for step in STEPS)
        table.append(
            f"{n_cells:>12,}{walls[0]:>12.1f}{walls[1]:>9.1f}{sum(walls):>9.1f}{cpu:>9.1f}"
            f"{cpu / n_cells * 1e6:>13.1f}{run.peak / 1e9:>9.2f}{run.seconds['recall']:>8.4f}"
        )
    return table + (_model(runs) if len(runs) > 1 else [])


def _model(runs: dict[int, Run]) -> list[str]:
    sizes = np.array(sorted(runs))
    table = [
        f"model of {MODEL_CORES} cores, from these rows alone: see bench/map.py",
        f"{'cells':>12}{'neighbours':>12}{'UMAP':>9}{'both':>9}{'CPU':>9}{'minutes':>13}"
        f"{'peak GB':>9}",
    ]
    peaks = [runs[n].peak for n in sizes[-2:]]
    bytes_per_cell = (peaks[1] - peaks[0]) / (sizes[-1] - sizes[-2])
    last = runs[sizes[-1]].seconds
    serial = {step: last[f"{step}, main thread"] / last[f"{step}, CPU"] for step in STEPS}
    for n_cells in MODEL_CELLS:
        walls, cpus = [], []
        for step, growth in STEPS.items():
            cost = [runs[n].seconds[f"{step}, CPU"] / n for n in sizes]
            (a, b), _ = nnls(np.column_stack([np.ones(sizes.size), growth(sizes)]), cost)
            cpus.append((a + b * growth(n_cells)) * n_cells)
            walls.append(cpus[-1] * (serial[step] + (1 - serial[step]) / MODEL_CORES))
        peak = peaks[1] + bytes_per_cell * (n_cells - sizes[-1])
        table.append(
            f"{n_cells:>12,}{walls[0]:>12.0f}{walls[1]:>9.0f}{sum(walls):>9.0f}{sum(cpus):>9.0f}"
            f"{sum(walls) / 60:>13.1f}{peak / 1e9:>9.0f}"
        )
    shares = ", ".join(f"{step} {share:.1%}" for step, share in serial.items())
    return [*table, f"serial share of the CPU seconds: {shares}"]


def size_here(n_cells: str) -> None:
    """Neighbours and UMAP of simulated cells in this process, compiled before."""
    n_cells = int(n_cells)
    x = cells.simulate(cells.random_labels(n_cells))
    for n in (min(n_cells, COMPILED_ON), n_cells):
        adata = cells.with_components(x[:n])
        near, _ = cells.timed(sa.pp.neighbors, adata, cells.N_NEIGHBORS, use_rep="X_pca")
        umap, _ = cells.timed(sa.tl.umap, adata)
    for step, spent in zip(STEPS, (near, umap), strict=True):
        runner.say_step(step, spent.wall)
        runner.say_step(f"{step}, CPU", spent.cpu)
        runner.say_step(f"{step}, main thread", spent.main)
    runner.say_step("recall", adata.uns["neighbors"]["params"].get("recall", 1.0))


# -- projection of new cells -----------------------------------------------------------------------


def ingested(n_reference: int, sizes: list[int], scanpy_up_to: int) -> list[str]:
    """Lines of the table: scatlas with each number of new cells, scanpy with the largest."""
    table = [
        f"\n## projection on {n_reference:,} cells, a fresh process each; "
        f"trustworthiness of {min(cells.N_TRUSTED, *sizes):,} new cells among themselves",
        f"{'new cells':>12}  {'side':<9}{'seconds':>9}{'CPU':>9}{'us per cell':>13}{'faster':>8}"
        f"{'peak GB':>9}{'start GB':>10}{'accuracy':>10}{'trust':>8}",
    ]
    genes = np.random.default_rng(2).normal(size=(cells.N_COMPS, N_GENES))
    genes = np.linalg.qr(genes.T)[0].T.astype(np.float32)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reference = _plate(n_reference, genes, seed=1)
        sa.pp.pca(reference, n_comps=cells.N_COMPS)
        sa.pp.neighbors(reference)  # with use_rep scanpy would take X for the new cells
        sa.tl.umap(reference)
        reference.write_h5ad(folder / "reference.h5ad")
        _plate(1000, genes, seed=3).write_zarr(folder / "1000.zarr")  # kernels compile on these
        for n_cells in sorted({*sizes, min(sizes[-1], scanpy_up_to)}):
            _plate(n_cells, genes, seed=2).write_zarr(folder / f"{n_cells}.zarr")
        ours = {n: in_fresh_process(folder, "ingest", "scatlas", folder, n) for n in sizes}
        n_scanpy = min(sizes[-1], scanpy_up_to)
        theirs = in_fresh_process(folder, "ingest", "scanpy", folder, n_scanpy)
        # Extrapolated if scanpy had fewer cells.
        scanpy = theirs.seconds["ingest"] / n_scanpy
        for n, run in ours.items():
            table.append(_row_of_ingest("scatlas", folder, n, run, scanpy))
        table.append(_row_of_ingest("scanpy", folder, n_scanpy, theirs, scanpy))
        if n_scanpy < sizes[-1]:
            table.append(
                f"scanpy had {n_scanpy:,} cells; linear extrapolation to {sizes[-1]:,}: "
                f"{scanpy * sizes[-1]:.0f} s"
            )
    return table


def _plate(n_cells: int, genes: np.ndarray, seed: int) -> ad.AnnData:
    label = cells.random_labels(n_cells, seed)
    adata = ad.AnnData(cells.simulate(label, seed) @ genes)
    adata.obs["group"] = pd.Categorical.from_codes(label, [str(i) for i in range(cells.N_GROUPS)])
    return adata


def ingest_here(side: str, folder: str, n_cells: str) -> None:
    """Ingest new cells in this process, compiled before; reading is no part of scanpy's time."""
    folder, library, read = Path(folder), sa, sa.read_lazy
    if side == "scanpy":
        import scanpy as library

        read = ad.read_zarr
    reference = ad.read_h5ad(folder / "reference.h5ad")
    how = {"obs": "group", "embedding_method": "umap"}
    library.tl.ingest(read(folder / "1000.zarr"), reference, **how)
    runner.say_step("memory before", psutil.Process().memory_info().rss)
    adata = read(folder / f"{n_cells}.zarr")
    spent, _ = cells.timed(library.tl.ingest, adata, reference, **how)
    runner.say_step("ingest", spent.wall)
    runner.say_step("ingest, CPU", spent.cpu)
    labels = adata.obs["group"].to_numpy().astype(str)
    np.savez(folder / f"{side}-{n_cells}.npz", layout=adata.obsm["X_umap"], labels=labels)


def _row_of_ingest(side: str, folder: Path, n_cells: int, run: Run, scanpy: float) -> str:
    found = np.load(folder / f"{side}-{n_cells}.npz")
    truth = ad.read_zarr(folder / f"{n_cells}.zarr")
    accuracy = np.mean(found["labels"] == truth.obs["group"].to_numpy().astype(str))
    trust = cells.trust(truth.X, found["layout"])
    wall, cpu = run.seconds["ingest"], run.seconds["ingest, CPU"]
    return (
        f"{n_cells:>12,}  {side:<9}{wall:>9.1f}{cpu:>9.1f}{wall / n_cells * 1e6:>13.1f}"
        f"{scanpy * n_cells / wall:>7.1f}x{run.peak / 1e9:>9.2f}"
        f"{run.seconds['memory before'] / 1e9:>10.2f}{accuracy:>10.4f}{trust:>8.4f}"
    )


# -- clusters --------------------------------------------------------------------------------------


def clustered(n_cells: int, n_sample: int) -> list[str]:
    """Lines of the table."""
    truth = unequal_groups(n_cells)
    x = cells.simulate(truth)
    rng = np.random.default_rng(3)
    cluster(x[:2000], np.arange(1000))  # compiles
    by_chance = np.sort(rng.choice(n_cells, n_sample, replace=False))
    sides = {
        "all cells": np.arange(n_cells),
        "sample": by_chance,
        "sample with strata": stratified(truth, n_sample, rng),
    }
    found = {name: cluster(x, rows) for name, rows in sides.items()}
    whole = found["all cells"][1]
    n_rare = int((np.bincount(truth) <= N_RARE).sum())
    table = [
        f"\n## Leiden (rounds) of {n_cells:,} cells in {N_CLUSTER_GROUPS} groups from {SMALLEST} "
        f"to {np.bincount(truth).max():,} cells, and of samples of {n_sample:,} with votes",
        f"{'clusters of':<20}{'cells':>9}{'seconds':>9}{'CPU':>8}{'clusters':>10}"
        f"{'ARI, all cells':>16}{'ARI, groups':>13}{'found':>8}{'rare found':>12}",
    ]
    for name, (spent, labels) in found.items():
        jaccard = best_jaccard(truth, labels)
        rare = (jaccard >= FOUND) & (np.bincount(truth) <= N_RARE)
        table.append(
            f"{name:<20}{sides[name].size:>9,}{spent.wall:>9.1f}{spent.cpu:>8.1f}"
            f"{labels.max() + 1:>10}{adjusted_rand_score(whole, labels):>16.4f}"
            f"{adjusted_rand_score(truth, labels):>13.4f}"
            f"{(jaccard >= FOUND).sum():>5}/{N_CLUSTER_GROUPS}{rare.sum():>9}/{n_rare}"
        )
    return table


def unequal_groups(n_cells: int) -> np.ndarray:
    """Labels of groups whose sizes grow by the same factor, from SMALLEST cells."""
    low, high = 1.0, n_cells / SMALLEST
    for _ in range(60):
        top = (low * high) ** 0.5
        sizes = SMALLEST * np.geomspace(1, top, N_CLUSTER_GROUPS)
        low, high = (top, high) if sizes.sum() < n_cells else (low, top)
    sizes = sizes.astype(int)
    sizes[-1] += n_cells - sizes.sum()
    return np.random.default_rng(4).permutation(np.repeat(np.arange(N_CLUSTER_GROUPS), sizes))


def stratified(groups: np.ndarray, n_sample: int, rng: np.random.Generator) -> np.ndarray:
    """Cells of a sample: N_STRATUM of each group, the others by chance."""
    order = rng.permutation(groups.size)
    by_group = order[np.argsort(groups[order], kind="stable")]
    starts = np.searchsorted(groups[by_group], np.arange(groups.max() + 1))
    rank = np.arange(groups.size) - starts[groups[by_group]]
    first = by_group[rank < N_STRATUM]
    others = rng.permutation(by_group[rank >= N_STRATUM])[: n_sample - first.size]
    return np.sort(np.concatenate([first, others]))


def cluster(x: np.ndarray, rows: np.ndarray) -> tuple[cells.Spent, np.ndarray]:
    """Time and labels of Leiden of ``rows``; others take the label of their nearest of these."""

    def labels() -> np.ndarray:
        adata = cells.with_components(np.ascontiguousarray(x[rows]))
        sa.pp.neighbors(adata, cells.N_NEIGHBORS, use_rep="X_pca")
        sa.tl.leiden(adata, flavor="rounds")
        codes = adata.obs["leiden"].cat.codes.to_numpy().astype(np.int64)
        out = np.empty(len(x), np.int64)
        out[rows] = codes
        others = np.setdiff1d(np.arange(len(x)), rows)
        if others.size:
            index = inverted_lists.build(adata.obsm["X_pca"], cells.N_NEIGHBORS)
            out[others] = vote_labels(codes, *index.search(x[others], cells.N_NEIGHBORS))[0]
        return out

    return cells.timed(labels)


def best_jaccard(truth: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Largest Jaccard index of each group with a cluster."""
    both = np.zeros((truth.max() + 1, labels.max() + 1))
    np.add.at(both, (truth, labels), 1)
    either = both.sum(axis=1, keepdims=True) + both.sum(axis=0) - both
    return (both / either).max(axis=1)


if __name__ == "__main__":
    main()
