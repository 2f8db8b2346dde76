"""New cells on a map that exists, by their nearest cells of a reference.

What a cell gets depends on its own neighbours alone: not on the cells projected with it, nor on
blocks or threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.errors import InputError
from scatlas.kernels.graphs import layout_cpu, projection_cpu, umap_cpu
from scatlas.matrix.cell_blocks import over_cells

if TYPE_CHECKING:
    from scatlas.arrays.array_types import Array, Float32Array, Floats, Ints, UInt64Array
    from scatlas.matrix.cell_blocks import Rows

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
    gamma: float = 1.0,
    negative_sample_rate: int = 5,
    alpha: float = 1.0,
    n_epochs: int = N_EPOCHS,
    seed: int = 0,
) -> Float32Array:
    """Coordinates of new cells on a UMAP, where the cells of the reference do not move.

    The transform of umap-learn 0.5: each cell starts at the weighted mean of its nearest reference
    cells, or at an equal cell, and moves by the forces of these and of random reference cells, in
    the rounds of :func:`scatlas.matrix.umap_rounds.lay_out`, from a fourth of the learning rate.

    Parameters
    ----------
    reference
        float32 ``[n_reference, n_components]``: coordinates on the map.
    neighbours
        int ``[n, k]``: nearest reference cells, the nearest first.
    distances
        float ``[n, k]``: distances to these, ascending per row.
    curve
        ``a`` and ``b`` of the map, as in ``uns['umap']['params']``.
    keys
        uint64 ``[n]``: names each cell in the random numbers, such as its number in its plate.
    gamma, negative_sample_rate, alpha
        As for :func:`scatlas.tl.umap`.
    n_epochs
        Number of rounds.
    seed
        Seed, 0 to 2**64 - 1.

    Returns
    -------
    float32 ``[n, n_components]``.

    Raises
    ------
    InputError
        A neighbour that is not in the reference.
    """
    _check_neighbours(neighbours, reference.shape[0])
    n_cells, k = neighbours.shape
    reference = np.ascontiguousarray(reference, dtype=np.float32)
    out = np.empty((n_cells, reference.shape[1]), np.float32)

    def project(rows: Rows) -> None:
        own = slice(*rows)
        n = rows[1] - rows[0]
        weights = umap_cpu.memberships_in_reference(distances[own])
        before = projection_cpu.average(reference, neighbours[own], weights)
        after = np.empty_like(before)
        edges = np.arange(n + 1) * k, neighbours[own].reshape(-1), weights.reshape(-1)
        for number in range(1, n_epochs):
            layout_cpu.run_round(
                *(before, after, reference, edges, keys[own], curve, (0, n)),
                number=number,
                rate=alpha / 4 * (1.0 - (number - 1) / n_epochs),
                pulls=1,
                gamma=gamma,
                negative_sample_rate=negative_sample_rate,
                seed=seed,
            )
            before, after = after, before
        out[own] = before

    with over_cells(n_cells) as call:
        call(project)
    return out


def vote_labels(codes: Array, neighbours: Array, distances: Array) -> tuple[Ints, Floats]:
    """Label of each cell by the weighted vote of its nearest reference cells.

    Parameters
    ----------
    codes
        int ``[n_reference]``: label of each reference cell; negative: none.
    neighbours, distances
        As for :func:`project_layout`. A vote has the weight of the neighbour in UMAP's transform.

    Returns
    -------
    winners : int64 ``[n]``
        Label with the largest weight, of equal ones that of the nearest cell; -1 if no neighbour
        has a label.
    shares : float64 ``[n]``
        Its share of the weight of all neighbours.

    Raises
    ------
    InputError
        A neighbour that is not in the reference.
    """
    _check_neighbours(neighbours, codes.size)
    winners = np.empty(neighbours.shape[0], np.int64)
    shares = np.empty(neighbours.shape[0])

    def vote(rows: Rows) -> None:
        own = slice(*rows)
        weights = umap_cpu.memberships_in_reference(distances[own])
        winners[own], shares[own] = projection_cpu.vote(codes, neighbours[own], weights)

    with over_cells(winners.size) as call:
        call(vote)
    return winners, shares


def novelty(neighbours: Array, distances: Array, usual: Floats) -> Floats:
    """Distance of each cell to its nearest reference cells, against what is usual among these.

    The mean distance of the cell to its neighbours, divided by the mean of the same of these
    neighbours within the reference: the local outlier factor of Breunig et al. (SIGMOD 2000) with
    mean distances in place of reachability distances (Schubert, Zimek, Kriegel 2014, "simplified
    LOF"). The ratio is local, because groups differ in density: a distance that is usual in one
    group is far outside another. 1 is usual; :func:`novelty_ranks` says which ratios are rare.

    Parameters
    ----------
    neighbours, distances
        As for :func:`project_layout`. For cells of the reference: without the cell itself.
    usual
        float64 ``[n_reference]``: mean distance of each reference cell to its neighbours within the
        reference, as many as here and without the cell itself.

    Returns
    -------
    float64 ``[n]``, at least 0.

    Raises
    ------
    InputError
        A neighbour that is not in the reference.
    """
    _check_neighbours(neighbours, usual.size)
    out = np.empty(neighbours.shape[0])

    def compare(rows: Rows) -> None:
        own = slice(*rows)
        out[own] = projection_cpu.relative_distance(distances[own], neighbours[own], usual)

    with over_cells(out.size) as call:
        call(compare)
    return out


def novelty_ranks(novelty: Floats, of_reference: Floats) -> Floats:
    """Share of the reference cells with a smaller novelty, 0 to 1, float64 ``[n]``.

    A cell at 0.99 lies further from the reference, by the measure of its neighbours, than 99% of
    the reference cells do.
    """
    return np.searchsorted(np.sort(of_reference), novelty, side="left") / of_reference.size


def _check_neighbours(neighbours: Array, n_reference: int) -> None:
    """Check them before kernels use them as indices without a check of bounds."""
    if neighbours.size and not (neighbours.min() >= 0 and neighbours.max() < n_reference):
        wrong = (neighbours < 0) | (neighbours >= n_reference)
        cell = np.flatnonzero(wrong.any(axis=1))[0]
        msg = (
            f"cell {cell} has the neighbour {neighbours[wrong][0]}, "
            f"but the reference has {n_reference} cells: pass neighbours in this reference"
        )
        raise InputError(msg)
