"""UMAP's fuzzy graph and layout, compiled once a machine and not once a process.

McInnes, Healy, Melville (2018), sections 3.1 and 3.2, in the order of operations of umap-learn 0.5
(`umap_.py`, `layouts.py`; BSD-3-Clause), so that the same numbers give the same bits: tests compare
them. umap-learn does not cache its compiled functions: importing and compiling it takes 10 s in
every process, as long as all else for 20,000 cells. densMAP, other output metrics and the layout
on several threads, which depends on their timing, are left to umap-learn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROUNDS = 64  # of the search for sigma
_CLOSE_ENOUGH = 1e-5  # to log2(k)
_LEAST_SIGMA = 1e-3  # of the row's mean distance
_UNBOUNDED = float(np.finfo(np.float32).max)
_LONGEST_STEP = 4.0  # along an axis, before the learning rate


def memberships(distances: NDArray) -> NDArray[np.float32]:
    """Weight of each neighbour, ``exp(-(d - rho) / sigma)`` and at most 1.

    ``rho`` is the row's smallest distance above zero, and ``sigma`` makes its weights sum to
    ``log2(k)``, to 1e-5.

    Parameters
    ----------
    distances
        float ``[n, k]``, ascending in a row, the cell itself first.

    Returns
    -------
    float32 ``[n, k]``, 0 for the cell itself.
    """
    distances = np.ascontiguousarray(distances, dtype=np.float32)
    out = np.empty(distances.shape, dtype=np.float32)
    _memberships(distances, out)
    return out


def move(
    places: NDArray[np.float32],
    edges: tuple[NDArray, NDArray],
    curve: tuple[float, float],
    gamma: float,
    *,
    every: NDArray[np.float64],
    negative_sample_rate: float,
    alpha: float,
    n_rounds: int,
    seed: NDArray[np.int64],
) -> None:
    """Move the cells towards their neighbours and away from drawn cells, in place.

    Stochastic gradient descent on the cross entropy of the fuzzy graph, one edge after the other:
    the result depends on the seed and not on threads.

    Parameters
    ----------
    places
        float32 ``[n, n_components]``, C order: start, and result.
    edges
        ``indptr`` and ``indices`` of the CSR graph, both directions of each edge in it.
    curve
        ``a`` and ``b`` of the low-dimensional weight ``1 / (1 + a * d**(2 * b))``.
    gamma
        Weight of repulsion.
    every
        Rounds between two uses of an edge, at least 1.
    negative_sample_rate
        Cells drawn for each use of an edge.
    alpha
        First learning rate; it falls linearly to zero.
    n_rounds
        Rounds.
    seed
        int64 ``[3]``: state of Tausworthe's generator, each cell's own shifted by the bits of its
        first coordinate.
    """
    indptr = edges[0].astype(np.int64, copy=False)
    a, b = map(float, curve)
    every_drawn = every / negative_sample_rate
    next_use, next_drawn = every.copy(), every_drawn.copy()
    states = seed + places[:, :1].astype(np.float64).view(np.int64)
    for n in range(n_rounds):
        # umap-learn's rate lags one round: the first two are at full rate.
        rate = float(alpha * (1.0 - max(n - 1, 0) / n_rounds))
        _round(
            *(places, indptr, edges[1], a, b, float(gamma), rate, n),
            *(every, next_use, every_drawn, next_drawn, states),
        )


@njit(nogil=True, cache=True)
def _memberships(distances, out):
    k = distances.shape[1]
    target = np.log2(np.float64(k))
    for row in range(distances.shape[0]):
        d = distances[row]
        rho = np.float32(0.0)
        for j in range(k):
            if d[j] > 0.0:
                rho = d[j]
                break
        sigma = _sigma(d, rho, target)
        out[row, 0] = 0.0
        for j in range(1, k):
            beyond = d[j] - rho
            out[row, j] = 1.0 if beyond <= 0.0 else np.exp(-(beyond / sigma))


@njit(nogil=True, cache=True)
def _sigma(d, rho, target):
    low, high, middle = 0.0, _UNBOUNDED, 1.0
    for _ in range(_ROUNDS):
        total = 0.0
        for j in range(1, d.size):
            beyond = d[j] - rho
            total += np.exp(-(beyond / middle)) if beyond > 0.0 else 1.0
        if abs(total - target) < _CLOSE_ENOUGH:
            break
        if total > target:
            high = middle
            middle = (low + high) / 2.0
        else:
            low = middle
            middle = middle * 2.0 if high >= _UNBOUNDED else (low + high) / 2.0
    # Where rho is 0 all distances are, all weights are 1, and sigma does not matter.
    whole = np.float32(0.0)
    for j in range(d.size):
        whole += d[j]
    return np.float32(max(middle, _LEAST_SIGMA * (whole / d.size)))


# fastmath, as umap-learn compiles it: its contracted multiply-adds are part of the result.
@njit(nogil=True, cache=True, fastmath=True)
def _round(
    places, indptr, indices, a, b, gamma, alpha, n, every, next_use, every_drawn, next_drawn, states
):
    n_cells, n_components = places.shape
    for j in range(n_cells):
        for at in range(indptr[j], indptr[j + 1]):
            if next_use[at] > n:
                continue
            k = indices[at]
            d2 = _squared_distance(places[j], places[k])
            pull = 0.0
            if d2 > 0.0:
                pull = -2.0 * a * b * pow(d2, b - 1.0)
                pull /= a * pow(d2, b) + 1.0
            for axis in range(n_components):
                step = _clip(pull * (places[j, axis] - places[k, axis]))
                places[j, axis] += step * alpha
                places[k, axis] += -step * alpha
            next_use[at] += every[at]

            n_drawn = int((n - next_drawn[at]) / every_drawn[at])
            for _ in range(n_drawn):
                k = _draw(states[j]) % n_cells
                d2 = _squared_distance(places[j], places[k])
                if d2 > 0.0:
                    push = 2.0 * gamma * b
                    push /= (0.001 + d2) * (a * pow(d2, b) + 1)
                    if push > 0.0:
                        for axis in range(n_components):
                            step = _clip(push * (places[j, axis] - places[k, axis]))
                            places[j, axis] += step * alpha
            next_drawn[at] += n_drawn * every_drawn[at]


@njit(nogil=True, cache=True, fastmath=True)
def _squared_distance(x, y):
    total = np.float32(0.0)
    for axis in range(x.size):
        along = x[axis] - y[axis]
        total += along * along
    return total


@njit(nogil=True, cache=True)
def _clip(v):
    if v > _LONGEST_STEP:
        return _LONGEST_STEP
    if v < -_LONGEST_STEP:
        return -_LONGEST_STEP
    return v


@njit(nogil=True, cache=True)
def _draw(state):
    """Next random int32 (L'Ecuyer 1996, umap-learn's ``tau_rand_int``)."""
    x, y, z = state[0], state[1], state[2]
    x = (((x & 4294967294) << 12) & 0xFFFFFFFF) ^ ((((x << 13) & 0xFFFFFFFF) ^ x) >> 19)
    y = (((y & 4294967288) << 4) & 0xFFFFFFFF) ^ ((((y << 2) & 0xFFFFFFFF) ^ y) >> 25)
    z = (((z & 4294967280) << 17) & 0xFFFFFFFF) ^ ((((z << 3) & 0xFFFFFFFF) ^ z) >> 11)
    state[0], state[1], state[2] = x, y, z
    return np.int32(x ^ y ^ z)
