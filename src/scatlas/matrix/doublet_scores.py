"""Doublet scores of cells whose coordinates are known: Scrublet's second half."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

# Cells whose neighbours are searched together; with simulated doublets three times as many.
MOST_CELLS = 20_000
# Fewer have no neighbourhoods to speak of.
FEWEST_CELLS = 50
# Of the histogram between whose two modes the threshold lies; scikit-image's defaults.
_BINS, _MOST_ROUNDS = 256, 10_000


class ScoredCells(NamedTuple):
    """Scores of the cells of a capture.

    Attributes
    ----------
    obs
        float64 [cells], NaN where there were too few cells.
    sim
        float64 [simulated doublets].
    parents
        int64 [simulated doublets, 2], positions of the cells added up.
    n_neighbors
        Neighbours of the (first) search before simulated doublets are counted in.
    """

    obs: NDArray[np.float64]
    sim: NDArray[np.float64]
    parents: NDArray[np.int64]
    n_neighbors: int


def score(
    cells: NDArray[np.float64],
    totals: NDArray[np.number],
    *,
    sim_doublet_ratio: float,
    expected_doublet_rate: float,
    n_neighbors: int | None,
    random_state: int,
    most: int = MOST_CELLS,
) -> ScoredCells:
    """Simulate doublets of cells and score both by how many of their neighbours are simulated.

    The coordinates are linear in the share that each gene has of a cell's counts. A doublet, whose
    counts are the sum of two cells', therefore lies between them, at the mean weighted by their
    totals: no counts are added up here.

    More than `most` cells are dealt at random into parts of equal size, each with neighbours and
    doublets of its own: each part is a sample of the same cells, and memory does not grow.

    Parameters
    ----------
    cells
        [cells x components].
    totals
        Counts of each cell in the genes of the components [cells].
    sim_doublet_ratio, expected_doublet_rate, n_neighbors, random_state
        As in :func:`scatlas.pp.scrublet`.
    most
        Cells scored together at most.
    """
    n = len(cells)
    obs = np.full(n, np.nan)
    if n < FEWEST_CELLS:
        return ScoredCells(obs, np.empty(0), np.empty((0, 2), np.int64), 0)
    sims, parents, used = [], [], 0
    for number, part in enumerate(_parts(n, most, random_state)):
        k = n_neighbors or round(0.5 * np.sqrt(part.size))
        used = used or k
        pairs = _pairs(part.size, int(part.size * sim_doublet_ratio), random_state + number)
        doublets = _between(cells[part], totals[part], pairs)
        of_both = _scores(cells[part], doublets, k, expected_doublet_rate)
        obs[part] = of_both[: part.size]
        sims.append(of_both[part.size :])
        parents.append(part[pairs])
    return ScoredCells(obs, np.concatenate(sims), np.concatenate(parents), used)


def _parts(n: int, most: int, seed: int) -> Iterator[NDArray[np.int64]]:
    n_parts = -(-n // most)
    if n_parts == 1:
        yield np.arange(n)
        return
    logger.info("%s cells are scored in %d parts, dealt at random", f"{n:,}", n_parts)
    dealt = np.random.default_rng(seed).permutation(n)
    for part in np.array_split(dealt, n_parts):
        yield np.sort(part)


def _pairs(n: int, n_doublets: int, seed: int) -> NDArray[np.int64]:
    """Parents of each doublet, no pair twice; those that scanpy draws with this seed."""
    from sklearn.utils.random import sample_without_replacement

    drawn = sample_without_replacement(n * n, n_doublets, random_state=seed)
    return np.stack(np.divmod(drawn.astype(np.int64), n), axis=1)


def _between(
    cells: NDArray[np.float64], totals: NDArray[np.number], pairs: NDArray[np.int64]
) -> NDArray[np.float64]:
    weights = totals.astype(np.float64)[pairs]
    # Two cells without counts in these genes are one such cell.
    weights[weights.sum(axis=1) == 0] = 1.0
    weights /= weights.sum(axis=1, keepdims=True)
    first, second = cells[pairs[:, 0]], cells[pairs[:, 1]]
    first *= weights[:, :1]
    second *= weights[:, 1:]
    first += second
    return first


def _scores(
    cells: NDArray[np.float64], doublets: NDArray[np.float64], k: int, rate: float
) -> NDArray[np.float64]:
    """Scores of the cells, then of the doublets (Wolock et al. 2019, as scanpy computes them)."""
    from scatlas.matrix import knn

    ratio = len(doublets) / len(cells)
    k = round(k * (1 + ratio))
    both = np.concatenate([cells, doublets])
    indices, _ = knn.exact(both, k, metric="euclidean", metric_kwds={})
    # Each is its own first neighbour, which says nothing.
    n_simulated = np.count_nonzero(indices[:, 1:] >= len(cells), axis=1)
    # Posterior mean of the share of simulated neighbours, and from it the odds of a doublet.
    q = (n_simulated + 1) / (k + 2)
    return q * rate / ratio / (1 - rate - q * (1 - rate - rate / ratio))


def threshold_of(scores: NDArray[np.float64]) -> float | None:
    """Score between the two modes of simulated doublets: those like their parents, and others.

    The lowest bin between the maxima of the histogram, smoothed by running means of three until
    there are two (Prewitt, Mendelsohn 1966; Glasbey 1993): scikit-image's ``threshold_minimum``.

    Parameters
    ----------
    scores
        Of simulated doublets.

    Returns
    -------
    None where there are no two modes.
    """
    from scipy.ndimage import uniform_filter1d

    if not scores.size or scores.min() == scores.max():
        return None
    counts, edges = np.histogram(scores, bins=_BINS)
    smooth = counts.astype(np.float32)
    for _ in range(_MOST_ROUNDS):
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
    """Last place of each rise before a fall."""
    steps = np.diff(values)
    at = np.flatnonzero(steps)
    # Before the first step there is nothing, which counts as a rise.
    rising = np.concatenate([[True], steps[at][:-1] > 0])
    return at[rising & (steps[at] < 0)].tolist()
