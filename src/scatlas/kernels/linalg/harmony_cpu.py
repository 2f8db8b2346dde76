"""Harmony of a block of cells: soft clusters, their sums over batches, and the correction (Numba).

Sums are of numbers rounded to a grid, so that float64 holds them exactly: no bit depends on the
order in which threads add. A grid is a power of two above the largest sum that can be; adding and
subtracting it leaves a multiple of 2**-53 of it (Rump, Ogita, Oishi, SIAM J. Sci. Comput. 31, 2008).
``codes`` number the combinations of batches that a cell has, one of each column, and ``levels``
[combinations, columns] the batches over all columns.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scatlas.arrays.array_types import Array, Float32Array, Floats, Ints

# Maxima and sums of rows run in as many lanes, which the compiler makes vectors of, and are the
# same on every processor.
_LANES = 16


def grid_of(largest: float, n: int) -> float:
    """Grid for sums of ``n`` numbers of at most this magnitude."""
    return 2.0 ** math.frexp(max(n * largest, 2.0**-500))[1]


def soft_clusters(
    logits: Float32Array, penalties: Float32Array, blocks: Array, codes: Array, levels: Ints
) -> float:
    """Replace rows by the softmax of them and the penalties [blocks, batches, clusters] of their
    block and batches; the sum of the logarithms of what they are divided by.
    """
    top = _below_zero(logits, penalties, blocks, codes, levels)
    np.exp(logits, out=logits)
    return float(top + _to_shares(logits))


@njit(nogil=True, cache=True)
def _below_zero(
    logits: Float32Array, penalties: Float32Array, blocks: Array, codes: Array, levels: Ints
) -> float:
    """Add the penalties, subtract the largest of each row; the sum of the largest."""
    n_clusters = logits.shape[1]
    whole = n_clusters - n_clusters % _LANES
    lanes, total = np.empty(_LANES, np.float32), 0.0
    for i in range(logits.shape[0]):
        row = logits[i]
        for column in range(levels.shape[1]):
            penalty = penalties[blocks[i], levels[codes[i], column]]
            for k in range(n_clusters):
                row[k] += penalty[k]
        lanes[:] = row[0]
        for k in range(0, whole, _LANES):
            for j in range(_LANES):
                lanes[j] = max(lanes[j], row[k + j])
        top = lanes.max()
        for k in range(whole, n_clusters):
            top = max(top, row[k])
        for k in range(n_clusters):
            row[k] -= top
        total += np.float64(top)
    return total


@njit(nogil=True, cache=True)
def _to_shares(x: Float32Array) -> float:
    """Divide each row by its sum; the sum of the logarithms of these sums."""
    n_clusters = x.shape[1]
    whole = n_clusters - n_clusters % _LANES
    lanes, total = np.empty(_LANES, np.float32), 0.0
    for i in range(x.shape[0]):
        row = x[i]
        lanes[:] = 0.0
        for k in range(0, whole, _LANES):
            for j in range(_LANES):
                lanes[j] += row[k + j]
        row_sum = lanes[0]
        for j in range(1, _LANES):
            row_sum += lanes[j]
        for k in range(whole, n_clusters):
            row_sum += row[k]
        for k in range(n_clusters):
            row[k] /= row_sum
        total += math.log(np.float64(row_sum))
    return total


@njit(nogil=True, cache=True)
def unit_rows(x: Float32Array) -> None:
    """Scale each row to length 1, in place; rows of zeros stay."""
    for i in range(x.shape[0]):
        row = x[i]
        square = 0.0
        for j in range(row.size):
            square += np.float64(row[j]) * np.float64(row[j])
        if square > 0.0:
            length = math.sqrt(square)
            for j in range(row.size):
                row[j] = np.float32(np.float64(row[j]) / length)


@njit(nogil=True, cache=True)
def add_shares(
    shares: Float32Array, codes: Array, levels: Ints, blocks: Array, grid: float, sums: Floats
) -> None:
    """Add each row to ``sums`` [blocks, batches, clusters] of its block and batches."""
    n_clusters = shares.shape[1]
    for i in range(shares.shape[0]):
        row = shares[i]
        for column in range(levels.shape[1]):
            total = sums[blocks[i], levels[codes[i], column]]
            for k in range(n_clusters):
                total[k] += (np.float64(row[k]) + grid) - grid


def runs_of(codes: Array) -> Iterator[tuple[int, Any]]:
    """Code and rows of all rows with it: a slice where they are neighbours, as cells of a plate."""
    order = np.argsort(codes, kind="stable")
    sorted_codes = codes[order]
    cuts = np.flatnonzero(np.diff(sorted_codes)) + 1
    for first, stop in pairwise([0, *cuts.tolist(), codes.size]):
        rows: Any = order[first:stop]
        if rows[-1] - rows[0] == rows.size - 1:
            rows = slice(int(rows[0]), int(rows[-1]) + 1)
        yield int(sorted_codes[first]), rows


def add_products(
    shares: Float32Array, z: Floats, codes: Array, grids: Floats, sums: Floats
) -> None:
    """Add ``shares[i, k] * z[i]`` to ``sums[codes[i], k]`` [combinations, clusters, columns of z],
    after a sum over the rows of a code.
    """
    for code, rows in runs_of(codes):
        total = shares[rows].T.astype(np.float64) @ z[rows]
        total += grids
        total -= grids
        sums[code] += total


def subtract_terms(
    z: Float32Array, shares: Float32Array, codes: Array, terms: Float32Array
) -> None:
    """Subtract ``sum_k shares[i, k] * terms[codes[i], k]`` from each row of ``z``, in place."""
    for code, rows in runs_of(codes):
        z[rows] -= shares[rows] @ terms[code]
