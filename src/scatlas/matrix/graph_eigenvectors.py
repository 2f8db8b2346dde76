"""Largest eigenvectors of a large graph, by filters of Chebyshev polynomials."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas.arrays.kinds import is_gpu
from scatlas.compute.threads import over_cells
from scatlas.kernels import kernels_for
from scatlas.kernels.graphs.edges_cpu import WIDTH

if TYPE_CHECKING:
    from collections.abc import Callable

    from scatlas.arrays.array_types import Array, Floats

logger = logging.getLogger(__name__)

# Products with the graph per filter, and filters. A tree of 20,000 cells needs three filters.
_DEGREE = 50
_MAX_FILTERS = 5
# Vectors beyond those requested: the filter damps what lies below the last one's eigenvalue.
_EXTRA = 3
_FIRST_CUT = 0.5


def random_vectors(n_cells: int, n: int) -> Floats:
    """What :func:`eigenvectors` starts from; fewer cells have the first rows of these."""
    width = -(-(n + _EXTRA) // WIDTH) * WIDTH
    return np.random.default_rng(0).standard_normal((n_cells, width))


def eigenvectors(
    edges: tuple[Array, Array, Array], degrees: Floats, vectors: Floats, n: int, *, tolerance: float
) -> Floats:
    """Orthonormal eigenvectors of the `n` largest eigenvalues of ``D^-1/2 A D^-1/2``, the largest
    first (Zhou, Saad, Tiago, Chelikowsky 2006, J. Comput. Phys. 219, algorithm 4.1).

    ``edges`` are offsets (int64), indices and weights of the symmetric and connected A, ``degrees``
    the sums of its rows and the diagonal of D, ``vectors`` are :func:`random_vectors`, of which the
    first is overwritten; `n` is at most a tenth of the cells. The bits depend on A alone if BLAS
    has one thread; on a GPU, where the arrays are there, they agree to rounding.
    """
    root = np.sqrt(degrees)[:, None]
    vectors[:, :1] = root
    kernels = kernels_for("graphs.edges", degrees)
    with over_cells(degrees.size) as over_blocks:
        call: Callable[..., Any] = (lambda task: task()) if is_gpu(degrees) else over_blocks

        def step(
            now: Array, before: Array, factor: float = 1.0, shift: float = 0.0, minus: float = 0.0
        ) -> Array:
            out = before if minus else np.empty_like(now)
            factors = factor, shift, minus
            call(partial(kernels.run_step, now, before, out, edges, degrees, factors))
            return out

        cut = _FIRST_CUT
        # A polynomial of the graph damps all but the largest eigenvalues of the vectors, which are
        # made orthonormal and rotated to eigenvectors of the graph on their span.
        for _ in range(_MAX_FILTERS):
            basis, _ = np.linalg.qr(_filtered(vectors / root, cut, step) * root)
            scaled = _blocks(basis / root)
            product = _columns(step(scaled, scaled)) * root
            projected = blocks.on_host(basis.T @ product)
            values, rotation = np.linalg.eigh((projected + projected.T) / 2)
            values, rotation = (np.asarray(x[..., ::-1], like=root) for x in (values, rotation))
            vectors, cut = basis @ rotation, float(values[-1])
            residuals = np.linalg.norm(product @ rotation - vectors * values, axis=0)[:n]
            if residuals.max() <= tolerance:
                break
        else:
            # The vectors still vary little between neighbours.
            logger.info(
                "eigenvectors of the graph: residual %.1e after %d products, above %.1e",
                *(float(residuals.max()), _MAX_FILTERS * _DEGREE, tolerance),
            )
    found = blocks.on_host(vectors[:, :n])
    largest = np.abs(found).argmax(axis=0)
    return found * np.where(found[largest, np.arange(n)] < 0, -1.0, 1.0)


def _filtered(vectors: Array, cut: float, step: Callable[..., Array]) -> Array:
    """Vectors after a Chebyshev polynomial that is at most 1 for eigenvalues from -1 to `cut`."""
    half, middle = (cut + 1) / 2, (cut - 1) / 2
    before = _blocks(vectors)
    now = step(before, before, 1 / half, middle)
    for _ in range(_DEGREE - 1):
        before, now = now, step(now, before, 2 / half, middle, 1.0)
    return _columns(now)


def _blocks(vectors: Array) -> Array:
    """``[n_cells, n]`` as ``[n / WIDTH, n_cells, WIDTH]``, the order of the kernel."""
    parts = vectors.reshape(vectors.shape[0], -1, WIDTH)
    return np.moveaxis(parts, 1, 0).astype(np.float64, order="C", copy=False)


def _columns(parts: Array) -> Array:
    """Inverse of :func:`_blocks`."""
    return np.moveaxis(parts, 0, 1).reshape(parts.shape[1], -1)
