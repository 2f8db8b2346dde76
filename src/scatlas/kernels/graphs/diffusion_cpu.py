"""Steps of Chebyshev filters on a graph: vectors are averaged over the neighbours of each cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from scatlas.arrays.array_types import Array, Floats, Ints

# Vectors per block: those of a cell fill one cache line of 64 bytes.
WIDTH = 8


def run_step(
    vectors: Floats,
    before: Floats,
    out: Floats,
    edges: tuple[Array, Array, Array],
    degrees: Floats,
    factors: tuple[float, float, float],
    rows: tuple[int, int],
) -> None:
    """Write ``factor * (mean of the neighbours - shift * vectors) - minus * before`` of some cells.

    The three `factors` are in this order; means are weighted, and no degree is zero. Vectors are
    ``[n_blocks, n, WIDTH]``; `out` may be `before`.
    """
    _run_step(vectors, before, out, *edges, degrees, *factors, *rows)


@njit(nogil=True, cache=True, error_model="numpy")
def _run_step(
    vectors: Floats,
    before: Floats,
    out: Floats,
    indptr: Ints,
    indices: Array,
    weights: Array,
    degrees: Floats,
    factor: float,
    shift: float,
    minus: float,
    start: int,
    stop: int,
) -> None:
    total = np.empty(WIDTH)
    for block in range(vectors.shape[0]):
        for i in range(start, stop):
            total[:] = 0.0
            for edge in range(indptr[i], indptr[i + 1]):
                weight = np.float64(weights[edge])
                other = indices[edge]
                for k in range(WIDTH):
                    total[k] += weight * vectors[block, other, k]
            for k in range(WIDTH):
                step = factor * (total[k] / degrees[i] - shift * vectors[block, i, k])
                out[block, i, k] = step - minus * before[block, i, k]
