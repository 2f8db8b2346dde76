"""Nearest neighbours of cells: exact, in blocks over threads, or approximate on one thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas._util.imports import from_extra
from scatlas.compute.threads import blas_on_one_thread, n_cores, openmp_on_one_thread
from scatlas.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import scipy.sparse as sp
    from numpy.typing import NDArray

# At this size, with 50 components on 2 cores, the exact search takes 18 s, NN-descent 15 s after
# 7 s of compilation, and NN-descent finds 92% of the neighbours.
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

    The search is by brute force. Blocks depend only on the number of cells, and one thread searches
    each block, so the result (ties included) does not depend on the number of threads.
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


def approximate(
    x: NDArray[Any] | sp.csr_matrix,
    n_neighbors: int,
    *,
    metric: str | Callable[..., float],
    metric_kwds: Mapping[str, Any],
    random_state: int | np.random.RandomState,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Neighbours by NN-descent (Dong et al., WWW 2011), with UMAP's numbers of trees and rounds.

    The library draws random numbers per thread, so its result changes with the number of threads:
    it runs on one.
    """
    with from_extra():
        from pynndescent import NNDescent
    import numba

    n_cells, n_threads = x.shape[0], numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        # One more neighbour, as in scanpy: the search may miss the cell itself.
        indices, distances = NNDescent(
            x,
            n_neighbors=n_neighbors + 1,
            metric=metric,
            metric_kwds=dict(metric_kwds),
            n_trees=min(64, 5 + round(n_cells**0.5 / 20.0)),
            n_iters=max(5, round(np.log2(n_cells))),
            random_state=random_state,
            n_jobs=1,
            compressed=False,
            low_memory=True,
        ).neighbor_graph
    finally:
        numba.set_num_threads(n_threads)
    if (indices < 0).any():
        n_incomplete = int((indices < 0).any(axis=1).sum())
        raise InputError(
            f"NN-descent found fewer than {n_neighbors} neighbours for {n_incomplete} cells: "
            "pass transformer='sklearn' for the exact search"
        )
    indices, distances = _move_self_first(indices.astype(np.int64), distances.astype(np.float64))
    return indices[:, :n_neighbors].copy(), distances[:, :n_neighbors].copy()


def _move_self_first(
    indices: NDArray[np.int64], distances: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Move each cell to the front of its neighbours, at distance zero.

    The search returns identical cells in any order. A cell that is missing, because identical cells
    fill the list, replaces the last of them.
    """
    cells = np.arange(indices.shape[0])
    for i in np.flatnonzero(indices[:, 0] != cells):
        position = np.flatnonzero(indices[i] == i)
        last = position[0] if position.size else indices.shape[1] - 1
        indices[i, 1 : last + 1] = indices[i, :last].copy()
        distances[i, 1 : last + 1] = distances[i, :last].copy()
    indices[:, 0] = cells
    distances[:, 0] = 0.0
    return indices, distances
