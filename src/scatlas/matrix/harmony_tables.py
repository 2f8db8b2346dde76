"""Tables of Harmony: its batches and options, the first centroids, a cluster's regression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scatlas import blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Float32s = NDArray[np.float32]
    Ints = NDArray[np.int64]

# Cells that find the first clusters, and steps of k-means.
_START_CELLS, _START_STEPS = 2**14, 10


class Batches(NamedTuple):
    """Batches of the cells in one or several columns, numbered over all columns."""

    codes: NDArray[np.uint16]  # [cells]: number of the cell's combination of batches
    levels: Ints  # [combinations, columns]: batches of a combination
    column: Ints  # [batches]
    sizes: Ints  # [batches]: cells

    @property
    def shares(self) -> Floats:
        """Share of each batch among the cells."""
        return self.sizes / self.codes.size


class Options(NamedTuple):
    """Options of :func:`scatlas.pp.harmony_integrate`, checked."""

    n_clusters: int
    theta: Floats  # [batches]
    sigma: float
    ridge_lambda: float | None
    alpha: float
    batch_prune_threshold: float
    block_proportion: float
    max_iter_harmony: int
    max_iter_clustering: int
    tol_harmony: float
    tol_clustering: float


class Mixed(NamedTuple):
    """What the rounds leave beside the corrected components."""

    objectives: list[float]  # of the start and of each round, per 2,000 cells
    passes: list[float]  # of the start and of each pass
    centroids: Float32s  # [clusters, components], of length 1
    terms: Float32s  # [combinations, clusters, components]: the last correction
    sums: Floats  # [clusters, components + 1]: of the cells' shares times what they became, and 1
    sigma: float


def first_centroids(cells: Any, n_clusters: int, rng: np.random.Generator) -> Float32s:
    """Centroids [clusters, components] of length 1 of the unit rows of a sample of the cells.

    Each begins as a cell drawn with odds of its distance to a random one, then k-means.
    """
    n = min(cells.shape[0], _START_CELLS)
    chosen = np.sort(rng.choice(cells.shape[0], n, replace=False, shuffle=False))
    x = blocks.on_host(cells.take(chosen, 0))
    closeness = x @ x[rng.integers(n, size=n_clusters)].T
    with np.errstate(divide="ignore"):
        waits = (rng.standard_exponential(n) / np.abs(1 - column) for column in closeness.T)
        drawn = [int(wait.argmin()) for wait in waits]
    centroids = x[drawn].astype(np.float64)
    for _ in range(_START_STEPS):
        np.matmul(x, centroids.T.astype(np.float32), out=closeness)
        closeness -= ((centroids**2).sum(axis=1) / 2).astype(np.float32)
        nearest = closeness.argmax(axis=1)
        sizes = np.bincount(nearest, minlength=n_clusters)
        sums = np.stack([np.bincount(nearest, column, n_clusters) for column in x.T], axis=1)
        centroids = np.where(sizes[:, None], sums / np.maximum(sizes, 1)[:, None], centroids)
    return unit_length(centroids)


def unit_length(x: Floats) -> Float32s:
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(x / np.where(length > 0, length, 1.0), np.float32)


def ridge_terms(batches: Batches, products: Floats, kept: Any, ridge: Floats) -> Floats | None:
    """Coefficients of the batches and, last, of the intercept: [batches + 1, components].

    ``products`` [combinations, components + 1] are sums of the cluster's shares times components,
    and of the shares. A column with fewer than two kept batches is left out, the others have 0;
    None if no batch is kept. The intercept is of the cells in kept batches.
    """
    column = batches.column
    n_kept = np.bincount(column[kept], minlength=column[-1] + 1)
    kept = kept & (n_kept > 1)[column]
    if not kept.any():
        return None
    # The column with the most batches comes first: its part of the equations is diagonal.
    large = column == n_kept.argmax()
    order = np.concatenate([np.flatnonzero(kept & large), np.flatnonzero(kept & ~large)])
    n, n_large = order.size, int((kept & large).sum())
    slot = np.full(kept.size, -1)
    slot[order] = np.arange(n)
    slots = slot[batches.levels]  # [combinations, columns]
    slots = np.column_stack([slots, np.where((slots >= 0).any(axis=1), n, -1)])
    left, right = np.zeros((n + 1, n + 1)), np.zeros((n + 1, products.shape[1] - 1))
    for own in slots.T:
        np.add.at(right, own[own >= 0], products[own >= 0, :-1])
        for other in slots.T:
            both = (own >= 0) & (other >= 0)
            np.add.at(left, (own[both], other[both]), products[both, -1])
    left[np.arange(n), np.arange(n)] += ridge[order]
    top = left.diagonal()[:n_large, None]
    joint, rest = left[:n_large, n_large:], left[n_large:, n_large:]
    solution = np.empty_like(right)
    solution[n_large:] = np.linalg.solve(
        rest - joint.T @ (joint / top), right[n_large:] - joint.T @ (right[:n_large] / top)
    )
    solution[:n_large] = (right[:n_large] - joint @ solution[n_large:]) / top
    coefficients = np.zeros((kept.size + 1, right.shape[1]))
    coefficients[order] = solution[:n]
    coefficients[-1] = solution[n]
    return coefficients
