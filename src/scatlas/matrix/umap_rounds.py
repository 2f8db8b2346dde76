"""UMAP's layout in rounds: all cells move at once, with the same bits on any number of threads."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from scatlas.kernels.graphs import layout_cpu
from scatlas.matrix.cell_blocks import over_cells

if TYPE_CHECKING:
    import scipy.sparse as sp

    from scatlas.arrays.array_types import Float32Array


def lay_out(
    start: Float32Array,
    graph: sp.csr_matrix,
    curve: tuple[float, float],
    *,
    gamma: float,
    negative_sample_rate: int,
    alpha: float,
    n_epochs: int,
    seed: int,
) -> Float32Array:
    """Move cells towards their neighbours and away from random cells, in rounds.

    Parameters
    ----------
    start
        float32 ``[n, n_components]``, C order; not changed.
    graph
        Symmetric weights above zero ``[n, n]``.
    curve
        ``a`` and ``b`` of the low-dimensional weight ``1 / (1 + a * d**(2 * b))``.
    gamma
        Weight of repulsion.
    negative_sample_rate
        Random cells per use of an edge.
    alpha
        Initial learning rate; it falls linearly to zero.
    n_epochs
        Number of rounds. As in umap-learn, the first uses no edge.
    seed
        Seed, 0 to 2**64 - 1.

    Returns
    -------
    float32 ``[n, n_components]``; its bits depend on the arguments alone.
    """
    n_cells = graph.shape[0]
    weights = (graph.data / graph.data.max(initial=0)).astype(np.float32)
    edges = graph.indptr.astype(np.int64, copy=False), graph.indices, weights
    keys = np.arange(n_cells, dtype=np.uint64)
    before, after = start.copy(), np.empty_like(start)
    with over_cells(n_cells) as call:
        for number in range(1, n_epochs):
            move = partial(
                layout_cpu.run_round,
                *(before, after, before, edges, keys, curve),
                number=number,
                rate=alpha * (1.0 - (number - 1) / n_epochs),
                pulls=2,
                gamma=gamma,
                negative_sample_rate=negative_sample_rate,
                seed=seed,
            )
            call(move)
            before, after = after, before
    return before
