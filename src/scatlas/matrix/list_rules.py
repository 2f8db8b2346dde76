"""Rules of inverted lists that hold on the CPU and on a GPU: draws, sizes, how many are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas._util.numbers import random_state_of

if TYPE_CHECKING:
    from scatlas.arrays.array_types import Ints

ROOTS = {"euclidean", "l2"}  # of squared distances
# Lists of n cells: LISTS * sqrt(n). More of them leave fewer candidates per cell, but each cell is
# compared with all centres, and a product of few cells is slow.
LISTS = 2.5
# A longer list, of cells that are nearly the same, is cut into pieces.
LONGEST = 4  # times the mean length
CELLS_PER_CENTRE, ROUNDS = 32, 4
MEASURED = 1000  # cells whose exact neighbours are computed
_STANDARD_ERRORS = 2  # by which the recall of these must exceed the goal


def generator(random_state: int | np.random.RandomState) -> np.random.Generator:
    """Random numbers of the lists of a seed."""
    return np.random.default_rng(random_state_of(random_state).randint(2**31))


def draw(rng: np.random.Generator, n_cells: int, n: int) -> Ints:
    """Numbers of ``n`` cells, or all, in order."""
    return np.sort(rng.choice(n_cells, min(n, n_cells), replace=False, shuffle=False))


def cut_long_lists(bounds: Ints, longest: int) -> tuple[Ints, Ints]:
    """Old list of each new one, and bounds of these, of at most ``longest`` cells."""
    sizes = np.diff(bounds)
    pieces = -(-sizes // longest)
    old = np.repeat(np.arange(sizes.size), pieces)
    piece = np.arange(old.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    starts = bounds[old] + sizes[old] * piece // pieces[old]
    return old, np.append(starts, bounds[-1])


def choose_probes(ranks: Ints, n_lists: int, goal: float) -> tuple[int, float]:
    """Least number of lists whose cells hold the neighbours to the goal, and the recall: the
    nearest candidates are found exactly, so a neighbour is found if its list is read.
    """
    for n_probes in range(1, n_lists + 1):
        found = (ranks < n_probes).mean(axis=1)
        error = found.std() / len(ranks) ** 0.5
        if found.mean() - _STANDARD_ERRORS * error >= goal:
            break
    return n_probes, float(found.mean())
