"""Cells beside their nearest cells of a reference: mean coordinates, votes, relative distances."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from scatlas.arrays.array_types import Array, Float32Array, Floats, Ints


@njit(nogil=True, cache=True)
def average(reference: Float32Array, neighbours: Array, weights: Float32Array) -> Float32Array:
    """Weighted mean coordinates of each cell's neighbours ``[n, k]``, rows of `reference`.

    As ``init_graph_transform`` of umap-learn 0.5: where a weight is 1, which is that of an equal
    cell, it is the coordinates of the first such cell. No row of weights is all zero.
    """
    n, n_components = neighbours.shape[0], reference.shape[1]
    out = np.empty((n, n_components), np.float32)
    for i in range(n):
        equal = np.flatnonzero(weights[i] == 1)
        total = weights[i].astype(np.float64).sum()
        for axis in range(n_components):
            mean = 0.0
            for j in range(neighbours.shape[1]):
                mean += weights[i, j] / total * reference[neighbours[i, j], axis]
            out[i, axis] = reference[neighbours[i, equal[0]], axis] if equal.size else mean
    return out


@njit(nogil=True, cache=True)
def vote(codes: Array, neighbours: Array, weights: Float32Array) -> tuple[Ints, Floats]:
    """Label of the most weight among each cell's neighbours, and its share of the weight.

    The nearest neighbours come first, and of labels with the same weight that of the nearest wins.
    Cells with a negative label have none: they count against the winner, and -1 wins if no
    neighbour has a label.
    """
    n, k = neighbours.shape
    winners, shares = np.full(n, -1, np.int64), np.zeros(n)
    for i in range(n):
        total = 0.0
        for j in range(k):
            total += weights[i, j]
            code = codes[neighbours[i, j]]
            weight = 0.0
            for other in range(k):
                if codes[neighbours[i, other]] == code:
                    weight += weights[i, other]
            if code >= 0 and weight > shares[i]:
                winners[i], shares[i] = code, weight
        shares[i] /= total
    return winners, shares


@njit(nogil=True, cache=True, error_model="numpy")
def relative_distance(distances: Array, neighbours: Array, usual: Floats) -> Floats:
    """Mean distance of each cell to its neighbours, per mean `usual` distance of these to theirs; 1
    where both are zero, infinite where only the usual distance is.
    """
    n, k = neighbours.shape
    out = np.ones(n)
    for i in range(n):
        own, theirs = 0.0, 0.0
        for j in range(k):
            own += distances[i, j]
            theirs += usual[neighbours[i, j]]
        if own > 0:
            out[i] = own / theirs
    return out
