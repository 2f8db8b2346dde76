"""The nearest of given candidates, on the GPU: the result is that of ``nearest_cpu``, bit for bit.

Products on tensor cores propose candidates, exact distances rank them. A query of which the error
bound allows others is compared with all its candidates in float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import cupy as cp
import numpy as np

from scatlas.kernels.build import cuda

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from scatlas.arrays.array_types import GpuArray, Ints

# As in nearest.cu.
ROWS = 128
_COLUMNS, _WARPS, _WAITING = 64, 4, 32
_LAST = 2**31 - 1
# Proposals per query are 32 times one of these.
_SLOTS = (1, 2, 4)
# Dimensions in shared memory at once: with more, a multiprocessor holds one block, not two.
_DEEPEST = 56
_TASKS_AT_ONCE = 65_536
_NEIGHBOURS_AT_ONCE = 2**26  # neighbours of the queries that are compared with all candidates
_CELLS_AT_ONCE = 2**20


class CellMatrix(NamedTuple):
    """Cells as they are compared, in C order."""

    exact: GpuArray  # float32 or float64 [n, n_dims]
    search: GpuArray  # float32: the same, moved or scaled to length 1 for products

    def rows(self, start: int, stop: int) -> CellMatrix:
        return CellMatrix(self.exact[start:stop], self.search[start:stop])


class Metric(NamedTuple):
    """How cells are compared."""

    centre: GpuArray  # float64 [n_dims], near which products keep most digits
    cosine: bool  # scores are 1 - cosine in place of squared distances

    def cells(self, x: GpuArray) -> CellMatrix:
        """Cells ``[n, n_dims]``, float32 or float64, to be compared; float32 is not copied."""
        x = cp.ascontiguousarray(x)
        if x.dtype == np.float32 and not self.cosine:
            return CellMatrix(x, x)
        search = cp.empty(x.shape, np.float32)
        for start in range(0, x.shape[0], _CELLS_AT_ONCE):
            part = x[start : start + _CELLS_AT_ONCE]
            moved = part * inverse_lengths(part)[:, None] if self.cosine else part - self.centre
            search[start : start + _CELLS_AT_ONCE] = moved
        return CellMatrix(x, search)

    def shift(self, dtype: DTypeLike) -> GpuArray:
        """float32 ``[1, n_dims]``: the centre among the ``search`` of cells of this type."""
        if dtype == np.float64 and not self.cosine:
            return cp.zeros((1, self.centre.size), np.float32)
        return self.centre.astype(np.float32)[None]


class SearchTasks(NamedTuple):
    """Queries and the candidates of each."""

    # int64 [n_tasks, 6]: first query, number of queries (at most ROWS), first entry of `lists` and
    # the one after the last, row of `shifts`, first row of the result.
    table: GpuArray
    lists: GpuArray  # int32: numbers of lists; a task has each candidate once
    bounds: GpuArray  # int64 [n_lists + 1]: first reference cell of each list
    shifts: GpuArray  # float32 [n, n_dims]: points near which products are computed


class CellNumbers(NamedTuple):
    """Numbers of cells, int32 each, or None for their positions."""

    queries: GpuArray | None = None  # recognise a query among its candidates
    cells: GpuArray | None = None  # what is returned, and the order of equally near ones
    rows: GpuArray | None = None  # rows of the result, in place of the tasks'

    @property
    def pointers(self) -> tuple[GpuArray, ...]:
        return tuple(cuda.NULL if part is None else part for part in self)


def tiles(bounds: Ints, lists: Ints, shifts: Ints) -> Ints:
    """``SearchTasks.table`` of queries that lie list by list, on the host: list i has queries from
    ``bounds[i]``, candidates from ``lists[i]`` and the row ``shifts[i]`` of the shifts.
    """
    n_tiles = -(-np.diff(bounds) // ROWS)
    list_of_tile = np.repeat(np.arange(n_tiles.size), n_tiles)
    tile = np.arange(list_of_tile.size) - np.repeat(np.cumsum(n_tiles) - n_tiles, n_tiles)
    first = bounds[list_of_tile] + tile * ROWS
    n = np.minimum(bounds[list_of_tile + 1] - first, ROWS)
    given = lists[list_of_tile], lists[list_of_tile + 1], shifts[list_of_tile]
    return np.stack([first, n, *given, first], axis=1)


def nearest(
    queries: CellMatrix,
    cells: CellMatrix,
    tasks: SearchTasks,
    n: int,
    numbers: CellNumbers,
    out: tuple[GpuArray, GpuArray],
    *,
    cosine: bool,
    own: bool = False,
    root: bool = False,
) -> None:
    """Write numbers, int32, and distances, float64, of the ``n`` nearest candidates to ``out``
    ``[n_rows, n]``. They ascend by distance, equal ones by number; entries beyond the candidates
    are not written. Scores are squared distances, ``1 - cosine`` with `cosine`, their square roots
    with `root`. With `own` a query is its own nearest, at distance 0, if it is a candidate.
    """
    neighbours, distances = out
    n_dims = cells.exact.shape[1]
    slots = next((slots for slots in _SLOTS if 32 * slots >= n + n // 4 + 2), None)
    for start in range(0, tasks.table.shape[0], _TASKS_AT_ONCE):
        part = tasks._replace(table=tasks.table[start : start + _TASKS_AT_ONCE])
        n_tasks = part.table.shape[0]
        unsure = cp.zeros((n_tasks, ROWS), np.uint8)
        if slots is None:
            unsure[:] = cp.arange(ROWS) < part.table[:, 1:2]
        else:
            eighths = _eighths(n_dims)
            types = queries.exact.dtype, cells.exact.dtype
            run = cuda.kernel("graphs/nearest", "find_nearest", *types, slots, eighths)
            n_bytes = _shared_bytes(8 * eighths, slots)
            run.max_dynamic_shared_size_bytes = n_bytes
            run(
                (n_tasks,),
                (_WARPS * 32,),
                (
                    *(queries.search, cells.search, queries.exact, cells.exact),
                    *(np.int32(n_dims), *part, *numbers.pointers),
                    *(np.int32(n), np.bool_(own), np.bool_(cosine), np.bool_(root)),
                    *(neighbours, distances, unsure),
                ),
                shared_mem=n_bytes,
            )
        which = cp.flatnonzero(unsure)
        for first in range(0, which.size, max(1, _NEIGHBOURS_AT_ONCE // n)):
            rows = which[first : first + max(1, _NEIGHBOURS_AT_ONCE // n)]
            near, scores = compare_all(
                queries.exact, cells.exact, part, n, numbers, rows, cosine=cosine, own=own
            )
            query = part.table[rows // ROWS, 0] + rows % ROWS
            if numbers.rows is None:
                row = part.table[rows // ROWS, 5] + rows % ROWS
            else:
                row = numbers.rows[query]
            # Beyond the candidates there is nothing to write.
            near = cp.where(near == _LAST, neighbours[row], near)
            kept = distances[row]
            scores = cp.where(cp.isinf(scores), kept, cp.sqrt(scores) if root else scores)
            neighbours[row], distances[row] = near, scores


def compare_all(
    queries: GpuArray,
    cells: GpuArray,
    tasks: SearchTasks,
    n: int,
    numbers: CellNumbers,
    rows: GpuArray,
    *,
    cosine: bool,
    own: bool,
) -> tuple[GpuArray, GpuArray]:
    """Nearest candidates by exact scores alone, 2**31 - 1 and infinity beyond them. A row is
    :data:`ROWS` times the number of a task, plus the number of a query in it.
    """
    near = cp.full((rows.size, n), _LAST, np.int32)
    scores = cp.full((rows.size, n), np.inf)
    run = cuda.kernel("graphs/nearest", "compare_all", queries.dtype, cells.dtype)
    sizes = np.int64(rows.size), np.int32(n)
    run(
        *cuda.grid_of_warps(rows.size),
        (
            *(queries, cells, np.int32(cells.shape[1]), *tasks[:3], *numbers.pointers[:2], rows),
            *(*sizes, np.bool_(own), np.bool_(cosine), near, scores),
        ),
    )
    return near, scores


def add_by_label(
    x: GpuArray, labels: GpuArray, n_labels: int, *, cosine: bool, dtype: DTypeLike = np.float64
) -> GpuArray:
    """Sums of ``nearest_cpu.add_by_label``, to the same bits; in any type in its order."""
    x, labels = cp.ascontiguousarray(x), cp.asarray(labels)
    order = cp.argsort(labels)  # stable
    bounds = cp.searchsorted(labels[order], cp.arange(n_labels + 1, dtype=labels.dtype))
    scales = inverse_lengths(x) if cosine else cuda.NULL
    sums = cp.empty((n_labels, x.shape[1]), dtype)
    run = cuda.kernel("graphs/nearest", "add_by_label", x.dtype, sums.dtype)
    sizes = np.int64(x.shape[1]), order.astype(np.int64), bounds.astype(np.int64)
    run(*cuda.grid_of_threads(sums.size), (x, *sizes, np.int64(n_labels), scales, sums))
    return sums


def inverse_lengths(x: GpuArray) -> GpuArray:
    """One divided by the length of each cell, float64 ``[n]``; 0 for a cell that is zero."""
    out = cp.empty(x.shape[0])
    run = cuda.kernel("graphs/nearest", "inverse_lengths", x.dtype)
    run(*cuda.grid_of_threads(out.size), (x, np.int32(x.shape[1]), np.int64(out.size), out))
    return out


def scores_to(centres: GpuArray, rows: GpuArray, *, cosine: bool) -> GpuArray:
    """Exact scores of all centres for some of them, float64 ``[rows.size, n]``."""
    out = cp.empty((rows.size, centres.shape[0]))
    sizes = np.int32(centres.shape[1]), np.int64(centres.shape[0])
    rows = rows.astype(np.int64, copy=False)
    args = centres, *sizes, rows, np.int64(rows.size), np.bool_(cosine), out
    cuda.kernel("graphs/nearest", "scores_to")(*cuda.grid_of_threads(out.size), args)
    return out


def _eighths(n_dims: int) -> int:
    """Eighths of the number of dimensions in shared memory at once."""
    parts = -(-n_dims // _DEEPEST)
    return -(-n_dims // (8 * parts))


def _shared_bytes(depth: int, slots: int) -> int:
    vectors = (ROWS + _COLUMNS) * (depth + 4) + 3 * _COLUMNS
    return 4 * (vectors + 2 * ROWS * (32 * slots + _WAITING))
