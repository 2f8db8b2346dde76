"""One round of UMAP's layout: each cell moves by the coordinates of the round before.

The forces are those of McInnes, Healy, Melville (2018), section 3.2, with the edge schedule of
umap-learn 0.5 (`layouts.py`, BSD-3-Clause). A cell sums the forces of its row alone, random numbers
are hashes, powers are polynomials and no step is fused: the bits depend neither on threads and
blocks nor on the processor and its C library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from scatlas.arrays.array_types import Array, Float32Array, Ints, UInt64Array

_F = np.float32
_LANES = 8  # of vector instructions: without a remainder of pairs, all are computed with them
# Length of a repulsive force. umap-learn limits it along each axis, which makes crosses of tight
# groups. Attractive forces need no limit: a cell moves at most to the mean of its neighbours.
_LONGEST = _F(4.0)
_FARTHEST = _F(40.0)  # move of a cell in a round
_NEAREST = _F(1e-12)  # squared distance below which cells coincide
_SOFTENING = _F(0.001)  # of repulsion
# Coefficients of log2(1 + t) / t and 2**t, t from 0 to 1, interpolated at Chebyshev's points, with
# errors of 1.2e-6 and 2e-7. Written out: LLVM vectorises only loops that have no loop inside.
_L0, _L1, _L2 = _F(1.442693), _F(-0.72114408), _F(0.47749636)
_L3, _L4, _L5, _L6 = _F(-0.33837721), _F(0.21394321), _F(-0.09462681), _F(0.02001665)
_E0, _E1, _E2 = _F(0.99999988), _F(0.69315451), _F(0.24014182)
_E3, _E4, _E5 = _F(0.05586034), _F(0.00894959), _F(0.00189375)
# SplitMix64 (Steele, Lea, Flood 2014): step of its counter, factors of its hash.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FACTOR_1, _FACTOR_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S32 = map(np.uint64, (27, 30, 31, 32))


class _Forces(NamedTuple):
    """Arguments of :func:`run_round` that are the same for all cells."""

    a: np.float32
    b: np.float32
    rate: np.float32
    damping: np.float32
    pulls: np.float32
    gamma: np.float32
    n_draws: int  # for each use of an edge


def run_round(
    coordinates: Float32Array,
    out: Float32Array,
    others: Float32Array,
    edges: tuple[Array, Array, Float32Array],
    keys: UInt64Array,
    curve: tuple[float, float],
    rows: tuple[int, int],
    *,
    number: int,
    rate: float,
    damping: float,
    pulls: int,
    gamma: float,
    negative_sample_rate: int,
    seed: int,
) -> None:
    """Write the coordinates of some cells after one more round, in which all move at once.

    A cell moves by ``rate * (pull + push) / (1 + damping * rate * stiffness)``, in which the
    stiffness is the sum of the factors of its attractive forces. Without damping, cells of a tight
    group jump to the other side of it in each round. A damping of 1 makes the step implicit, with
    neighbours that stand still: cells come to rest, but groups, whose cells hold each other, barely
    move.

    ``others`` are the coordinates of the neighbours: `coordinates`, or cells that do not move. An
    edge of weight ``w`` is used in ``w`` of the rounds, and pulls `pulls` times: twice if it pulls
    from the row of the other cell, too. Each use draws `negative_sample_rate` random cells, by
    `keys`, which repel by `gamma`. `curve` is ``a, b`` of the weight ``1 / (1 + a * d**(2 * b))``.
    """
    a, b = map(_F, curve)
    forces = _Forces(a, b, _F(rate), _F(damping), _F(pulls), _F(gamma), negative_sample_rate)
    _run_round(coordinates, out, others, edges, keys, rows, forces, number, np.uint64(seed))


@njit(nogil=True, cache=True, error_model="numpy")
def _run_round(
    coordinates: Float32Array,
    out: Float32Array,
    others: Float32Array,
    edges: tuple[Array, Array, Float32Array],
    keys: UInt64Array,
    rows: tuple[int, int],
    forces: _Forces,
    number: int,
    seed: np.uint64,
) -> None:
    indptr, indices, weights = edges
    n_components, n_draws = coordinates.shape[1], forces.n_draws
    most = 1
    for i in range(rows[0], rows[1]):
        most = max(most, indptr[i + 1] - indptr[i])
    used = np.empty(most, np.int64)
    most = -(-most * (1 + n_draws) // _LANES) * _LANES
    apart = np.zeros((n_components, most), np.float32)
    d2, factors = np.empty(most, np.float32), np.empty(most, np.float32)
    move = np.empty(n_components, np.float32)
    for i in range(rows[0], rows[1]):
        n_used = _used_edges(weights, indptr[i], indptr[i + 1], number, used)
        n_pairs = n_used * (1 + n_draws)
        for pair in range(n_used):
            other = np.int64(indices[used[pair]])
            for axis in range(n_components):
                apart[axis, pair] = coordinates[i, axis] - others[other, axis]
        stream = hash_numbers(seed, np.uint64(number), keys[i])
        for pair in range(n_used, n_pairs):
            stream += _STEP
            other = _draw(stream, others.shape[0])
            for axis in range(n_components):
                apart[axis, pair] = coordinates[i, axis] - others[other, axis]
        _factors(apart, n_used, n_pairs, forces, d2, factors)
        stiffness = _F(0.0)
        for pair in range(n_used):
            stiffness -= factors[pair]
        step = forces.rate / (_F(1.0) + forces.damping * forces.rate * stiffness)
        square = _NEAREST
        for axis in range(n_components):
            force = _F(0.0)
            for pair in range(n_pairs):
                force += factors[pair] * apart[axis, pair]
            move[axis] = step * force
            square += move[axis] * move[axis]
        # The forces of all pairs together would throw a cell out of a crowd.
        share = min(_F(1.0), _FARTHEST / np.sqrt(square))
        for axis in range(n_components):
            out[i, axis] = coordinates[i, axis] + share * move[axis]


@njit(nogil=True, cache=True, error_model="numpy")
def _used_edges(weights: Float32Array, start: int, stop: int, number: int, used: Ints) -> int:
    """Write the edges of a row that a round uses, and return how many they are."""
    this, last = _F(number), _F(max(number - 1, 0))
    n_used = 0
    for edge in range(start, stop):
        used[n_used] = edge
        # The next edge overwrites an unused one: half as long as a branch, which mispredicts.
        n_used += int(this * weights[edge]) > int(last * weights[edge])
    return n_used


@njit(nogil=True, cache=True, error_model="numpy")
def _factors(
    apart: Float32Array,
    n_used: int,
    n_pairs: int,
    forces: _Forces,
    d2: Float32Array,
    factors: Float32Array,
) -> None:
    """Write the force of each pair per distance, negative where it attracts."""
    a, b, _, _, pulls, gamma, _ = forces
    n = -(-n_pairs // _LANES) * _LANES
    d2[:n] = _NEAREST
    for axis in range(apart.shape[0]):
        for pair in range(n):
            d2[pair] += apart[axis, pair] * apart[axis, pair]
    for pair in range(n):
        power = a * _power(d2[pair], b)
        near = _F(2.0) * b / (_F(1.0) + power)
        push = gamma * near / (_SOFTENING + d2[pair])
        limit = _LONGEST / np.sqrt(d2[pair])
        push = min(max(push, -limit), limit)
        factors[pair] = -pulls * near * power / d2[pair] if pair < n_used else push


@njit(nogil=True, cache=True)
def _draw(stream: np.uint64, n: int) -> np.int64:
    """Random number below `n`, which is at most 2**32."""
    return np.int64(((_hash(stream) >> _S32) * np.uint64(n)) >> _S32)


@njit(nogil=True, cache=True, error_model="numpy")
def _power(x: np.float32, exponent: np.float32) -> np.float32:
    """``x**exponent`` of a normal number above zero; relative error 1e-6 times the exponent."""
    bits = np.float32(x).view(np.int32)
    t = np.int32((bits & np.int32(0x7FFFFF)) | np.int32(0x3F800000)).view(np.float32) - _F(1.0)
    log = (((_L6 * t + _L5) * t + _L4) * t + _L3) * t + _L2
    log = ((log * t + _L1) * t + _L0) * t + _F((bits >> np.int32(23)) - np.int32(127))
    log = min(max(log * exponent, _F(-126.0)), _F(126.0))
    shifted = np.int32(log + _F(127.0))
    t = log - (_F(shifted) - _F(127.0))
    power = ((_E5 * t + _E4) * t + _E3) * t + _E2
    power = (power * t + _E1) * t + _E0
    scale = np.int32(shifted << np.int32(23)).view(np.float32)
    return power * scale


@njit(nogil=True, cache=True)
def hash_numbers(seed: np.uint64, number: np.uint64, key: np.uint64) -> np.uint64:
    """Random bits of a cell in a round."""
    return _hash(_hash(seed + number * _STEP) + key * _STEP)


@njit(nogil=True, cache=True)
def _hash(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> _S30)) * _FACTOR_1
    x = (x ^ (x >> _S27)) * _FACTOR_2
    return x ^ (x >> _S31)
