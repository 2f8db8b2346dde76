"""Nearest cells by inverted lists (IVF: Sivic, Zisserman 2003; Jegou, Douze, Schmid 2011).

Seeded k-means divides the cells into lists, which share the cells of the nearest lists as
candidates; the nearest of these are found exactly. A sample of the cells measures how many lists
are needed. No step depends on the order of tasks, so no bit depends on threads.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scatlas import blocks
from scatlas.arrays.kinds import is_gpu
from scatlas.compute.threads import n_cores
from scatlas.kernels.graphs import nearest_cpu
from scatlas.kernels.graphs.edges_cpu import positions_by_label
from scatlas.matrix import list_rules as rules

if TYPE_CHECKING:
    from collections.abc import Generator

    from numpy.typing import NDArray

    from scatlas.kernels.graphs.nearest_cpu import CellMatrix
    from scatlas.matrix.inverted_lists_gpu import GpuInvertedLists

    Ints = NDArray[np.int64]

METRICS = ("euclidean", "l2", "sqeuclidean", "cosine")
# For more cells an index is faster than the exact search.
FASTER_FROM = 10_000
_CELLS_PER_TASK, _CELLS_PER_SCAN = 4096, 65_536
_QUERIES_AT_ONCE = 262_144


class InvertedLists(NamedTuple):
    """An index of cells."""

    # For the kernels `graphs.nearest`; the array of the indexed cells is shared, not copied.
    cells: CellMatrix
    centres: CellMatrix
    # int64 [n_lists], ascending: centre of each list, the same for all pieces of a long list
    centre_of: Ints
    order: Ints  # int64 [n_cells]: numbers of the cells, list by list
    bounds: Ints  # int64 [n_lists + 1]: where each list begins in order
    metric: str  # one of METRICS
    n_probes: int = 1  # lists whose cells are the candidates
    recall: float = 1.0  # share of the true neighbours among the candidates, measured on a sample

    @property
    def n_lists(self) -> int:
        """Number of lists."""
        return self.bounds.size - 1

    def members(self, number: int) -> Ints:
        """Cells of a list, in their own order."""
        return self.order[self.bounds[number] : self.bounds[number + 1]]

    def nearest_lists(self, number: int) -> Ints:
        """All lists by the distance of their centres, the list itself first."""
        scores = nearest_cpu.scores_to(self.centres, self.centre_of[number])[self.centre_of]
        scores[number] = -1.0
        return np.argsort(scores, kind="stable")

    def candidates(self, number: int, n_neighbors: int) -> Ints:
        """Cells of the nearest lists: of :attr:`n_probes`, or more to have ``n_neighbors``."""
        near = self.nearest_lists(number)
        n_cells = np.cumsum(self.bounds[near + 1] - self.bounds[near])
        n_lists = max(self.n_probes, 1 + int(np.searchsorted(n_cells, n_neighbors)))
        return np.concatenate([self.members(j) for j in near[:n_lists]])

    def neighbors(self, n_neighbors: int) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Numbers and exact distances of each cell's nearest cells, ``[n_cells, n_neighbors]``:
        itself, then by distance, then by number.
        """
        found = self._empty_result(self.order.size, n_neighbors)
        lists = [self.members(j) for j in range(self.n_lists)]
        parts = self._search(self.cells, lists, *found, own=True)
        deque(blocks.with_progress(parts, [rows.size for rows in lists]), maxlen=0)
        return found

    def search(self, x: NDArray[Any], n_neighbors: int) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Nearest indexed cells of new cells ``[n_queries, n_dims]``, the nearest first; no result
        depends on other new cells.
        """
        queries = self.cells._replace(x=x)
        found = self._empty_result(x.shape[0], n_neighbors)
        for start in range(0, x.shape[0], _QUERIES_AT_ONCE):
            rows = np.arange(start, min(start + _QUERIES_AT_ONCE, x.shape[0]))
            # The first piece of a list stands for all: they have the same nearest lists.
            labels = np.searchsorted(self.centre_of, _assign(queries, rows, self.centres))
            order, bounds = positions_by_label(labels, self.n_lists)
            lists = np.split(rows[order], bounds[1:-1])
            deque(self._search(queries, lists, *found, own=False), maxlen=0)
        return found

    def _empty_result(
        self, n_queries: int, n_neighbors: int
    ) -> tuple[NDArray[Any], NDArray[np.float64]]:
        narrow = self.order.size <= np.iinfo(np.int32).max
        indices = np.empty((n_queries, n_neighbors), np.int32 if narrow else np.int64)
        return indices, np.empty(indices.shape)

    def _search(
        self,
        queries: CellMatrix,
        lists: list[Ints],
        indices: NDArray[Any],
        distances: NDArray[np.float64],
        *,
        own: bool,
    ) -> Generator[None]:
        """Search the nearest cells of the queries of each list, list by list."""

        def search(number: int) -> None:
            rows = lists[number]
            if rows.size:
                n = indices.shape[1]
                candidates = self.candidates(number, n)
                numbers, scores = nearest_cpu.nearest(
                    queries, rows, self.cells, candidates, n, own=own
                )
                indices[rows] = numbers
                distances[rows] = np.sqrt(scores) if self.metric in rules.ROOTS else scores

        return blocks.map_in_order(search, len(lists), workers=n_cores())


def build(
    x: NDArray[Any],
    n_neighbors: int,
    *,
    metric: str = "euclidean",
    recall: float = 0.99,
    random_state: int | np.random.RandomState = 0,
) -> InvertedLists | GpuInvertedLists:
    """Divide cells into lists, and choose how many of these a search reads.

    ``x`` is finite, in memory or on disk; for a CuPy array the index is on the GPU, with the same
    bits. ``recall`` is the least share of the true ``n_neighbors``, the cell itself among them, to
    find.
    """
    if is_gpu(x):
        from scatlas.matrix import inverted_lists_gpu

        options: dict[str, Any] = {"metric": metric, "recall": recall}
        return inverted_lists_gpu.build(x, n_neighbors, random_state=random_state, **options)
    x = np.asarray(x) if x.dtype in (np.float32, np.float64) else x.astype(np.float64)
    rng = rules.generator(random_state)
    n_cells = x.shape[0]
    n_lists = max(1, round(rules.LISTS * n_cells**0.5))
    sample = rules.draw(rng, n_cells, rules.CELLS_PER_CENTRE * n_lists)
    cells = nearest_cpu.CellMatrix(x, np.zeros(x.shape[1]), metric == "cosine")
    sums, counts = nearest_cpu.add_by_label(cells, sample, np.zeros(sample.size, np.int32), 1)
    cells = cells._replace(centre=sums[0] / counts[0])
    centres = _k_means(cells, sample, min(n_lists, sample.size), rng)
    labels = _assign(cells, np.arange(n_cells), centres)
    order, bounds = positions_by_label(labels, centres.x.shape[0])
    used = np.diff(bounds) > 0
    centres = centres._replace(x=centres.x[used])
    bounds = np.append(bounds[:-1][used], n_cells)
    centre_of, bounds = rules.cut_long_lists(bounds, rules.LONGEST * -(-n_cells // n_lists))
    index = InvertedLists(cells, centres, centre_of, order, bounds, metric)
    ranks = _ranks_of_neighbors(index, rules.draw(rng, n_cells, rules.MEASURED), n_neighbors)
    n_probes, measured = rules.choose_probes(ranks, index.n_lists, recall)
    return index._replace(n_probes=n_probes, recall=measured)


def _k_means(cells: CellMatrix, sample: Ints, n_lists: int, rng: np.random.Generator) -> CellMatrix:
    """Centres of the lists, as ``CellMatrix`` (Lloyd 1982)."""
    chosen = rng.choice(sample, n_lists, replace=False)
    # Equal cells make one centre. Sorted centres keep near lists, which are searched one after the
    # other, near in memory.
    first = np.unique(np.take(cells.x, chosen, axis=0), axis=0)
    centres = cells._replace(x=first.astype(np.float64))
    for _ in range(rules.ROUNDS):
        labels = _assign(cells, sample, centres)
        sums, counts = nearest_cpu.add_by_label(cells, sample, labels, len(first))
        used = counts > 0
        centres.x[used] = sums[used] / counts[used, None]
    return centres


def _assign(cells: CellMatrix, rows: Ints, centres: CellMatrix) -> NDArray[np.int32]:
    """Number of the nearest centre of each row, the first of equally near ones."""
    numbers = np.arange(centres.x.shape[0])

    def assign(task: int) -> NDArray[np.int32]:
        part = rows[task * _CELLS_PER_TASK : (task + 1) * _CELLS_PER_TASK]
        nearest = nearest_cpu.nearest(cells, part, centres, numbers, 1)[0][:, 0]
        return nearest.astype(np.int32)

    n_tasks = -(-rows.size // _CELLS_PER_TASK)
    return np.concatenate(list(blocks.map_in_order(assign, n_tasks, workers=n_cores())))


def _ranks_of_neighbors(index: InvertedLists, rows: Ints, n_neighbors: int) -> Ints:
    """Rank of the list of each true neighbour, by distance from the list of the cell.

    Of cells as far as the last neighbour, just as good, those of the cell's own list come first.
    """
    numbers, scores = _exact(index.cells, rows, n_neighbors)
    list_of = np.empty(index.order.size, np.int32)
    list_of[index.order] = np.repeat(
        np.arange(index.n_lists, dtype=np.int32), np.diff(index.bounds)
    )

    def rank_lists(i: int) -> Ints:
        own = list_of[rows[i]]
        members = index.members(own)
        n = min(n_neighbors, members.size)
        nearest = nearest_cpu.nearest(
            index.cells, rows[i : i + 1], index.cells, members, n, own=True
        )
        n_own = np.count_nonzero(nearest[1] <= scores[i, -1])
        rank = np.empty(index.n_lists, np.int64)
        rank[index.nearest_lists(own)] = np.arange(index.n_lists)
        lists = list_of[numbers[i]]
        others = rank[lists[lists != own]][: n_neighbors - n_own]
        out = np.zeros(n_neighbors - 1, np.int64)
        out[out.size - others.size :] = others
        return out

    return np.stack(list(blocks.map_in_order(rank_lists, rows.size, workers=n_cores())))


def _exact(cells: CellMatrix, rows: Ints, n: int) -> tuple[Ints, NDArray[np.float64]]:
    """Nearest of all cells for each row, in parts of the cells."""
    n_cells = cells.x.shape[0]

    def scan(task: int) -> tuple[Ints, NDArray[np.float64]]:
        start = task * _CELLS_PER_SCAN
        part = np.arange(start, min(start + _CELLS_PER_SCAN, n_cells))
        found: tuple[Ints, NDArray[np.float64]] = nearest_cpu.nearest(
            cells, rows, cells, part, min(n, part.size), own=True
        )
        return found

    numbers = np.empty((rows.size, 0), np.int64)
    scores = np.empty((rows.size, 0))
    n_tasks = -(-n_cells // _CELLS_PER_SCAN)
    for more in blocks.map_in_order(scan, n_tasks, workers=n_cores()):
        numbers = np.concatenate([numbers, more[0]], axis=1)
        scores = np.concatenate([scores, more[1]], axis=1)
        nearest = np.lexsort((numbers, scores), axis=1)[:, :n]
        numbers = np.take_along_axis(numbers, nearest, axis=1)
        scores = np.take_along_axis(scores, nearest, axis=1)
    return numbers, scores
