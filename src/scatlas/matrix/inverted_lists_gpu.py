"""The lists, candidates and neighbours of ``inverted_lists`` on a GPU, to the same bits: draws,
sums, distances and orders of equal distances are the CPU's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import cupy as cp
import numpy as np

from scatlas.kernels.graphs import nearest_gpu
from scatlas.kernels.graphs.nearest_gpu import ROWS, CellMatrix, CellNumbers, Metric, SearchTasks
from scatlas.matrix import list_rules as rules

if TYPE_CHECKING:
    from scatlas.arrays.array_types import GpuArray, Ints

# Cells whose nearest lists are found at once: 1 GB of them where they are converted.
_CELLS_AT_ONCE = 2**22
# Parts of the cells in which the exact neighbours of a sample are searched.
_PARTS, _MIN_PER_PART = 64, 65_536


class GpuInvertedLists(NamedTuple):
    """An index of cells on a GPU; fields without a comment are those of ``InvertedLists``."""

    space: Metric  # how cells are compared
    cells: CellMatrix  # list by list
    centres: CellMatrix  # float64
    centre_of: Ints
    order: GpuArray  # int32 [n_cells], on the GPU
    bounds: Ints
    metric: str
    n_probes: int = 1
    recall: float = 1.0

    @property
    def n_lists(self) -> int:
        """Number of lists."""
        return self.bounds.size - 1

    def neighbors(self, n_neighbors: int) -> tuple[GpuArray, GpuArray]:
        """Nearest cells of each indexed cell, as ``InvertedLists.neighbors``, but on the GPU."""
        numbers = CellNumbers(self.order, self.order, self.order)
        return self._search(self.cells, self.bounds, numbers, n_neighbors, own=True)

    def search(self, x: Any, n_neighbors: int) -> tuple[GpuArray, GpuArray]:
        """Nearest indexed cells of new cells, NumPy or CuPy, as ``InvertedLists.search``."""
        x = cp.asarray(x)
        queries = self.space.cells(x if x.dtype in (np.float32, np.float64) else x.astype(float))
        # The first piece of a list stands for all: they have the same nearest lists.
        labels = _assign(self.space, queries, self.centres)
        lists = cp.searchsorted(cp.asarray(self.centre_of), labels)
        order, bounds = _group(lists, self.n_lists)
        queries = CellMatrix(queries.exact[order], queries.search[order])
        numbers = CellNumbers(None, self.order, order)
        return self._search(queries, bounds, numbers, n_neighbors, own=False)

    def _search(
        self,
        queries: CellMatrix,
        bounds: Ints,
        numbers: CellNumbers,
        n: int,
        *,
        own: bool,
    ) -> tuple[GpuArray, GpuArray]:
        """Search the nearest cells of queries, which lie list by list."""
        lists, n_lists = self._candidate_lists(n)
        starts = np.arange(self.n_lists) * lists.shape[1]
        table = nearest_gpu.tiles(bounds, np.append(starts, lists.size), self.centre_of)
        table[:, 3] = table[:, 2] + n_lists[table[:, 2] // lists.shape[1]]
        device_bounds = cp.asarray(self.bounds)
        tasks = SearchTasks(cp.asarray(table), lists.ravel(), device_bounds, self.centres.search)
        shape = queries.exact.shape[0], n
        out = cp.empty(shape, np.int32), cp.empty(shape)
        nearest_gpu.nearest(
            *(queries, self.cells, tasks, n, numbers, out),
            cosine=self.space.cosine,
            own=own,
            root=self.metric in rules.ROOTS,
        )
        return out

    def _candidate_lists(self, n_neighbors: int) -> tuple[GpuArray, Ints]:
        """Nearest lists of each list, int32 ``[n_lists, n]``, and how many are read:
        :attr:`n_probes`, or more to have ``n_neighbors`` cells.
        """
        sizes = np.diff(self.bounds)
        width = min(self.n_probes, self.n_lists)
        while True:
            lists = self._nearest_lists(width)
            n_cells = np.cumsum(sizes[lists.get()], axis=1)
            if width == self.n_lists or n_cells[:, -1].min() >= n_neighbors:
                break
            width = min(2 * width, self.n_lists)
        needed = 1 + (n_cells < n_neighbors).sum(axis=1)
        return lists, np.clip(needed, self.n_probes, width)

    def _nearest_lists(self, n: int) -> GpuArray:
        """The nearest lists of each list by the distance of their centres, itself first."""
        centres = self.centres.exact[cp.asarray(self.centre_of)]
        first = np.arange(0, self.n_lists, ROWS)
        size = np.minimum(self.n_lists - first, ROWS)
        tasks = _tasks_of(first, size, np.array([0, self.n_lists]), self.centres.search)
        rows = cp.arange(self.n_lists, dtype=np.int64)
        return nearest_gpu.compare_all(
            *(centres, centres, tasks, n, CellNumbers(), rows), cosine=self.space.cosine, own=True
        )[0]


def build(
    x: GpuArray,
    n_neighbors: int,
    *,
    metric: str,
    recall: float,
    random_state: int | np.random.RandomState,
) -> GpuInvertedLists:
    """As :func:`scatlas.matrix.inverted_lists.build`, for cells on a GPU, fewer than 2**31."""
    rng = rules.generator(random_state)
    x = x if x.dtype in (np.float32, np.float64) else x.astype(np.float64)
    x = cp.ascontiguousarray(x)
    n_cells = x.shape[0]
    n_lists = max(1, round(rules.LISTS * n_cells**0.5))
    sample = rules.draw(rng, n_cells, rules.CELLS_PER_CENTRE * n_lists)
    drawn = x[cp.asarray(sample)]
    space = Metric(drawn.mean(axis=0, dtype=np.float64), cosine=metric == "cosine")
    if space.cosine:
        space = space._replace(centre=space.cells(drawn).search.mean(axis=0, dtype=np.float64))
    chosen = rng.choice(sample, min(n_lists, sample.size), replace=False)
    centres = _k_means(space, drawn, x[cp.asarray(chosen)].get())
    labels = cp.concatenate(
        [
            _assign(space, space.cells(x[start : start + _CELLS_AT_ONCE]), centres)
            for start in range(0, n_cells, _CELLS_AT_ONCE)
        ]
    )
    order, bounds = _group(labels, centres.exact.shape[0])
    del labels
    used = np.diff(bounds) > 0
    where = cp.asarray(np.flatnonzero(used))
    centres = CellMatrix(centres.exact[where], centres.search[where])
    bounds = np.append(bounds[:-1][used], n_cells)
    centre_of, bounds = rules.cut_long_lists(bounds, rules.LONGEST * -(-n_cells // n_lists))
    cells = space.cells(x[order])
    index = GpuInvertedLists(space, cells, centres, centre_of, order, bounds, metric)
    rows = rules.draw(rng, n_cells, rules.MEASURED)
    ranks = _ranks_of_neighbors(index, space.cells(x[cp.asarray(rows)]), rows, n_neighbors)
    n_probes, measured = rules.choose_probes(ranks, index.n_lists, recall)
    return index._replace(n_probes=n_probes, recall=measured)


def exact(x: GpuArray, n_neighbors: int, *, metric: str) -> tuple[GpuArray, GpuArray]:
    """Exact neighbours as :meth:`GpuInvertedLists.neighbors`: all cells are candidates of each."""
    x = x if x.dtype in (np.float32, np.float64) else x.astype(np.float64)
    space = Metric(x.mean(axis=0, dtype=np.float64), cosine=metric == "cosine")
    cells = space.cells(x)
    n_cells = x.shape[0]
    whole = np.array([0, n_cells])
    table = nearest_gpu.tiles(whole, np.array([0, 1]), np.zeros(1, np.int64))
    shift = space.shift(cells.exact.dtype)
    tasks = SearchTasks(cp.asarray(table), cp.zeros(1, np.int32), cp.asarray(whole), shift)
    out = cp.empty((n_cells, n_neighbors), np.int32), cp.empty((n_cells, n_neighbors))
    nearest_gpu.nearest(
        *(cells, cells, tasks, n_neighbors, CellNumbers(), out),
        cosine=space.cosine,
        own=True,
        root=metric in rules.ROOTS,
    )
    return out


def _tasks_of(first: Ints, n: Ints, bounds: Ints, shifts: GpuArray) -> SearchTasks:
    """Tasks of tiles of queries, each with the cells of all lists."""
    zeros = np.zeros(first.size, np.int64)
    n_lists = bounds.size - 1
    table = np.stack([first, n, zeros, zeros + n_lists, zeros, first], axis=1)
    lists = cp.arange(n_lists, dtype=np.int32)
    return SearchTasks(cp.asarray(table), lists, cp.asarray(bounds), shifts)


def _centres(space: Metric, exact: GpuArray, dtype: Any) -> CellMatrix:
    """Centres to compare cells of this type with."""
    if dtype == np.float32 and not space.cosine:
        return CellMatrix(exact, exact.astype(np.float32))
    return space.cells(exact)


def _k_means(space: Metric, sample: GpuArray, chosen: np.ndarray) -> CellMatrix:
    """Centres of the lists (Lloyd 1982), from some of the cells."""
    first = np.unique(chosen, axis=0).astype(np.float64)
    centres = _centres(space, cp.asarray(first), sample.dtype)
    cells = space.cells(sample)
    for _ in range(rules.ROUNDS):
        labels = _assign(space, cells, centres)
        sums = nearest_gpu.add_by_label(sample, labels, len(first), cosine=space.cosine)
        counts = cp.bincount(labels, minlength=len(first))[:, None]
        moved = cp.where(counts > 0, sums / cp.maximum(counts, 1), centres.exact)
        centres = _centres(space, moved, sample.dtype)
    return centres


def _assign(space: Metric, cells: CellMatrix, centres: CellMatrix) -> GpuArray:
    """Number of the nearest centre of each cell, int32, the first of equally near ones."""
    n_cells, n = cells.exact.shape[0], centres.exact.shape[0]
    first = np.arange(0, n_cells, ROWS)
    shift = space.shift(cells.exact.dtype)
    tasks = _tasks_of(first, np.minimum(n_cells - first, ROWS), np.array([0, n]), shift)
    out = cp.empty((n_cells, 1), np.int32), cp.empty((n_cells, 1))
    nearest_gpu.nearest(cells, centres, tasks, 1, CellNumbers(), out, cosine=space.cosine)
    return out[0][:, 0]


def _group(labels: GpuArray, n: int) -> tuple[GpuArray, Ints]:
    """Positions by label, int32, those of a label in order; where each begins, on the host."""
    bounds = np.zeros(n + 1, np.int64)
    np.cumsum(cp.bincount(labels, minlength=n).get(), out=bounds[1:])
    return cp.argsort(labels).astype(np.int32), bounds  # CuPy's sort is stable


def _ranks_of_neighbors(
    index: GpuInvertedLists, queries: CellMatrix, rows: Ints, n_neighbors: int
) -> Ints:
    """As on the CPU: rank of the list of each true neighbour, on the host."""
    numbers, scores = _exact_among(index, queries, rows, n_neighbors)
    position = cp.empty(index.order.size, np.int32)
    position[index.order] = cp.arange(index.order.size, dtype=np.int32)
    bounds = cp.asarray(index.bounds)
    list_of = cp.searchsorted(bounds, position[numbers], side="right") - 1
    own = cp.searchsorted(bounds, position[cp.asarray(rows)], side="right") - 1
    n_own = _count_in_own(index, queries, rows, own.get(), scores[:, -1:], n_neighbors)
    centre_of = cp.asarray(index.centre_of)
    all_scores = nearest_gpu.scores_to(
        index.centres.exact, centre_of[own], cosine=index.space.cosine
    )[:, centre_of]
    all_scores[cp.arange(rows.size), own] = -1.0
    lists = cp.arange(index.n_lists)
    ranks = cp.empty(list_of.shape, np.int64)
    for j in range(n_neighbors):
        score = cp.take_along_axis(all_scores, list_of[:, j : j + 1], axis=1)
        is_before = (all_scores < score) | ((all_scores == score) & (lists < list_of[:, j : j + 1]))
        ranks[:, j] = is_before.sum(axis=1)
    ranks, is_other = ranks.get(), (list_of != own[:, None]).get()
    out = np.zeros((rows.size, n_neighbors - 1), np.int64)
    for i in range(rows.size):
        others = ranks[i][is_other[i]][: n_neighbors - n_own[i]]
        out[i, out.shape[1] - others.size :] = others
    return out


def _exact_among(
    index: GpuInvertedLists, queries: CellMatrix, rows: Ints, n: int
) -> tuple[GpuArray, GpuArray]:
    """Nearest of all cells for each query, and scores, in parts of the cells."""
    n_cells = index.order.size
    n_parts = min(_PARTS, -(-n_cells // _MIN_PER_PART))
    first = np.arange(0, rows.size, ROWS)
    part = np.repeat(np.arange(n_parts), first.size)
    first = np.tile(first, n_parts)
    size = np.minimum(rows.size - first, ROWS)
    table = np.stack([first, size, part, part + 1, 0 * part, part * rows.size + first], axis=1)
    tasks = SearchTasks(
        cp.asarray(table),
        cp.arange(n_parts, dtype=np.int32),
        cp.asarray(n_cells * np.arange(n_parts + 1) // n_parts),
        index.space.shift(index.cells.exact.dtype),
    )
    numbers = CellNumbers(cp.asarray(rows.astype(np.int32)), index.order)
    shape = n_parts * rows.size, n
    out = cp.full(shape, 2**31 - 1, np.int32), cp.full(shape, np.inf)
    nearest_gpu.nearest(
        *(queries, index.cells, tasks, n, numbers, out), cosine=index.space.cosine, own=True
    )
    found, scores = (
        np.moveaxis(table.get().reshape(n_parts, rows.size, n), 0, 1).reshape(rows.size, -1)
        for table in out
    )
    nearest = np.lexsort((found, scores), axis=1)[:, :n]
    tables = (np.take_along_axis(table, nearest, axis=1) for table in (found, scores))
    found, scores = map(cp.asarray, tables)
    return found, scores


def _count_in_own(
    index: GpuInvertedLists, queries: CellMatrix, rows: Ints, own: Ints, last: GpuArray, n: int
) -> Ints:
    """Number of the ``n`` nearest cells of each query's own list that are as near as ``last``."""
    number = np.arange(rows.size)
    table = np.stack([number, 0 * number + 1, own, own + 1, index.centre_of[own], number], axis=1)
    lists = cp.arange(index.n_lists, dtype=np.int32)
    tasks = SearchTasks(cp.asarray(table), lists, cp.asarray(index.bounds), index.centres.search)
    numbers = CellNumbers(cp.asarray(rows.astype(np.int32)), index.order)
    out = cp.zeros((rows.size, n), np.int32), cp.full((rows.size, n), np.inf)
    nearest_gpu.nearest(
        *(queries, index.cells, tasks, n, numbers, out), cosine=index.space.cosine, own=True
    )
    n_own: Ints = (out[1] <= last).sum(axis=1).get()
    return n_own
