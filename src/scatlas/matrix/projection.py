"""UMAP's layout in rounds, and new cells on a map, in NumPy or CuPy arrays: what a cell gets
depends on its own neighbours alone, not on other new cells, blocks or threads.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.arrays.kinds import is_gpu
from scatlas.compute.threads import over_cells
from scatlas.errors import InputError
from scatlas.kernels import kernels_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from scatlas.arrays.array_types import Array, Float32Array, Floats, Ints, UInt64Array
    from scatlas.compute.threads import Rows

# umap-learn takes 100 rounds for up to 10,000 new cells and 30 for more: but a cell's place must
# not depend on the number of cells projected with it.
N_EPOCHS = 30


def project_layout(
    reference: Float32Array,
    neighbours: Array,
    distances: Array,
    curve: tuple[float, float],
    *,
    keys: UInt64Array,
    seed: int = 0,
) -> Float32Array:
    """Coordinates of new cells on a UMAP, where the cells of the reference do not move: the
    transform of umap-learn 0.5, in the rounds of :func:`lay_out`, from a fourth of the rate.

    ``neighbours`` and ``distances`` are ``[n, k]``, the nearest first; ``keys`` name the cells in
    the random numbers.
    """
    _check_neighbours(neighbours, reference.shape[0])
    layout = kernels_for("graphs.layout", neighbours)
    n_cells, k = neighbours.shape
    reference = reference.astype(np.float32, order="C", copy=False)
    out = np.empty_like(reference, shape=(n_cells, reference.shape[1]))

    def project(rows: Rows) -> None:
        own = slice(*rows)
        n = rows[1] - rows[0]
        weights = _weights(distances[own])
        average = kernels_for("graphs.umap", neighbours).average
        before = average(reference, neighbours[own], weights)
        after = before.copy()
        indptr = np.arange(n + 1, like=reference) * k
        edges = indptr, neighbours[own].reshape(-1), weights.reshape(-1)
        for number in range(1, N_EPOCHS):
            layout.run_round(
                *(before, after, reference, edges, keys[own], curve),
                **({} if is_gpu(before) else {"rows": (0, n)}),
                number=number,
                rate=0.25 * (1.0 - (number - 1) / N_EPOCHS),
                damping=1.0,
                pulls=1,
                gamma=1.0,
                negative_sample_rate=5,
                seed=seed,
            )
            before, after = after, before
        out[own] = before

    over_all(n_cells, neighbours, project)
    return out


def vote_labels(codes: Array, neighbours: Array, distances: Array) -> tuple[Ints, Floats]:
    """Label of each cell by the vote of its nearest reference cells with the weights of UMAP's
    transform, and its share of all weights.

    A negative code is no label; the nearest of equal labels wins; -1 without labelled neighbours.
    """
    _check_neighbours(neighbours, codes.size)
    kernels = kernels_for("graphs.umap", neighbours)
    n = neighbours.shape[0]
    winners = np.empty_like(codes, shape=n, dtype=np.int64)
    shares = np.empty_like(codes, shape=n, dtype=np.float64)

    def vote(rows: Rows) -> None:
        own = slice(*rows)
        found = kernels.vote(codes, neighbours[own], _weights(distances[own]))
        winners[own], shares[own] = found

    over_all(n, neighbours, vote)
    return winners, shares


def novelty(neighbours: Array, distances: Array, usual: Floats) -> Floats:
    """Mean distance of each cell to its nearest reference cells, divided by the mean ``usual`` one
    of these, because groups differ in density: 1 is usual.

    "Simplified LOF" (Schubert, Zimek, Kriegel 2014): the local outlier factor of Breunig et al.
    (SIGMOD 2000) with mean distances. A cell of the reference must not be its own neighbour.
    """
    _check_neighbours(neighbours, usual.size)
    kernels = kernels_for("graphs.umap", neighbours)
    out = np.empty_like(usual, shape=neighbours.shape[0])

    def compare(rows: Rows) -> None:
        own = slice(*rows)
        out[own] = kernels.relative_distance(distances[own], neighbours[own], usual)

    over_all(out.size, neighbours, compare)
    return out


def novelty_ranks(novelty: Floats, reference_novelty: Floats) -> Floats:
    """Share of the reference cells with a smaller novelty: one at 0.99 is less usual than 99%."""
    return (
        np.searchsorted(np.sort(reference_novelty), novelty, side="left") / reference_novelty.size
    )


def _weights(distances: Array) -> Array:
    """Weights of the nearest cells, in UMAP's transform."""
    weights: Array = kernels_for("graphs.umap", distances).memberships_in_reference(distances)
    return weights


def over_all(n_cells: int, neighbours: Array, task: Callable[[Rows], None]) -> None:
    """Call a task for blocks of cells over threads, or on a GPU for all."""
    if is_gpu(neighbours):
        task((0, n_cells))
    else:
        with over_cells(n_cells) as call:
            call(task)


def _check_neighbours(neighbours: Array, n_reference: int) -> None:
    """Check them before kernels use them as indices without a check of bounds."""
    if neighbours.size and not (neighbours.min() >= 0 and neighbours.max() < n_reference):
        wrong = (neighbours < 0) | (neighbours >= n_reference)
        cell = np.flatnonzero(wrong.any(axis=1))[0]
        raise InputError(
            f"cell {cell} has the neighbour {neighbours[wrong][0]}, "
            f"but the reference has {n_reference} cells: pass neighbours in this reference"
        )


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
    """Move cells, in rounds, towards their neighbours in a symmetric CSR graph (on a GPU with int32
    indices) and away from random ones, ``negative_sample_rate`` per use of an edge.

    ``curve`` has ``a`` and ``b`` of the weight ``1 / (1 + a * d**(2 * b))`` on the map. The bits
    depend on the arguments alone; on a GPU a round is the CPU's to rounding.
    """
    indptr, indices, weights = graph
    largest = weights.max() if weights.size else 1
    weights = weights.astype(np.float32, copy=False) if largest == 1 else weights / largest
    edges = indptr.astype(np.int64, copy=False), indices, weights.astype(np.float32, copy=False)
    before, after = start.copy(), start.copy()
    kernels = kernels_for("graphs.layout", start)

    def move_all(call: Callable[..., Any], keys: Array | None) -> Array:
        nonlocal before, after
        # As in umap-learn the first round uses no edge.
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
