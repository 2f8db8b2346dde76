"""The nearest of given candidates: float32 products propose them, exact distances rank them.

The result is that of float64 distances alone. An error bound of float32 tells whether a cell that
was not proposed can be among the nearest; if so, all candidates of that query are compared in
float64. So no bit depends on how BLAS rounds, or on which queries share a product.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scatlas.arrays.array_types import Array, Float32Array, Floats, Ints

# Candidates proposed beyond the nearest: with 8, float32 leaves 1 query of some millions unsure.
_SPARE = 8
# Products computed at once: 2 MB of float32, which stay in a core's cache until the selection.
_QUERIES, _CANDIDATES = 256, 2048
# Scores compared at once with the least proposed one: four AVX-512 registers.
_RUN = 64


class Cells(NamedTuple):
    """Cells as they are compared.

    Attributes
    ----------
    x
        float32 or float64 ``[n, n_dims]``, with rows of any stride; it may lie on disk.
    centre
        float64 ``[n_dims]``, subtracted for float32 products, which keep more digits of small
        distances near the origin. Ignored for cosines.
    cosine
        Whether scores are ``1 - cosine`` in place of squared distances.
    """

    x: Array
    centre: Floats
    cosine: bool


def nearest(
    queries: Cells, rows: Ints, reference: Cells, candidates: Ints, n: int, *, own: bool = False
) -> tuple[Ints, Floats]:
    """Return the ``n`` nearest of the candidates for each query.

    Parameters
    ----------
    queries, rows
        Cells, and the numbers of those that are compared, int64 ``[n_queries]``.
    reference, candidates
        Cells, and the numbers of those among which the nearest are searched, int64, at least ``n``.
    n
        Number of nearest candidates.
    own
        The queries are cells of ``reference``: each is its own nearest, at score 0, if it is a
        candidate.

    Returns
    -------
    numbers : int64 ``[n_queries, n]``
        Ordered by score, equal scores by number.
    scores : float64 ``[n_queries, n]``
        Squared distances, or ``1 - cosine``: 1 for a cell that is zero.
    """
    numbers = np.full((rows.size, n), np.iinfo(np.int64).max)
    scores = np.empty((rows.size, n))
    if candidates.size <= n + _SPARE:
        proposed, lowest = np.empty((rows.size, 0), np.int32), np.full(rows.size, -np.inf)
    else:
        proposed, lowest = _proposals(queries, rows, reference, candidates, n + _SPARE)
    _rank(*queries, rows, reference.x, candidates, proposed, lowest, own, numbers, scores)
    return numbers, scores


def _proposals(
    queries: Cells, rows: Ints, reference: Cells, candidates: Ints, n: int
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


def scores_to(cells: Cells, row: int) -> Floats:
    """Scores of all cells for one of them, float64 ``[n]``."""
    out = np.empty(cells.x.shape[0])
    _fill_scores(cells.x, row, cells.cosine, out)
    return out


def add_by_label(cells: Cells, rows: Ints, labels: Array, n_labels: int) -> tuple[Floats, Ints]:
    """Sum the cells of each label, each scaled to length 1 for cosines.

    Returns
    -------
    sums : float64 ``[n_labels, n_dims]``, added in the order of ``rows``
    counts : int64 ``[n_labels]``
    """
    sums = np.zeros((n_labels, cells.x.shape[1]))
    counts = np.zeros(n_labels, np.int64)
    _add_by_label(cells.x, rows, labels, cells.cosine, sums, counts)
    return sums, counts


def _vectors(cells: Cells, rows: Ints) -> Float32Array:
    """float32 ``[n_rows, n_dims + 1]`` whose product with a query's vector, 1 at its end, is large
    for near cells: the last value is minus half the squared length, for cosines 0."""
    out = np.empty((rows.size, cells.x.shape[1] + 1), np.float32)
    _fill_vectors(*cells, rows, out)
    return out


@njit(nogil=True, cache=True)
def _fill_vectors(x: Array, centre: Floats, cosine: bool, rows: Ints, out: Float32Array) -> None:
    n_dims = x.shape[1]
    for i in range(rows.size):
        cell, vector = x[rows[i]], out[i, :n_dims]
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
                    place = last
                    while place > 0 and top[place - 1] < score:
                        top[place], at[place] = top[place - 1], at[place - 1]
                        place -= 1
                    top[place], at[place] = score, start + c
                    least = top[last]


@njit(nogil=True, cache=True)
def _rank(
    x: Array,
    centre: Floats,
    cosine: bool,
    rows: Ints,
    reference: Array,
    candidates: Ints,
    proposed: Array,
    lowest: Floats,
    own: bool,
    numbers: Ints,
    scores: Floats,
) -> None:
    for i in range(rows.size):
        query = x[rows[i]]
        itself = rows[i] if own else -1
        near, score = numbers[i], scores[i]
        score[:] = np.inf
        for at in proposed[i]:
            _insert(query, reference, candidates[at], cosine, itself, near, score)
        if not _complete(query, centre, cosine, lowest[i], max(0.0, score[-1])):
            score[:] = np.inf
            for number in candidates:
                _insert(query, reference, number, cosine, itself, near, score)
        if near[0] == itself:
            score[0] = 0.0


@njit(nogil=True, cache=True)
def _insert(
    query: Array,
    reference: Array,
    number: int,
    cosine: bool,
    itself: int,
    near: Ints,
    score: Floats,
) -> None:
    """Insert a cell into the nearest ones if it is nearer than the last."""
    if number == itself:
        value = -1.0
    elif cosine:
        value = _one_minus_cosine(query, reference[number])
    else:
        value = _squared_distance(query, reference[number])
    place = score.size - 1
    if value > score[place] or (value == score[place] and number > near[place]):
        return
    while place > 0 and (
        value < score[place - 1] or (value == score[place - 1] and number < near[place - 1])
    ):
        score[place], near[place] = score[place - 1], near[place - 1]
        place -= 1
    score[place], near[place] = value, number


@njit(nogil=True, cache=True)
def _complete(query: Array, centre: Floats, cosine: bool, lowest: float, last: float) -> bool:
    """Whether all cells with scores up to ``last`` have float32 products above ``lowest``.

    A product of n float32 values is off by at most ``n * 2**-24`` of the sum of the magnitudes of
    its terms (Higham 2002, section 3.1), here by twice that and four more terms for the rounding of
    the values. A cell at distance r of a query of length l is at most l + r long.
    """
    n_dims = query.size
    if lowest == -np.inf:
        return False  # no proposals, or fewer because of products that are not finite
    error = (n_dims + 5) * 2.0**-23
    if cosine:
        return 1.0 - lowest - error > last
    square = 0.0
    for j in range(n_dims):
        value = query[j] - centre[j]
        square += value * value
    # Products of values below 1e-19 lose digits to underflow.
    error *= (2.0 * np.sqrt(square) + np.sqrt(last)) ** 2
    return square - 2.0 * lowest - error - 1e-30 > last


@njit(nogil=True, cache=True)
def _squared_distance(a: Array, b: Array) -> float:
    # Four sums, in a fixed order: one sum waits for each addition.
    p, q, r, s = 0.0, 0.0, 0.0, 0.0
    whole = a.size // 4 * 4
    for j in range(0, whole, 4):
        d = np.float64(a[j]) - np.float64(b[j])
        p += d * d
        d = np.float64(a[j + 1]) - np.float64(b[j + 1])
        q += d * d
        d = np.float64(a[j + 2]) - np.float64(b[j + 2])
        r += d * d
        d = np.float64(a[j + 3]) - np.float64(b[j + 3])
        s += d * d
    for j in range(whole, a.size):
        d = np.float64(a[j]) - np.float64(b[j])
        p += d * d
    return (p + q) + (r + s)


@njit(nogil=True, cache=True)
def _dot(a: Array, b: Array) -> float:
    p, q, r, s = 0.0, 0.0, 0.0, 0.0
    whole = a.size // 4 * 4
    for j in range(0, whole, 4):
        p += np.float64(a[j]) * np.float64(b[j])
        q += np.float64(a[j + 1]) * np.float64(b[j + 1])
        r += np.float64(a[j + 2]) * np.float64(b[j + 2])
        s += np.float64(a[j + 3]) * np.float64(b[j + 3])
    for j in range(whole, a.size):
        p += np.float64(a[j]) * np.float64(b[j])
    return (p + q) + (r + s)


@njit(nogil=True, cache=True)
def _one_minus_cosine(a: Array, b: Array) -> float:
    lengths = np.sqrt(_dot(a, a)) * np.sqrt(_dot(b, b))
    if lengths == 0.0:
        return 1.0
    return min(2.0, max(0.0, 1.0 - _dot(a, b) / lengths))


@njit(nogil=True, cache=True)
def _add_by_label(
    x: Array, rows: Ints, labels: Array, cosine: bool, sums: Floats, counts: Ints
) -> None:
    for i in range(rows.size):
        cell, total = x[rows[i]], sums[labels[i]]
        scale = 1.0
        if cosine:
            length = np.sqrt(_dot(cell, cell))
            scale = 1.0 / length if length > 0.0 else 0.0
        for j in range(cell.size):
            total[j] += cell[j] * scale
        counts[labels[i]] += 1
