"""Neighbours, fuzzy graph and UMAP of 1 to 100 million cells on one GPU, phase by phase.

    python bench/gpu/map.py 1000000 11400000 95600000 --recall 0.98 0.98 0.95 --out FILE
    python bench/gpu/map.py 1000000 --umap-learn 100000

Cells are simulated on the GPU: 400 groups of very unequal size with 8 inner dimensions each, in 50
components. The time starts with these in its memory and ends with indices, distances, the graph and
coordinates there. "Exact" is the recall on 1,000 cells that the search did not measure itself.
Trustworthiness is that of 4,000 cells among themselves. ``--umap-learn`` compares the layout of as
many cells with that by umap-learn's order of moves, on the CPU: same graph, same start.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import anndata as ad
import cupy as cp
import numpy as np
from sklearn.manifold import trustworthiness

sys.path.append(str(Path(__file__).parents[1]))

import runner

import scatlas as sa
from scatlas.kernels.graphs import umap_gpu
from scatlas.matrix import inverted_lists, inverted_lists_gpu, projection

CURVE, N_ROUNDS, N_NEIGHBORS = (0.583, 1.334), 200, 15
_PHASES = ("_k_means", "_assign", "_group", "_ranks_of_neighbors")


def main() -> None:
    parser = runner.parser(__doc__)
    parser.add_argument("cells", type=int, nargs="+")
    parser.add_argument("--recall", type=float, nargs="+", default=[0.98], help="per size")
    parser.add_argument("--umap-learn", type=int, help="cells of the comparison")
    parser.add_argument("--picture", type=Path, help="folder for pictures")
    args = parser.parse_args()
    lines = runner.head("numpy", "cupy-cuda13x")
    measure(100_000, 0.98)  # compiles
    for i, n_cells in enumerate(args.cells):
        goal = args.recall[min(i, len(args.recall) - 1)]
        lines += measure(n_cells, goal, picture=args.picture)
        print("\n".join(lines[-2:]), file=sys.stderr, flush=True)
    if args.umap_learn:
        lines.append(compare(args.umap_learn))
    runner.publish(lines, args.out)


def measure(n_cells: int, goal: float, *, picture: Path | None = None) -> list[str]:
    """Lines of one size."""
    pool = cp.get_default_memory_pool()
    x = simulate(n_cells)
    spent: dict[str, float] = {}
    plain = {name: getattr(inverted_lists_gpu, name) for name in _PHASES}
    for phase in _PHASES:
        setattr(inverted_lists_gpu, phase, timed(plain[phase], phase, spent))
    pool.free_all_blocks()
    start = now()
    index = inverted_lists.build(x, N_NEIGHBORS, recall=goal)
    built = now()
    indices, distances = index.neighbors(N_NEIGHBORS)
    searched = now()
    for phase in _PHASES:
        setattr(inverted_lists_gpu, phase, plain[phase])
    exact = recall(index, x, indices)
    facts = f"{index.n_lists} lists, {index.n_probes} per cell, recall {index.recall:.4f}"
    del index
    pool.free_all_blocks()
    before = now()
    edges = umap_gpu.fuzzy_union(indices, umap_gpu.memberships(distances))
    drawn = now()
    n_edges = edges.indices.size
    places = x[:, :2] - x[:, :2].mean(axis=0)
    places *= 10 / cp.abs(places).max()
    del distances, indices
    options: dict[str, Any] = {"gamma": 1.0, "negative_sample_rate": 5, "alpha": 1.0, "seed": 0}
    moving = now()
    y = projection.lay_out(places, edges, CURVE, n_epochs=N_ROUNDS, **options)
    done = now()
    peak = pool.total_bytes() / 1e9
    rows = np.sort(np.random.default_rng(0).choice(n_cells, 4000, replace=False))
    there = cp.asarray(rows)
    trust = trustworthiness(x[there].get(), y[there].get(), n_neighbors=15)
    if picture:
        draw(y, picture / f"map-{n_cells}.png")
    phases = ", ".join(f"{name.strip('_')} {seconds:.2f}" for name, seconds in spent.items())
    return [
        f"{n_cells} cells: neighbours {searched - start:.2f} s (index {built - start:.2f}: "
        f"{phases}; search {searched - built:.2f}), graph {drawn - before:.2f} s, "
        f"{N_ROUNDS} rounds {done - moving:.2f} s, at most {peak:.1f} GB",
        f"    {facts}, exact {exact:.4f}; {n_edges} edges; trustworthiness {trust:.4f}",
    ]


def compare(n_cells: int) -> str:
    """Trustworthiness of both layouts of one graph, from one start."""
    x = simulate(n_cells)
    adata = ad.AnnData(np.zeros((n_cells, 1), np.float32))
    adata.obsm["X_pca"] = x
    sa.pp.neighbors(adata, N_NEIGHBORS, use_rep="X_pca")
    start = x[:, :2].get()
    seconds, scores = [], []
    for method in ("umap", "umap-learn"):
        begin = now()
        sa.tl.umap(adata, init_pos=start, maxiter=N_ROUNDS, method=method)
        seconds.append(now() - begin)
        rows = np.sort(np.random.default_rng(0).choice(n_cells, 4000, replace=False))
        y = adata.obsm["X_umap"][rows]
        scores.append(trustworthiness(x[cp.asarray(rows)].get(), y, n_neighbors=15))
    return (
        f"{n_cells} cells, same graph and start: trustworthiness {scores[0]:.4f} in "
        f"{seconds[0]:.1f} s; by umap-learn's order {scores[1]:.4f} in {seconds[1]:.1f} s"
    )


def now() -> float:
    cp.cuda.Device().synchronize()
    return time.perf_counter()


def timed(function: Any, name: str, spent: dict[str, float]) -> Any:
    """The function, with its seconds added; k-means contains those of its assignments."""

    def call(*args: Any, **options: Any) -> Any:
        start = now()
        result = function(*args, **options)
        spent[name] = spent.get(name, 0.0) + now() - start
        return result

    return call


def simulate(n_cells: int, n_dims: int = 50, n_groups: int = 400, inner: int = 8) -> cp.ndarray:
    rng = cp.random.default_rng(0)
    wide = cp.linspace(6, 1, n_dims, dtype=np.float32)
    centres = rng.standard_normal((n_groups, n_dims), dtype=np.float32) * wide
    mix = rng.standard_normal((n_groups, inner, n_dims), dtype=np.float32) * wide / 4
    share = cp.cumsum(rng.random(n_groups) ** 3 + 0.002)
    x = cp.empty((n_cells, n_dims), np.float32)
    for start in range(0, n_cells, 2**20):
        part = x[start : start + 2**20]
        group = cp.searchsorted(share, rng.random(len(part)) * share[-1])
        part[:] = centres[group] + 0.3 * rng.standard_normal(part.shape, dtype=np.float32)
        along = rng.standard_normal((len(part), inner), dtype=np.float32)
        for axis in range(inner):
            part += along[:, axis : axis + 1] * mix[group, axis]
    return x


def recall(index: Any, x: cp.ndarray, indices: cp.ndarray) -> float:
    """Share of the exact neighbours of some cells that were found, without the cells themselves."""
    rows = np.sort(np.random.default_rng(99).choice(x.shape[0], 1000, replace=False))
    there = cp.asarray(rows)
    queries = index.space.cells(x[there])
    true, _ = inverted_lists_gpu._exact_among(index, queries, rows, N_NEIGHBORS)
    found = indices[there]
    hits = (true[:, 1:, None] == found[:, None, 1:]).any(axis=2)
    return float(hits.mean())


def draw(y: cp.ndarray, path: Path) -> None:
    import matplotlib.pyplot as plt

    some = y[:: max(1, len(y) // 100_000)].get()
    low, high = np.quantile(some, [0.001, 0.999], axis=0)
    at = cp.clip((y - cp.asarray(low)) / cp.asarray(high - low) * 800, 0, 799).astype(np.int32)
    counts = cp.bincount(at[:, 1] * 800 + at[:, 0], minlength=800 * 800).reshape(800, 800)
    plt.imsave(path, np.log1p(counts.get()[::-1]), cmap="magma")


if __name__ == "__main__":
    main()
