"""Doublet scores of cells from their coordinates: the second half of Scrublet."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scatlas._util.imports import from_extra

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

# Cells searched together; with simulated doublets there are three times as many.
MAX_CELLS = 20_000
# Fewer cells are not scored: their neighbourhoods mean nothing.
MIN_CELLS = 50
# Histogram for the threshold: bins, and rounds of smoothing. scikit-image's defaults.
_BINS, _MAX_ROUNDS = 256, 10_000


class ScoredCells(NamedTuple):
    """Scores of the cells of a capture."""

    obs: NDArray[np.float64]  # [cells], NaN if there are too few
    sim: NDArray[np.float64]  # [simulated doublets]
    parents: NDArray[np.int64]  # [simulated doublets, 2], positions of the two cells of each
    n_neighbors: int  # of the (first) search, without those for simulated doublets


def score_cells(
    cells: NDArray[np.float64],
    totals: NDArray[np.number],
    *,
    sim_doublet_ratio: float,
    expected_doublet_rate: float,
    n_neighbors: int | None,
    random_state: int,
) -> ScoredCells:
    """Simulate doublets, and score cells and doublets by their number of simulated neighbours.

    ``cells`` ``[n, components]`` are linear in the share of each gene in a cell's counts.
    """
    n = len(cells)
    obs = np.full(n, np.nan)
    if n < MIN_CELLS:
        return ScoredCells(obs, np.empty(0), np.empty((0, 2), np.int64), 0)
    sims, parents, first_k = [], [], 0
    # Each part is a sample of all cells, with its own doublets: memory does not grow.
    for number, part in enumerate(_split_cells(n, random_state)):
        k = n_neighbors or round(0.5 * np.sqrt(part.size))
        first_k = first_k or k
        pairs = _draw_pairs(part.size, int(part.size * sim_doublet_ratio), random_state + number)
        # A doublet lies at the mean of its parents by totals: coordinates are linear in shares.
        doublets = _doublet_coordinates(cells[part], totals[part], pairs)
        scores = _neighbor_scores(cells[part], doublets, k, expected_doublet_rate)
        obs[part] = scores[: part.size]
        sims.append(scores[part.size :])
        parents.append(part[pairs])
    return ScoredCells(obs, np.concatenate(sims), np.concatenate(parents), first_k)


def _split_cells(n: int, seed: int) -> Iterator[NDArray[np.int64]]:
    n_parts = -(-n // MAX_CELLS)
    if n_parts == 1:
        yield np.arange(n)
        return
    logger.info("%s cells are scored in %d random parts", f"{n:,}", n_parts)
    shuffled = np.random.default_rng(seed).permutation(n)
    for part in np.array_split(shuffled, n_parts):
        yield np.sort(part)


def _draw_pairs(n: int, n_doublets: int, seed: int) -> NDArray[np.int64]:
    """Parents of each doublet, no pair twice; the same as scanpy draws with this seed."""
    with from_extra():
        from sklearn.utils.random import sample_without_replacement

    drawn = sample_without_replacement(n * n, n_doublets, random_state=seed)
    return np.stack(np.divmod(drawn.astype(np.int64), n), axis=1)


def _doublet_coordinates(
    cells: NDArray[np.float64], totals: NDArray[np.number], pairs: NDArray[np.int64]
) -> NDArray[np.float64]:
    weights = totals.astype(np.float64)[pairs]
    # A doublet of two cells without counts in these genes is such a cell, too.
    weights[weights.sum(axis=1) == 0] = 1.0
    weights /= weights.sum(axis=1, keepdims=True)
    first, second = cells[pairs[:, 0]], cells[pairs[:, 1]]
    first *= weights[:, :1]
    second *= weights[:, 1:]
    first += second
    return first


def _neighbor_scores(
    cells: NDArray[np.float64], doublets: NDArray[np.float64], k: int, rate: float
) -> NDArray[np.float64]:
    """Scores of the cells, then of the doublets (Wolock et al. 2019, as scanpy computes them)."""
    from scatlas.matrix import knn

    ratio = len(doublets) / len(cells)
    k = round(k * (1 + ratio))
    points = np.concatenate([cells, doublets])
    indices, _ = knn.exact(points, k, metric="euclidean", metric_kwds={})
    # Skip the first neighbour, which is the point itself.
    n_simulated = np.count_nonzero(indices[:, 1:] >= len(cells), axis=1)
    # Posterior mean of the share of simulated neighbours, which gives the score.
    q = (n_simulated + 1) / (k + 2)
    return q * rate / ratio / (1 - rate - q * (1 - rate - rate / ratio))


def find_threshold(scores: NDArray[np.float64]) -> float | None:
    """Score between the two modes of simulated doublets, None without two modes: scikit-image's
    ``threshold_minimum`` (Prewitt, Mendelsohn 1966; Glasbey 1993).
    """
    from scipy.ndimage import uniform_filter1d

    if not scores.size or scores.min() == scores.max():
        return None
    counts, edges = np.histogram(scores, bins=_BINS)
    smooth = counts.astype(np.float32)
    for _ in range(_MAX_ROUNDS):
        smooth = uniform_filter1d(smooth, 3)
        maxima = _maxima(smooth)
        if len(maxima) < 3:
            break
    if len(maxima) != 2:
        return None
    first, last = maxima
    lowest = first + int(np.argmin(smooth[first : last + 1]))
    return float((edges[lowest] + edges[lowest + 1]) / 2)


def _maxima(values: NDArray[np.floating]) -> list[int]:
    """Positions of the last value of each rise before a fall."""
    steps = np.diff(values)
    at = np.flatnonzero(steps)
    # The start counts as a rise.
    rising = np.concatenate([[True], steps[at][:-1] > 0])
    return at[rising & (steps[at] < 0)].tolist()
