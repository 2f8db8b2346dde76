"""Simulated cells of the benchmark of the map, and measures of the maps that come out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import anndata as ad
import numpy as np
from sklearn.manifold import trustworthiness
from sklearn.neighbors import KDTree, NearestNeighbors

if TYPE_CHECKING:
    from collections.abc import Callable

N_COMPS, N_NEIGHBORS, N_GROUPS, N_INNER = 50, 15, 400, 8
N_MEASURED, N_TRUSTED = 1000, 10_000


class Spent(NamedTuple):
    """Seconds by the clock, and of processors: of all threads, and of the main thread alone."""

    wall: float
    cpu: float
    main: float


def timed(function: Callable[..., Any], *args: Any, **options: Any) -> tuple[Spent, Any]:
    """Call a function; its time and its result."""
    clocks = time.perf_counter, time.process_time, time.thread_time
    before = [clock() for clock in clocks]
    result = function(*args, **options)
    return Spent(*(clock() - then for clock, then in zip(clocks, before, strict=True))), result


def simulate(label: np.ndarray, seed: int = 0) -> np.ndarray:
    """float32 ``[n_cells, N_COMPS]``: a group per label, with N_INNER inner dimensions and noise.

    ``seed`` draws the cells; the groups are the same for any seed.
    """
    rng = np.random.default_rng(0)
    n_groups = label.max() + 1
    scale = np.linspace(6, 1, N_COMPS)
    centres = rng.normal(size=(n_groups, N_COMPS)) * scale
    axes = rng.normal(size=(n_groups, N_INNER, N_COMPS)) * scale / 4
    x = np.empty((label.size, N_COMPS), np.float32)
    rng = np.random.default_rng([1, seed])
    for start in range(0, label.size, 50_000):
        part = label[start : start + 50_000]
        inner = rng.normal(size=(part.size, N_INNER))
        noise = rng.normal(size=(part.size, N_COMPS)) * 0.3
        x[start : start + part.size] = centres[part] + noise
        for group in np.unique(part):
            own = np.flatnonzero(part == group)
            x[start + own] += (inner[own] @ axes[group]).astype(np.float32)
    return x


def random_labels(n_cells: int, seed: int = 0) -> np.ndarray:
    """Labels of N_GROUPS groups of very unequal size, the same shares for any seed."""
    share = np.random.default_rng(0).random(N_GROUPS) ** 3 + 0.002
    label = np.random.default_rng(seed).choice(N_GROUPS, n_cells, p=share / share.sum())
    label[-1] = N_GROUPS - 1  # simulate takes the number of groups from the labels
    return label


def with_components(x: np.ndarray) -> ad.AnnData:
    """Cells with ``obsm['X_pca']`` and no genes."""
    return ad.AnnData(obs={"cell": np.zeros(len(x), np.int8)}, obsm={"X_pca": x})


def draw(n_cells: int, n: int) -> np.ndarray:
    """Numbers of ``n`` cells, or all, in order."""
    return np.sort(np.random.default_rng(1).choice(n_cells, min(n, n_cells), replace=False))


def exact_neighbors(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Nearest other cells of each row, by float64 distances."""
    index = NearestNeighbors(n_neighbors=N_NEIGHBORS, algorithm="brute").fit(x)
    return _others(index.kneighbors(x[rows], return_distance=False), rows)


def recall(exact: np.ndarray, rows: np.ndarray, adata: ad.AnnData) -> float:
    """Share of the exact neighbours of some cells that ``obsp['distances']`` holds."""
    distances = adata.obsp["distances"]
    found = [distances.indices[slice(*distances.indptr[row : row + 2])] for row in rows]
    return _share_in(exact, found)


def kept_neighbors(exact: np.ndarray, rows: np.ndarray, layout: np.ndarray) -> float:
    """Share of the exact neighbours of some cells that are as many nearest cells on the map."""
    near = KDTree(layout).query(layout[rows], k=N_NEIGHBORS, return_distance=False)
    return _share_in(exact, _others(near, rows))


def trust(x: np.ndarray, layout: np.ndarray) -> float:
    """Trustworthiness of N_TRUSTED cells among themselves (Venna, Kaski 2001)."""
    shown = draw(len(x), N_TRUSTED)
    return float(trustworthiness(x[shown], layout[shown], n_neighbors=N_NEIGHBORS))


def _others(near: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Neighbours without the cell itself, one less than there are."""
    return np.stack(
        [found[found != row][: near.shape[1] - 1] for found, row in zip(near, rows, strict=True)]
    )


def _share_in(exact: np.ndarray, found: Any) -> float:
    return float(np.mean([np.isin(a, b) for a, b in zip(exact, found, strict=True)]))
