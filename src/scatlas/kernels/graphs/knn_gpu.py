"""Nearest neighbours on the GPU: candidates by cuVS in float32, ranked by exact distances.

A matrix product in float32 keeps four or five digits of a small distance between cells far from the
origin. So cuVS searches more cells than requested, and their distances are recomputed in float64.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import cupy as cp
import numpy as np

from scatlas.errors import InputError
from scatlas.kernels.build import cuda

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

METRICS = ("euclidean", "l2", "sqeuclidean", "cosine")
# The time of the exact search grows with the square of the number of cells: 2e14 multiplications at
# this size with 50 components. NN-descent is faster for more cells; its neighbours differ per run.
EXACT_UP_TO = 2_000_000
# Minimum number of candidates beyond the neighbours. cuVS searches up to 64 in all in one kernel.
_SPARE = 16
# Minimum number of neighbours per cell in the graph of NN-descent (default of cuVS).
_DEGREE = 64
_ROWS = 16_384  # cells per batch of candidates


class _Cells(NamedTuple):
    """Cells as they are searched and compared.

    ``search`` is float32 ``[n, d]`` for cuVS, ``exact`` float32 or float64 ``[n, d]``, ``norms``
    float64 ``[n]`` are the lengths of the rows of ``search``.
    """

    search: cp.ndarray
    exact: cp.ndarray
    norms: cp.ndarray
    cosine: bool

    @property
    def metric(self) -> str:
        """Metric of the search for candidates, as named by cuVS."""
        return "inner_product" if self.cosine else "sqeuclidean"

    def scores(self, rows: cp.ndarray, columns: cp.ndarray | None) -> cp.ndarray:
        """float64 scores of pairs, less for nearer ones: squared distances, or 1 - cosine.

        Of each of the int64 ``rows`` with its ``columns`` [rows x columns], or with all cells.
        """
        n_columns = self.exact.shape[0] if columns is None else columns.shape[1]
        out = cp.empty((rows.size, n_columns), cp.float64)
        run = cuda.kernel(
            "graphs/knn", "products" if self.cosine else "squared_distances", self.exact.dtype
        )
        pairs = rows, np.int64(rows.size), cuda.NULL if columns is None else columns
        n_dims = np.int64(self.exact.shape[1])
        run(*cuda.grid_of_threads(out.size), (self.exact, n_dims, *pairs, np.int64(n_columns), out))
        return cp.clip(1.0 - out, 0.0, 2.0) if self.cosine else out

    def scale(self, rows: cp.ndarray, reach: cp.ndarray | float = 0.0) -> cp.ndarray:
        """Upper bound of the scale of float32 errors of scores.

        For each cell of ``rows`` and any cell within the distance ``reach`` [rows] of it.
        """
        if self.cosine:
            return cp.ones(rows.shape, cp.float64)
        return (2.0 * self.norms[rows] + reach) ** 2


def exact(
    x: cp.ndarray, n_neighbors: int, *, metric: str, cuvs: ModuleType
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Exact neighbours: candidates by brute force, and all cells where these may not suffice.

    Parameters
    ----------
    x
        CuPy ``[n_cells, n_dims]``, finite.
    n_neighbors
        Neighbours of a cell, the cell itself among them; at most as many as there are cells.
    metric
        One of :data:`METRICS`.
    cuvs
        The module ``cuvs.neighbors``.

    Returns
    -------
    indices : int64 ``[n_cells, n_neighbors]``, in the main memory
        The cell itself first, the others by distance, those at equal distance by number.
    distances : float64 ``[n_cells, n_neighbors]``, in the main memory

    Notes
    -----
    A cell that is no candidate can still be among the neighbours if its float32 score is off by
    more than the last candidate's lies beyond the last neighbour's. The errors of all candidates
    of a batch are known; where four times the largest, relative to the lengths of both vectors,
    would be enough for that, the cell is compared with all cells in float64. So the result depends
    neither on float32 nor on how cuVS breaks ties, and is the same on every run.
    """
    cells = _cells(x, metric)
    n_cells = x.shape[0]
    width = min(n_cells, n_neighbors + max(_SPARE, n_neighbors))
    indices = np.empty((n_cells, n_neighbors), np.int64)
    distances = np.empty((n_cells, n_neighbors), np.float64)
    # cuVS uses another stream, and waits for it before it returns.
    cp.cuda.get_current_stream().synchronize()
    index = cuvs.brute_force.build(cells.search, metric=cells.metric)
    n_unsure = 0
    for start in range(0, n_cells, _ROWS):
        block = slice(start, min(start + _ROWS, n_cells))
        rows = cp.arange(block.start, block.stop, dtype=cp.int64)
        found = cp.empty((rows.size, width), cp.int64)
        rough = cp.empty((rows.size, width), cp.float32)
        cp.cuda.get_current_stream().synchronize()
        cuvs.brute_force.search(index, cells.search[block], width, neighbors=found, distances=rough)
        nearest, scores = _ranked(cells, rows, found, n_neighbors)
        if width < n_cells:
            unsure = cp.flatnonzero(_unsure(cells, rows, found, rough, scores[:, -1]))
            for at in unsure.tolist():
                nearest[at], scores[at] = _among_all(cells, start + at, n_neighbors)
            n_unsure += unsure.size
        indices[block] = nearest.get()
        distances[block] = _distances(scores, metric).get()
    if n_unsure:
        logger.info("%d cells with many at equal distance were compared with all", n_unsure)
    return indices, distances


