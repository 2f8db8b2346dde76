"""Where UMAP's points start: eigenvectors of the graph's Laplacian, the same on every run.

umap-learn has the same formulas, but SciPy 1.17 and later restart a stalled eigen-solver from
unseeded random numbers: two runs of ``umap`` then give two pictures.
"""

from __future__ import annotations

import inspect
import logging
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import ArpackError, eigsh

from scatlas import blocks
from scatlas.kernels import kernels_for
from scatlas.kernels.graphs.edges_cpu import positions_by_label
from scatlas.matrix.graph_eigenvectors import eigenvectors

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

_TOLERANCE = 1e-4
# ARPACK keeps sqrt(n) vectors of length n: 22 GB at this many cells. Filters keep three dozen.
UMAP_LEARN_BELOW = 2_000_000
# Filters are faster from a few thousand cells: 0.7 s in place of 2.3 s for 20,000.
FAST_BELOW = 4_000
# Before 1.17 SciPy's solver (in Fortran) carried its own fixed seed, and took none.
_SEEDED = {"rng": 0} if "rng" in inspect.signature(eigsh).parameters else {}


def start(
    graph: sp.csr_matrix,
    n_components: int,
    state: np.random.RandomState,
    cells: Callable[[], np.ndarray | sp.csr_matrix],
    *,
    arpack_below: int,
    to_device: Callable[[Any], Any] = np.asarray,
) -> np.ndarray:
    """Coordinates to start UMAP from, a little noise on them: float32 [cells x n_components],
    largest coordinate 10; ``state`` is drawn from as umap-learn draws.

    ``cells``, called for many parts, gives their representation. From ``arpack_below`` cells on
    Chebyshev filters replace ARPACK, umap-learn's choice below 2,000,000 cells, where ``to_device``
    moves arrays (``pinned_copies.to_gpu``: a GPU).
    """
    edges = (
        to_device(graph.indptr.astype(np.int64, copy=False)),
        to_device(graph.indices),
        to_device(graph.data),
    )
    one = to_device(np.zeros(graph.shape[0], np.int8))
    parts, n_parts = kernels_for("graphs.edges", one).find_parts(edges, one)
    labels = blocks.on_host(parts)
    del edges, one, parts
    find = partial(_eigenvectors, state=state, arpack_below=arpack_below, to_device=to_device)
    if n_parts == 1:
        where = find(graph, n_components)
    else:
        members = positions_by_label(labels, n_parts)
        centres = _centres(members, n_components, cells)
        where = _layouts_of_components(graph, members, centres, state, find)
    where = (where * (10.0 / np.abs(where).max())).astype(np.float32)
    return where + state.normal(scale=1e-4, size=where.shape).astype(np.float32)


def _centres(
    members: tuple[np.ndarray, np.ndarray],
    n_components: int,
    cells: Callable[[], np.ndarray | sp.csr_matrix],
) -> np.ndarray:
    """Place of each part: both ends of each axis, or, for more parts, PCA of their mean cells;
    umap-learn's affinities exp(-distance^2) are all zero between clusters.
    """
    order, bounds = members
    n_parts = bounds.size - 1
    if n_parts <= 2 * n_components:
        half = -(-n_parts // 2)
        ends = np.eye(half, n_components)
        return np.vstack([ends, -ends])[:n_parts]
    x = cells()
    parts = (order[first:last] for first, last in pairwise(bounds))
    means = np.vstack([np.asarray(x[part].mean(axis=0)).ravel() for part in parts])
    means = means.astype(np.float64)
    u, s, _ = np.linalg.svd(means - means.mean(axis=0), full_matrices=False)
    coordinates = np.zeros((n_parts, n_components))
    width = min(n_components, s.size)
    coordinates[:, :width] = u[:, :width] * s[:width]
    # The sign of a singular vector is the library's whim: largest coordinate positive.
    largest = np.abs(coordinates).argmax(axis=0)
    signs = np.sign(coordinates[largest, np.arange(n_components)])
    return coordinates * np.where(signs == 0, 1, signs) / max(np.abs(coordinates).max(), 1e-300)


def _layouts_of_components(
    graph: sp.csr_matrix,
    members: tuple[np.ndarray, np.ndarray],
    centres: np.ndarray,
    state: np.random.RandomState,
    find: Callable[[sp.csr_matrix, int], np.ndarray],
) -> np.ndarray:
    """Each part's own eigenvectors, scaled to half the way to the nearest other part."""
    n_components = centres.shape[1]
    where = np.empty((graph.shape[0], n_components), np.float32)
    order, bounds = members
    place = np.empty(order.size, graph.indices.dtype)  # of a cell in its part
    place[order] = np.arange(order.size) - np.repeat(bounds[:-1], np.diff(bounds))
    for first, last, centre in zip(bounds[:-1], bounds[1:], centres, strict=True):
        inside, size = order[first:last], int(last - first)
        apart = np.linalg.norm(centres - centre, axis=1)
        radius = apart[apart > 0].min() / 2 if (apart > 0).any() else 1.0
        if size < 2 * n_components or size <= n_components + 1:
            own = state.uniform(low=-radius, high=radius, size=(size, n_components))
        else:
            # Not graph[inside][:, inside], which takes as long as the whole graph for each part.
            rows = graph[inside]
            edges = rows.data, place[rows.indices], rows.indptr
            own = find(sp.csr_matrix(edges, shape=(size, size)), n_components)
            own = own * (radius / np.abs(own).max())
        where[inside] = own + centre
    return where


def _eigenvectors(
    graph: sp.csr_matrix,
    n_components: int,
    state: np.random.RandomState,
    arpack_below: int,
    to_device: Callable[[Any], Any] = np.asarray,
) -> np.ndarray:
    """Eigenvectors 2 .. n_components + 1 of the normalised Laplacian (Belkin, Niyogi 2003); where
    the solver fails random coordinates, which is logged.
    """
    n_cells, k = graph.shape[0], n_components + 1
    if n_cells <= k:
        return state.uniform(low=-10.0, high=10.0, size=(n_cells, n_components))
    # Drawn in any case: the stream of random numbers stays umap-learn's.
    state.normal(size=(n_cells, k))
    if n_cells >= max(arpack_below, 10 * k):
        return eigenvectors(graph, k, tolerance=_TOLERANCE, to_device=to_device)[:, 1:]
    root = np.sqrt(np.asarray(graph.sum(axis=0)).ravel())
    scale = sp.diags_array(1.0 / root)
    laplacian = sp.eye_array(n_cells) - scale @ graph @ scale
    try:
        values, vectors = eigsh(
            laplacian,
            k,
            which="SM",
            ncv=min(n_cells, max(2 * k + 1, int(np.sqrt(n_cells)))),
            tol=_TOLERANCE,
            v0=np.ones(n_cells),
            maxiter=n_cells * 5,
            **_SEEDED,
        )
    except ArpackError:
        logger.warning("the spectral start of UMAP did not converge: starting at random")
        return state.uniform(low=-10.0, high=10.0, size=(n_cells, n_components))
    return vectors[:, np.argsort(values, kind="stable")[1:k]]
