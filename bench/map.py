"""Benchmark of the map of all cells against scanpy: neighbours, with their fuzzy graph.

    python bench/map.py --cells 100000 --rounds 2
    python bench/map.py --cells 100000 1000000 --scanpy-up-to 100000

Cells are simulated: groups of very unequal size with 8 inner dimensions each, in 50 components.
One process runs all sides in turns, after each has compiled on fewer cells: scatlas with each
number of threads, scanpy with its defaults on all threads. Times are the best of the rounds. Recall
is the share of the exact neighbours of 1,000 cells that a side has found; "said" is what scatlas
measured itself. The last column says whether all runs of a side gave the same bits.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from pathlib import Path

import anndata as ad
import numpy as np
from run_side import machine, publish

from scatlas.compute.threads import use_threads

N_COMPS, N_NEIGHBORS, N_GROUPS, N_INNER = 50, 15, 400, 8
N_MEASURED = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cells", type=int, nargs="+", default=[100_000])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--scanpy-up-to", type=int, default=100_000, help="cells")
    parser.add_argument("--out", type=Path, help="file for the table")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = [
        f"# python {' '.join(sys.argv)}",
        machine("scatlas", "scanpy", "pynndescent", "scikit-learn", "scipy", "numpy", "numba"),
        f"{'cells':>9}  {'side':<8}{'threads':>8}{'seconds':>9}{'us per cell':>12}"
        f"{'CPU':>7}{'of scanpy':>10}{'recall':>8}{'said':>8}  same bits",
    ]
    for n_cells in args.cells:
        sides = [("scatlas", n) for n in args.threads]
        if n_cells <= args.scanpy_up_to:
            sides.append(("scanpy", len(os.sched_getaffinity(0))))
        table = compare(simulate(n_cells), sides, args.rounds)
        print("\n".join(table), flush=True)
        lines += table
    publish(lines, args.out)


def compare(x: np.ndarray, sides: list[tuple[str, int]], n_rounds: int) -> list[str]:
    """Lines of the table, one for each side."""
    rows = np.sort(np.random.default_rng(1).choice(len(x), N_MEASURED, replace=False))
    exact = exact_neighbors(x, rows)
    for name, n_threads in sides:
        neighbors(name, n_threads, x[:12_000])
    seconds: dict[tuple[str, int], tuple[float, float]] = {}
    recall, said, bits = {}, {}, {}
    for _ in range(n_rounds):
        for side in sides:
            spent, adata = neighbors(*side, x)
            seconds[side] = min(spent, seconds.get(side, spent))
            distances = adata.obsp["distances"]
            recall[side] = np.mean(
                [
                    np.isin(exact[i], distances.indices[slice(*distances.indptr[row : row + 2])])
                    for i, row in enumerate(rows)
                ]
            )
            said[side] = adata.uns["neighbors"]["params"].get("recall")
            bits.setdefault(side[0], []).append(
                tuple(hash(adata.obsp[key].data.tobytes()) for key in sorted(adata.obsp))
            )
    scanpy = seconds[sides[-1]][0] if sides[-1][0] == "scanpy" else None
    lines = []
    for side in sides:
        wall, cpu = seconds[side]
        ratio = f"{wall / scanpy:>9.2f}x" if scanpy else f"{'-':>10}"
        own = f"{said[side]:>8.4f}" if said[side] else f"{'-':>8}"
        lines.append(
            f"{len(x):>9}  {side[0]:<8}{side[1]:>8}{wall:>9.2f}{wall / len(x) * 1e6:>12.1f}"
            f"{cpu:>7.1f}{ratio}{recall[side]:>8.4f}{own}"
            f"  {'yes' if len(set(bits[side[0]])) == 1 else 'no'}"
        )
    return lines


def neighbors(name: str, n_threads: int, x: np.ndarray) -> tuple[tuple[float, float], ad.AnnData]:
    """Seconds of ``pp.neighbors`` with the defaults, by the clock and of CPUs, and its result."""
    if name == "scanpy":
        import scanpy as library
    else:
        import scatlas as library
    adata = ad.AnnData(obs={"cell": np.zeros(len(x), np.int8)}, obsm={"X_pca": x})
    with use_threads(n_threads):
        wall, cpu = time.perf_counter(), time.process_time()
        library.pp.neighbors(adata, N_NEIGHBORS, use_rep="X_pca")
        return (time.perf_counter() - wall, time.process_time() - cpu), adata


def exact_neighbors(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Nearest other cells of each row, by float64 distances."""
    from sklearn.neighbors import NearestNeighbors

    index = NearestNeighbors(n_neighbors=N_NEIGHBORS, algorithm="brute").fit(x)
    found = index.kneighbors(x[rows], return_distance=False)
    return np.stack(
        [near[near != row][: N_NEIGHBORS - 1] for near, row in zip(found, rows, strict=True)]
    )


def simulate(n_cells: int) -> np.ndarray:
    """float32 ``[n_cells, N_COMPS]``."""
    rng = np.random.default_rng(0)
    scale = np.linspace(6, 1, N_COMPS)
    centres = rng.normal(size=(N_GROUPS, N_COMPS)) * scale
    axes = rng.normal(size=(N_GROUPS, N_INNER, N_COMPS)) * scale / 4
    share = rng.random(N_GROUPS) ** 3 + 0.002
    label = rng.choice(N_GROUPS, n_cells, p=share / share.sum())
    x = np.empty((n_cells, N_COMPS), np.float32)
    for start in range(0, n_cells, 50_000):
        part = slice(start, start + 50_000)
        inner = rng.normal(size=(label[part].size, N_INNER))
        noise = rng.normal(size=(label[part].size, N_COMPS)) * 0.3
        x[part] = centres[label[part]] + np.einsum("nq,nqd->nd", inner, axes[label[part]]) + noise
    return x


if __name__ == "__main__":
    main()
