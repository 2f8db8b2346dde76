"""Weights of UMAP's fuzzy graph; compiled code is cached on disk.

McInnes, Healy, Melville (2018), section 3.1, in the order of operations of umap-learn 0.5
(`umap_.py`; BSD-3-Clause), so that the bits are those of umap-learn, as tests check. umap-learn
does not cache its compiled functions: importing and compiling it takes 10 s in each process, as
long as all other work for 20,000 cells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from scatlas.arrays.array_types import Array, Float32Array

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
    """Weight of each nearest cell of a reference, ``exp(-d / sigma)``.

    As umap-learn's ``transform`` computes it: `sigma` makes the weights without that of the nearest
    cell sum to ``log2(k)``, to 1e-5. A weight depends on its row alone: umap-learn's lower limit of
    `sigma` is a share of the mean distance of all rows, here of the row itself. Distances ascend in
    each row.
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
