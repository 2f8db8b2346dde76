"""Weights of UMAP's fuzzy graph, and cells beside their nearest cells of a reference.

McInnes, Healy, Melville (2018), section 3.1, with the bits of umap-learn 0.5 (`umap_.py`;
BSD-3-Clause). umap-learn does not cache its compiled functions: importing and compiling it takes
ten seconds in each process, as long as all other work for 20,000 cells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from scatlas.arrays.array_types import Array, Float32Array, Floats, Ints

_MAX_STEPS = 64  # of the search for sigma
_TOLERANCE = 1e-5  # of the sum of weights, against log2(k)
_MIN_SIGMA = 1e-3  # times the mean distance of the row
_UNBOUNDED = float(np.finfo(np.float32).max)


def memberships(distances: Array) -> Float32Array:
    """Weight of each neighbour, ``exp(-(d - rho) / sigma)`` and at most 1, 0 for the cell itself.

    ``rho`` is the row's smallest distance above zero, and ``sigma`` makes its weights sum to
    ``log2(k)``, to 1e-5. Distances ascend in each row, the cell itself first.
    """
    return _memberships_of(distances, is_self_first=True)


def memberships_in_reference(distances: Array) -> Float32Array:
    """Weight of each nearest cell of a reference, ``exp(-d / sigma)``, of ascending distances.

    As in umap-learn's ``transform``, `sigma` makes the weights without that of the nearest cell sum
    to ``log2(k)``, to 1e-5. The lower limit of `sigma` is a share of the mean distance of the row,
    not of all rows.
    """
    return _memberships_of(distances, is_self_first=False)


def _memberships_of(distances: Array, *, is_self_first: bool) -> Float32Array:
    distances = np.ascontiguousarray(distances, dtype=np.float32)
    out = np.empty(distances.shape, dtype=np.float32)
    _memberships(distances, is_self_first, out)
    return out


@njit(nogil=True, cache=True)
def _memberships(distances: Float32Array, is_self_first: bool, out: Array) -> None:
    k = distances.shape[1]
    target = np.log2(np.float64(k))
    for row in range(distances.shape[0]):
        d = distances[row]
        rho = np.float32(0.0)
        for j in range(k if is_self_first else 0):
            if d[j] > 0.0:
                rho = d[j]
                break
        sigma = _sigma(d, rho, target)
        out[row, 0] = 0.0
        for j in range(int(is_self_first), k):
            beyond = d[j] - rho
            out[row, j] = 1.0 if beyond <= 0.0 else np.exp(-(beyond / sigma))


@njit(nogil=True, cache=True)
def _sigma(d: Float32Array, rho: float, target: float) -> np.float32:
    low, high, middle = 0.0, _UNBOUNDED, 1.0
    for _ in range(_MAX_STEPS):
        total = 0.0
        for j in range(1, d.size):
            beyond = d[j] - rho
            total += np.exp(-(beyond / middle)) if beyond > 0.0 else 1.0
        if abs(total - target) < _TOLERANCE:
            break
        if total > target:
            high = middle
            middle = (low + high) / 2.0
        else:
            low = middle
            middle = middle * 2.0 if high >= _UNBOUNDED else (low + high) / 2.0
    # If rho is 0, all distances are 0, all weights are 1, and sigma does not matter.
    total_distance = np.float32(0.0)
    for j in range(d.size):
        total_distance += d[j]
    mean: Any = total_distance / d.size
    return np.float32(max(middle, _MIN_SIGMA * mean))


@njit(nogil=True, cache=True)
def average(reference: Float32Array, neighbours: Array, weights: Float32Array) -> Float32Array:
    """Weighted mean coordinates of each cell's neighbours; where a weight is 1, that of an equal
    cell, those of the first such cell (``init_graph_transform`` of umap-learn 0.5).
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
    """Label of the most weight among each cell's neighbours, of equal ones the nearest's, and its
    share of the weight. Cells without one (negative) count against it; -1 if none has a label.
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
