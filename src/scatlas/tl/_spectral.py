"""Where UMAP's points start: eigenvectors of the graph's Laplacian, the same on every run.

umap-learn has the same formulas, but SciPy 1.17 and later restart a stalled eigen-solver from
unseeded random numbers: two runs of ``umap`` then give two pictures.
"""

from __future__ import annotations

import inspect
import logging
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import ArpackError, eigsh

from scatlas import blocks
from scatlas.arrays.kinds import kind_of
from scatlas.elements import to_contiguous
from scatlas.kernels import csr_arrays, kernels_for
from scatlas.kernels.graphs.edges_cpu import positions_by_label
from scatlas.matrix.graph_eigenvectors import eigenvectors, random_vectors

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

_TOLERANCE = 1e-4
# ARPACK keeps sqrt(n) vectors of length n: 22 GB at this many cells. Filters keep three dozen.
UMAP_LEARN_BELOW = 2_000_000
# Filters are faster from a few thousand cells: 0.7 s in place of 2.3 s for 20,000.
FAST_BELOW = 4_000
# Cells of the random vectors that parts share, 134 MB; a larger part draws its own.
_SHARED = 2**21
# Before 1.17 SciPy's solver (in Fortran) carried its own fixed seed, and took none.
_SEEDED = {"rng": 0} if "rng" in inspect.signature(eigsh).parameters else {}


class _Parts(NamedTuple):
    """A graph where filters run, its nodes by part, their positions within the parts, and what
    filters need: sums of its rows by part, and random vectors of cells.
    """

    graph: Any
    order: np.ndarray
    bounds: np.ndarray
    position: Any
    degrees: Any
    vectors: Any
    to_device: Callable[[Any], Any]
    fast_from: int
    state: np.random.RandomState

    def graph_of(self, part: slice) -> Any:
        if self.bounds.size == 2:
            return self.graph
        # Not [nodes][:, nodes], which takes as long as the whole graph for each part.
        rows = blocks.select_rows(self.graph, self.order[part])
        return blocks.csr(rows.data, self.position[rows.indices], rows.indptr, rows.shape[0])


def start(
    graph: sp.csr_matrix,
    n_components: int,
    state: np.random.RandomState,
    cells: Callable[[], Any],
    *,
    arpack_below: int,
    there: Any = None,
    to_device: Callable[[Any], Any] = np.asarray,
) -> np.ndarray:
    """Coordinates to start UMAP from, a little noise on them: float32 [cells x n_components],
    largest coordinate 10; ``state`` is drawn from as umap-learn draws.

    ``cells``, called for many parts, gives their representation. From ``arpack_below`` cells on
    Chebyshev filters replace ARPACK, umap-learn's choice below 2,000,000 cells; they run where
    ``there`` is, the graph again, and ``to_device`` moves arrays (``cupy_arrays.on_gpu``: a GPU).
    """
    there, k = graph if there is None else there, n_components + 1
    one = to_device(np.zeros(graph.shape[0], np.int8))
    labels, n_parts = kernels_for("graphs.edges", one).find_parts(csr_arrays(there)[::-1], one)
    order, bounds = positions_by_label(blocks.on_host(labels), n_parts)
    position = np.empty(order.size, graph.indices.dtype)
    position[order] = np.arange(order.size) - np.repeat(bounds[:-1], np.diff(bounds))
    degrees = np.asarray(graph.sum(axis=1, dtype=np.float64)).ravel()[order]
    vectors = random_vectors(min(np.diff(bounds).max(), _SHARED) if n_parts > 1 else 0, k)
    moved = to_device(position), to_device(degrees), to_device(vectors)
    parts = _Parts(there, order, bounds, *moved, to_device, max(arpack_below, 10 * k), state)
    if n_parts == 1:
        where = _eigenvectors(parts, n_components, slice(0, order.size))
    else:
        where = _layouts_of_components(parts, _centres(parts, labels, n_components, cells))
    where = (where * (10.0 / np.abs(where).max())).astype(np.float32)
    return where + state.normal(scale=1e-4, size=where.shape).astype(np.float32)


