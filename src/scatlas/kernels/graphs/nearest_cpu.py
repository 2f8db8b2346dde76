"""The nearest of given candidates: float32 products propose them, exact distances rank them.

An error bound tells whether a cell that was not proposed can be among the nearest; if so, all
candidates of that query are compared in float64. So no bit depends on how BLAS rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scatlas.arrays.array_types import Array, Bools, Float32Array, Floats, Ints

# Products computed at once: 2 MB of float32, which stay in a core's cache until the selection.
_QUERIES, _CANDIDATES = 256, 2048
# Scores compared at once with the least proposed one: four AVX-512 registers.
_RUN = 64


class CellMatrix(NamedTuple):
    """Cells as they are compared."""

    x: Array  # float32 or float64 [n, n_dims], rows of any stride; it may lie on disk
    # [n_dims], subtracted for float32 products, which keep more digits of small distances near the
    # origin; ignored for cosines.
    centre: Floats
    cosine: bool  # scores are 1 - cosine in place of squared distances


def nearest(
    queries: CellMatrix,
    rows: Ints,
    reference: CellMatrix,
    candidates: Ints,
    n: int,
    *,
    own: bool = False,
) -> tuple[Ints, Floats]:
    """The ``n`` nearest of the candidates for each query: numbers and scores ``[n_queries, n]``.

    Scores are squared distances, or ``1 - cosine``: 1 for a cell that is zero. They ascend, equal
    ones by number. With `own` each query is a cell of ``reference`` and, if a candidate, its own
    nearest, at score 0.
    """
    itself = rows if own else np.full(rows.size, -1)
    numbers = np.empty((rows.size, n), np.int64)
    scores = np.full((rows.size, n), np.inf)
    # Some more are proposed: between the last one's score and that of the n-th lies the error.
    n_proposed = n + n // 4 + 2
    complete = np.zeros(rows.size, np.bool_)
    if candidates.size > n_proposed:
        proposed, lowest = _proposals(queries, rows, reference, candidates, n_proposed)
        for first in range(0, rows.size, _QUERIES):
            part = slice(first, first + _QUERIES)
            asked = np.take(queries.x, rows[part], axis=0)
            near = candidates[proposed[part]]
            others = np.take(reference.x, near.ravel(), axis=0)
            _rank(asked, itself[part], others, near, queries.cosine, numbers[part], scores[part])
            complete[part] = _are_complete(
                queries._replace(x=asked), lowest[part], scores[part, -1]
            )
    if not complete.all():
        unsure = np.flatnonzero(~complete)
        numbers[unsure], scores[unsure] = _among_all(
            queries, rows[unsure], itself[unsure], reference, candidates, n
        )
    if own:
        scores[numbers[:, 0] == rows, 0] = 0.0
    return numbers, scores


def _among_all(
    queries: CellMatrix, rows: Ints, itself: Ints, reference: CellMatrix, candidates: Ints, n: int
) -> tuple[Ints, Floats]:
    """Compare with all candidates in float64."""
    numbers = np.empty((rows.size, n), np.int64)
    scores = np.full((rows.size, n), np.inf)
    asked = np.take(queries.x, rows, axis=0)
    for start in range(0, candidates.size, _CANDIDATES):
        near = candidates[None, start : start + _CANDIDATES]
        others = np.take(reference.x, near[0], axis=0)
        _rank(asked, itself, others, near, queries.cosine, numbers, scores)
    return numbers, scores


def _proposals(
    queries: CellMatrix, rows: Ints, reference: CellMatrix, candidates: Ints, n: int
) -> tuple[NDArray[np.int32], Floats]:
    """Positions of the ``n`` candidates with the largest products, and the least of these."""
    where = np.zeros((rows.size, n), np.int32)
    best = np.full((rows.size, n), -np.inf, np.float32)
    vectors = _vectors(queries, rows)
    vectors[:, -1] = 1.0
    buffer = np.empty((min(_QUERIES, rows.size), min(_CANDIDATES, candidates.size)), np.float32)
    for start in range(0, candidates.size, _CANDIDATES):
        others = _vectors(reference, candidates[start : start + _CANDIDATES])
        for first in range(0, rows.size, _QUERIES):
            part = slice(first, min(first + _QUERIES, rows.size))
            products = buffer[: part.stop - first, : len(others)]
            with np.errstate(over="ignore", invalid="ignore"):  # then all candidates are compared
                np.matmul(vectors[part], others.T, out=products)
            _propose(products, start, best[part], where[part])
    return where, best[:, -1].astype(np.float64)


def _are_complete(queries: CellMatrix, lowest: Floats, last: Floats) -> Bools:
    """Whether all cells with scores up to ``last`` have float32 products above ``lowest``; False if
    that is not finite, because products overflowed.

    A product of n float32 values is off by at most ``n * 2**-24`` of the sum of the magnitudes of
    its terms (Higham 2002, section 3.1), here by twice that and four more terms for the rounding of
    the values. A cell at distance r of a query of length l is at most l + r long.
    """
    last = np.maximum(last, 0.0)
    error = (queries.x.shape[1] + 5) * 2.0**-23
    if queries.cosine:
        return 1.0 - lowest - error > last
    values = queries.x - queries.centre
    squares = np.einsum("ij,ij->i", values, values)
    error = error * (2.0 * np.sqrt(squares) + np.sqrt(last)) ** 2
    # Products of values below 1e-19 lose digits to underflow.
    return np.isfinite(lowest) & (squares - 2.0 * lowest - error - 1e-30 > last)


def scores_to(cells: CellMatrix, row: int) -> Floats:
    """Scores of all cells for one of them, float64 ``[n]``."""
    out = np.empty(cells.x.shape[0])
    _fill_scores(cells.x, row, cells.cosine, out)
    return out


def add_by_label(
    cells: CellMatrix, rows: Ints, labels: Array, n_labels: int
) -> tuple[Floats, Ints]:
    """Sums of the cells of each label, in the order of ``rows``, each scaled to length 1 for
    cosines, float64 ``[n_labels, n_dims]``, and their numbers.
    """
    sums = np.zeros((n_labels, cells.x.shape[1]))
    counts = np.zeros(n_labels, np.int64)
    for start in range(0, rows.size, _CANDIDATES):
        part = slice(start, start + _CANDIDATES)
        x = np.take(cells.x, rows[part], axis=0)
        _add_by_label(x, labels[part], cells.cosine, sums, counts)
    return sums, counts


def _vectors(cells: CellMatrix, rows: Ints) -> Float32Array:
    """float32 ``[n_rows, n_dims + 1]`` whose product with a query's vector, 1 at its end, is large
    for near cells: the last value is minus half the squared length, for cosines 0.
    """
    out = np.empty((rows.size, cells.x.shape[1] + 1), np.float32)
    # A copy first: it waits for the memory of several rows at once.
    _fill_vectors(np.take(cells.x, rows, axis=0), cells.centre, cells.cosine, out)
    return out


@njit(nogil=True, cache=True)
def _fill_vectors(x: Array, centre: Floats, cosine: bool, out: Float32Array) -> None:
    n_dims = x.shape[1]
    for i in range(x.shape[0]):
        cell, vector = x[i], out[i, :n_dims]
        if cosine:
            length = np.sqrt(_dot(cell, cell))
            scale = 1.0 / length if length > 0.0 else 0.0
            for j in range(n_dims):
                vector[j] = np.float32(cell[j] * scale)
            out[i, n_dims] = np.float32(0.0)
        else:
            for j in range(n_dims):
                vector[j] = np.float32(cell[j] - centre[j])
            out[i, n_dims] = np.float32(-0.5 * _dot(vector, vector))


@njit(nogil=True, cache=True)
def _fill_scores(x: Array, row: int, cosine: bool, out: Floats) -> None:
    for i in range(out.size):
        out[i] = _one_minus_cosine(x[row], x[i]) if cosine else _squared_distance(x[row], x[i])


@njit(nogil=True, cache=True)
def _propose(scores: Float32Array, start: int, best: Float32Array, where: Array) -> None:
    """Keep the largest scores of each row, in descending order, equal ones by position."""
    n_columns, last = scores.shape[1], best.shape[1] - 1
    for r in range(scores.shape[0]):
        row, top, at = scores[r], best[r], where[r]
        least = top[last]
        for first in range(0, n_columns, _RUN):
            stop = min(first + _RUN, n_columns)
            if stop - first == _RUN:
                # A loop of fixed length without branches runs on vectors of 16 scores.
                n_larger = np.int32(0)
                for c in range(_RUN):
                    n_larger += np.int32(row[first + c] > least)
                if n_larger == 0:
                    continue
            for c in range(first, stop):
                score = row[c]
                if score > least:
                    slot = last
                    while slot > 0 and top[slot - 1] < score:
                        top[slot], at[slot] = top[slot - 1], at[slot - 1]
                        slot -= 1
                    top[slot], at[slot] = score, start + c
                    least = top[last]


@njit(nogil=True, cache=True)
def _rank(
    queries: Array,
    itself: Ints,
    others: Array,
    others_numbers: Ints,
    cosine: bool,
    numbers: Ints,
    scores: Floats,
) -> None:
    """Insert into the nearest of each query its row of others, or the only row there is."""
    n_rows, n_others = others_numbers.shape
    n = scores.shape[1]
    for i in range(queries.shape[0]):
        row = i if n_rows > 1 else 0
        near, score = numbers[i], scores[i]
        n_filled = 0
        while n_filled < n and score[n_filled] < np.inf:
            n_filled += 1
        for j in range(n_others):
            number, other = others_numbers[row, j], others[row * n_others + j]
            if number == itself[i]:
                value = -1.0
            elif cosine:
                value = _one_minus_cosine(queries[i], other)
            else:
                value = _squared_distance(queries[i], other)
            if n_filled < n:
                slot = n_filled
                n_filled += 1
            elif _comes_before(value, number, score[n - 1], near[n - 1]):
                slot = n - 1
            else:
                continue
            while slot > 0 and _comes_before(value, number, score[slot - 1], near[slot - 1]):
                score[slot], near[slot] = score[slot - 1], near[slot - 1]
                slot -= 1
            score[slot], near[slot] = value, number


@njit(nogil=True, cache=True)
def _comes_before(score: float, number: int, other_score: float, other_number: int) -> bool:
    return score < other_score or (score == other_score and number < other_number)


@njit(nogil=True, cache=True)
def _squared_distance(a: Array, b: Array) -> float:
    total = 0.0
    for j in range(a.size):
        difference = np.float64(a[j]) - np.float64(b[j])
        total += difference * difference
    return total


@njit(nogil=True, cache=True)
def _dot(a: Array, b: Array) -> float:
    total = 0.0
    for j in range(a.size):
        total += np.float64(a[j]) * np.float64(b[j])
    return total


@njit(nogil=True, cache=True)
def _one_minus_cosine(a: Array, b: Array) -> float:
    lengths = np.sqrt(_dot(a, a)) * np.sqrt(_dot(b, b))
    if lengths == 0.0:
        return 1.0
    return min(2.0, max(0.0, 1.0 - _dot(a, b) / lengths))


@njit(nogil=True, cache=True)
def _add_by_label(x: Array, labels: Array, cosine: bool, sums: Floats, counts: Ints) -> None:
    for i in range(x.shape[0]):
        cell, total = x[i], sums[labels[i]]
        scale = 1.0
        if cosine:
            length = np.sqrt(_dot(cell, cell))
            scale = 1.0 / length if length > 0.0 else 0.0
        for j in range(cell.size):
            total[j] += cell[j] * scale
        counts[labels[i]] += 1
