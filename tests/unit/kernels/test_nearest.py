"""Nearest candidates: equal to a plain search in float64, whatever float32 makes of the values."""

from __future__ import annotations

import numpy as np
import pytest

from scatlas.kernels.graphs import nearest_cpu

CHUNK = nearest_cpu._CANDIDATES


def plain_search(
    queries: np.ndarray, x: np.ndarray, candidates: np.ndarray, n: int, *, cosine: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers by score and number, and scores."""
    a, b = queries.astype(np.float64)[:, None], x[candidates].astype(np.float64)[None]
    if cosine:
        lengths = np.linalg.norm(a, axis=2) * np.linalg.norm(b, axis=2)
        products = (a * b).sum(axis=2)
        scores = np.where(lengths > 0, 1 - products / np.where(lengths > 0, lengths, 1), 1.0)
    else:
        scores = ((a - b) ** 2).sum(axis=2)
    order = np.lexsort((np.broadcast_to(candidates, scores.shape), scores), axis=1)[:, :n]
    return candidates[order], np.take_along_axis(scores, order, axis=1)


def cells(x: np.ndarray, *, cosine: bool = False) -> nearest_cpu.CellMatrix:
    return nearest_cpu.CellMatrix(x, x.mean(axis=0, dtype=np.float64), cosine)


def random(n: int, n_dims: int = 7, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(n).normal(size=(n, n_dims)).astype(dtype)


@pytest.mark.parametrize("cosine", [False, True])
@pytest.mark.parametrize(
    ("n_cells", "n", "n_dims", "dtype"),
    [
        (CHUNK + 300, 5, 50, np.float32),  # a second chunk, which is not full
        (300, 1, 3, np.float64),
        (40, 15, 1, np.float32),
        (40, 40, 6, np.float32),  # as many as there are
    ],
)
def test_nearest_of_all(n_cells: int, n: int, n_dims: int, dtype: type, cosine: bool) -> None:
    x, queries = random(n_cells, n_dims, dtype), random(30, n_dims, dtype)
    if cosine:
        x[::7] = queries[3] = 0
    everything = np.arange(n_cells)
    numbers, scores = nearest_cpu.nearest(
        cells(queries, cosine=cosine)._replace(centre=cells(x).centre),
        np.arange(30),
        cells(x, cosine=cosine),
        everything,
        n,
    )
    want = plain_search(queries, x, everything, n, cosine=cosine)
    np.testing.assert_allclose(scores, want[1], rtol=1e-13, atol=1e-15)
    if not (cosine and n_dims == 1):  # in one dimension all cosines are 1, 0 or -1
        np.testing.assert_array_equal(numbers, want[0])


def test_candidates_and_rows_in_any_order_and_stride() -> None:
    wide = random(500, 20)
    x = wide[:, 3:12]
    rng = np.random.default_rng(0)
    candidates, rows = rng.permutation(500)[:300], rng.permutation(500)[:60]
    numbers, scores = nearest_cpu.nearest(cells(x), rows, cells(x), candidates, 9)
    want = plain_search(x[rows], x, candidates, 9)
    np.testing.assert_array_equal(numbers, want[0])
    np.testing.assert_allclose(scores, want[1], rtol=1e-13)


@pytest.mark.parametrize(
    ("scale", "shift"), [(1, 3e5), (1e-25, 0), (1e25, 0)], ids=["far", "small", "large"]
)
def test_float32_products_that_lose_the_digits_change_nothing(scale: float, shift: float) -> None:
    x = random(600, 5, np.float64) * scale
    # Two groups far from their common centre: products of 1e11 hide distances of 1.
    x[::2] += shift
    rows = np.arange(600)
    numbers, scores = nearest_cpu.nearest(cells(x), rows, cells(x), rows, 6, own=True)
    want = plain_search(x, x, rows, 6)
    np.testing.assert_array_equal(numbers, want[0])
    np.testing.assert_allclose(scores, want[1], rtol=1e-12)


def test_equal_cells_come_by_number_and_each_is_its_own_nearest() -> None:
    x = np.repeat(random(4), 60, axis=0)
    rows = np.arange(240)
    numbers, scores = nearest_cpu.nearest(cells(x), rows, cells(x), rows, 8, own=True)
    assert not scores.any()
    for i in rows:
        first = i // 60 * 60
        others = [j for j in range(first, first + 9) if j != i][:7]
        assert numbers[i].tolist() == [i, *others]


def test_products_in_other_parts_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    x = random(3000, 30)
    x[100:150] = x[7]
    rows = np.arange(3000)
    whole = nearest_cpu.nearest(cells(x), rows, cells(x), rows, 15, own=True)
    monkeypatch.setattr(nearest_cpu, "_QUERIES", 33)
    monkeypatch.setattr(nearest_cpu, "_CANDIDATES", 101)
    for part in np.split(rows, [1, 500, 1777]):
        numbers, scores = nearest_cpu.nearest(cells(x), part, cells(x), rows[::-1], 15, own=True)
        np.testing.assert_array_equal(numbers, whole[0][part])
        np.testing.assert_array_equal(scores, whole[1][part])


def test_sums_by_label() -> None:
    x = random(50, 4)
    x[4] = 0
    labels, rows = np.arange(40) % 3, np.arange(5, 45)
    sums, counts = nearest_cpu.add_by_label(cells(x), rows, labels, 5)
    assert counts.tolist() == [14, 13, 13, 0, 0]
    want = [x[rows[labels == j]].sum(axis=0, dtype=np.float64) for j in range(5)]
    np.testing.assert_allclose(sums, want, rtol=1e-12, atol=1e-12)
    sums, _ = nearest_cpu.add_by_label(cells(x, cosine=True), np.array([4, 9]), np.zeros(2, int), 1)
    np.testing.assert_allclose(sums[0], x[9] / np.linalg.norm(x[9].astype(np.float64)), rtol=1e-12)