def _centres(parts: _Parts, labels: Any, n_components: int, cells: Callable[[], Any]) -> np.ndarray:
    """Place of each part: both ends of each axis, or, for more parts, PCA of their mean cells;
    umap-learn's affinities exp(-distance^2) are all zero between clusters.
    """
    bounds, n_parts = parts.bounds, parts.bounds.size - 1
    if n_parts <= 2 * n_components:
        half = -(-n_parts // 2)
        ends = np.eye(half, n_components)
        return np.vstack([ends, -ends])[:n_parts]
    x = cells()
    kind = kind_of(x)
    # NumPy adds cells one after the other, as that kernel, but in pairs those of one column.
    if kind.gpu and not kind.sparse and x.shape[1] > 1 and x.dtype.char in "fd":
        add = kernels_for("graphs.nearest", x).add_by_label
        sums = blocks.on_host(add(x, labels, n_parts, cosine=False, dtype=x.dtype))
        means = (sums / np.diff(bounds)[:, None]).astype(x.dtype)
    else:
        x, nodes = to_contiguous(x), (parts.order[i:j] for i, j in pairwise(bounds))
        means = np.vstack([np.asarray(x[part].mean(axis=0)).ravel() for part in nodes])
    means = means.astype(np.float64)
    u, s, _ = np.linalg.svd(means - means.mean(axis=0), full_matrices=False)
    coordinates = np.zeros((n_parts, n_components))
    width = min(n_components, s.size)
    coordinates[:, :width] = u[:, :width] * s[:width]
    # The sign of a singular vector is the library's whim: largest coordinate positive.
    largest = np.abs(coordinates).argmax(axis=0)
    signs = np.sign(coordinates[largest, np.arange(n_components)])
    return coordinates * np.where(signs == 0, 1, signs) / max(np.abs(coordinates).max(), 1e-300)


def _layouts_of_components(parts: _Parts, centres: np.ndarray) -> np.ndarray:
    """Each part's own eigenvectors, scaled to half the way to the nearest other part."""
    n_components = centres.shape[1]
    where = np.empty((parts.order.size, n_components), np.float32)
    for (first, last), centre in zip(pairwise(parts.bounds.tolist()), centres, strict=True):
        size = last - first
        apart = np.linalg.norm(centres - centre, axis=1)
        radius = apart[apart > 0].min() / 2 if (apart > 0).any() else 1.0
        if size < 2 * n_components or size <= n_components + 1:
            own = parts.state.uniform(low=-radius, high=radius, size=(size, n_components))
        else:
            own = _eigenvectors(parts, n_components, slice(first, last))
            own = own * (radius / np.abs(own).max())
        where[parts.order[first:last]] = own + centre
    return where


def _eigenvectors(parts: _Parts, n_components: int, part: slice) -> np.ndarray:
    """Eigenvectors 2 .. n_components + 1 of the normalised Laplacian (Belkin, Niyogi 2003); where
    the solver fails random coordinates, which is logged.
    """
    n_cells, k, state = part.stop - part.start, n_components + 1, parts.state
    if n_cells <= k:
        return state.uniform(low=-10.0, high=10.0, size=(n_cells, n_components))
    graph, vectors = parts.graph_of(part), parts.vectors
    with ThreadPoolExecutor(1) as beside:
        # Drawn in any case: the stream of random numbers stays umap-learn's.
        beside.submit(state.normal, size=(n_cells, k))
        if n_cells >= parts.fast_from:
            return eigenvectors(
                csr_arrays(graph)[::-1],
                parts.degrees[part],
                # Without a name here: they go when they are used.
                vectors[:n_cells]
                if n_cells <= len(vectors)
                else parts.to_device(random_vectors(n_cells, k)),
                k,
                tolerance=_TOLERANCE,
            )[:, 1:]
    graph = blocks.on_host(graph)
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