def approximate(
    x: cp.ndarray, n_neighbors: int, *, metric: str, cuvs: ModuleType
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Neighbours by NN-descent (Dong et al., WWW 2011), with exact distances.

    Parameters and returns are those of :func:`exact`. cuVS takes no seed for it, and two runs find
    slightly different neighbours.

    Raises
    ------
    InputError
        Fewer neighbours than wanted were found for a cell.
    """
    cells = _cells(x, metric)
    n_cells = x.shape[0]
    degree = min(max(_DEGREE, 2 * n_neighbors), n_cells - 1)
    indices = np.empty((n_cells, n_neighbors), np.int64)
    distances = np.empty((n_cells, n_neighbors), np.float64)
    params = cuvs.nn_descent.IndexParams(
        metric=cells.metric,
        graph_degree=degree,
        intermediate_graph_degree=min(2 * degree, n_cells - 1),
    )
    cp.cuda.get_current_stream().synchronize()
    graph = cuvs.nn_descent.build(params, cells.search).graph
    lost = 0
    for start in range(0, n_cells, _ROWS):
        block = slice(start, min(start + _ROWS, n_cells))
        rows = cp.arange(block.start, block.stop, dtype=cp.int64)
        found = cp.asarray(graph[block]).astype(cp.int64)
        # A place that was not filled holds no cell's number: the cell itself, which counts once.
        found = cp.where(found < n_cells, found, rows[:, None])
        nearest, scores = _ranked(cells, rows, found, n_neighbors)
        lost += int(cp.isinf(scores[:, -1]).sum())
        indices[block] = nearest.get()
        distances[block] = _distances(scores, metric).get()
    if lost:
        msg = (
            f"NN-descent found fewer than {n_neighbors} neighbours for {lost} cells: "
            "pass transformer='sklearn' for the exact search"
        )
        raise InputError(msg)
    return indices, distances


def _cells(x: cp.ndarray, metric: str) -> _Cells:
    exact = cp.ascontiguousarray(x)
    if exact.dtype not in (cp.float32, cp.float64):
        exact = exact.astype(cp.float64)
    if metric == "cosine":
        lengths = cp.sqrt((exact.astype(cp.float64) ** 2).sum(axis=1, keepdims=True))
        # A cell without values is at distance 1 of all others, as scikit-learn has it.
        exact = exact / cp.where(lengths > 0, lengths, 1.0)
        search = exact.astype(cp.float32)
    else:
        # Distances stay the same, and float32 keeps more of their digits near the origin.
        search = (exact - exact.mean(axis=0, dtype=cp.float64)).astype(cp.float32)
    norms = cp.sqrt((search.astype(cp.float64) ** 2).sum(axis=1))
    return _Cells(cp.ascontiguousarray(search), exact, norms, metric == "cosine")


def _ranked(
    cells: _Cells, rows: cp.ndarray, found: cp.ndarray, n_neighbors: int
) -> tuple[cp.ndarray, cp.ndarray]:
    """Nearest of the found cells [rows x n_neighbors] and their scores, each cell itself first.

    Scores are infinite where fewer different cells were found.
    """
    pairs = cp.sort(cp.concatenate([rows[:, None], found], axis=1), axis=1)
    scores = cells.scores(rows, pairs)
    scores[pairs == rows[:, None]] = -1.0
    scores[:, 1:][pairs[:, 1:] == pairs[:, :-1]] = np.inf
    # Stable: equal scores stay in the order of the cells' numbers.
    order = cp.argsort(scores, axis=1)[:, :n_neighbors]
    nearest = cp.take_along_axis(pairs, order, axis=1)
    scores = cp.take_along_axis(scores, order, axis=1)
    scores[:, 0] = 0.0
    return nearest, scores


def _unsure(
    cells: _Cells, rows: cp.ndarray, found: cp.ndarray, rough: cp.ndarray, last: cp.ndarray
) -> cp.ndarray:
    """Whether a cell that is no candidate may be nearer than the last neighbour (score `last`).

    The length of such a cell is at most that of the row plus the distance to the last neighbour,
    which bounds the error of its score.
    """
    if cells.cosine:
        rough = 1.0 - rough
    rough = rough.astype(cp.float64)
    error = cp.abs(rough - cells.scores(rows, found))
    if not cells.cosine:
        # Two cells at the origin have no length, and no error.
        scale = (cells.norms[rows][:, None] + cells.norms[found]) ** 2
        error /= cp.maximum(scale, np.finfo(np.float64).tiny)
    margin = cp.maximum(4.0 * error.max(), np.finfo(np.float32).eps)
    last_reach = 0.0 if cells.cosine else cp.sqrt(last)
    return ~(rough.max(axis=1) - last > margin * cells.scale(rows, last_reach))


def _among_all(cells: _Cells, row: int, n_neighbors: int) -> tuple[cp.ndarray, cp.ndarray]:
    """Nearest of all cells, and their scores, for one cell."""
    scores = cells.scores(cp.array([row], cp.int64), None)[0]
    scores[row] = -1.0
    order = cp.argsort(scores)[:n_neighbors]
    scores = scores[order]
    scores[0] = 0.0
    return order.astype(cp.int64), scores


def _distances(scores: cp.ndarray, metric: str) -> Any:
    return cp.sqrt(scores) if metric in {"euclidean", "l2"} else scores
