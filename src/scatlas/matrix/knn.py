"""Exact nearest neighbours of cells, in blocks over threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas._util.imports import from_extra
from scatlas.compute.threads import blas_on_one_thread, n_cores, openmp_on_one_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import scipy.sparse as sp
    from numpy.typing import NDArray

# At this size, with 50 components on 2 cores, the exact search takes 18 s; the time grows with the
# square of the cells.
EXACT_UP_TO = 100_000
# A multiple of scikit-learn's tiles of 256 x 256 cells gives the same products, so the same bits,
# as one call over all cells. Blocks of up to 1,024 cells take longer.
_ROWS_PER_BLOCK = 1280
# Metrics without such tiles allocate the distances of a block to all cells.
_DISTANCES_PER_BLOCK = 8_000_000


def exact(
    x: NDArray[Any] | sp.csr_matrix,
    n_neighbors: int,
    *,
    metric: str | Callable[..., float],
    metric_kwds: Mapping[str, Any],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Numbers and distances of exact neighbours, the cell itself first, ``[n_cells, n_neighbors]``.

    One thread searches each block, and blocks do not depend on threads: nor do ties.
    """
    with from_extra():
        from sklearn.neighbors import NearestNeighbors

    n_cells = x.shape[0]
    tiled = metric in {"euclidean", "l2", "sqeuclidean", "manhattan", "l1", "cityblock"}
    rows = _ROWS_PER_BLOCK if tiled else max(1, min(2048, _DISTANCES_PER_BLOCK // n_cells))
    index = NearestNeighbors(
        n_neighbors=n_neighbors,
        algorithm="brute",
        metric=metric,
        metric_params=dict(metric_kwds) or None,
        n_jobs=1,
    ).fit(x)
    indices = np.empty((n_cells, n_neighbors), np.int64)
    distances = np.empty((n_cells, n_neighbors), np.float64)

    def search(start: int) -> None:
        block = slice(start, start + rows)
        distances[block], indices[block] = index.kneighbors(x[block])

    starts = range(0, n_cells, rows)
    # OpenMP's limit applies to a thread, that of BLAS to the process.
    with blas_on_one_thread():
        if len(starts) == 1:  # a pool takes 0.1 ms, as long as the search among a few cells
            with openmp_on_one_thread():
                search(0)
        else:
            with ThreadPoolExecutor(n_cores(), "scatlas-knn", openmp_on_one_thread) as pool:
                for future in [pool.submit(search, start) for start in starts]:
                    future.result()
    return _move_self_first(indices, distances)


def _move_self_first(
    indices: NDArray[np.int64], distances: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Move each cell to the front of its neighbours, among which the search returns equal cells in
    any order, at distance zero.
    """
    cells = np.arange(indices.shape[0])
    for i in np.flatnonzero(indices[:, 0] != cells):
        position = np.flatnonzero(indices[i] == i)
        # Identical cells may fill the list: then the cell replaces the last of them.
        last = position[0] if position.size else indices.shape[1] - 1
        indices[i, 1 : last + 1] = indices[i, :last].copy()
        distances[i, 1 : last + 1] = distances[i, :last].copy()
    indices[:, 0] = cells
    distances[:, 0] = 0.0
    return indices, distances
