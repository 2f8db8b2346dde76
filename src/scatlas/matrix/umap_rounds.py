"""UMAP's layout in rounds: all cells move at once, with the same bits on any number of threads."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.arrays.kinds import is_gpu
from scatlas.kernels.dispatch import kernels_for
from scatlas.matrix.cell_blocks import over_cells

if TYPE_CHECKING:
    from collections.abc import Callable

    from scatlas.arrays.array_types import Array


def lay_out(
    start: Array,
    graph: tuple[Array, Array, Array],
    curve: tuple[float, float],
    *,
    gamma: float,
    negative_sample_rate: int,
    alpha: float,
    n_epochs: int,
    seed: int,
) -> Array:
    """Move cells towards their neighbours and away from random cells, in rounds.

    ``graph`` has ``indptr``, ``indices`` (on a GPU int32) and positive weights of a symmetric CSR
    graph, where ``start`` is; ``curve`` has ``a`` and ``b`` of the weight ``1 / (1 + a * d**(2 *
    b))`` on the map. The learning rate falls linearly from ``alpha`` to zero. As in umap-learn the
    first of ``n_epochs`` rounds uses no edge, and ``negative_sample_rate`` counts random cells per
    use of an edge. The bits depend on the arguments alone; on a GPU a round is the CPU's to
    rounding.
    """
    indptr, indices, weights = graph
    largest = weights.max() if weights.size else 1
    weights = weights.astype(np.float32, copy=False) if largest == 1 else weights / largest
    edges = indptr.astype(np.int64, copy=False), indices, weights.astype(np.float32, copy=False)
    before, after = start.copy(), start.copy()
    kernels = kernels_for("graphs.layout", start)

    def move_all(call: Callable[..., Any], keys: Array | None) -> Array:
        nonlocal before, after
        for number in range(1, n_epochs):
            share = (number - 1) / n_epochs
            call(
                partial(
                    kernels.run_round,
                    *(before, after, before, edges, keys, curve),
                    number=number,
                    rate=alpha * (1.0 - share),
                    # Groups find their places before cells come to rest: damped from the start,
                    # the layout of many cells stays near where it began.
                    damping=max(0.0, 4.0 * share - 3.0),
                    pulls=2,
                    gamma=gamma,
                    negative_sample_rate=negative_sample_rate,
                    seed=seed,
                )
            )
            before, after = after, before
        return before

    if is_gpu(start):
        return move_all(lambda move: move(), None)
    with over_cells(len(start)) as call:
        return move_all(call, np.arange(len(start), dtype=np.uint64))
