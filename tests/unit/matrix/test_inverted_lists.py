"""Inverted lists: recall against the exact search, the same bits, unusual cells, memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from scatlas.compute.threads import use_threads
from scatlas.matrix import inverted_lists, knn, list_rules
from scatlas.matrix.inverted_lists import InvertedLists, build


def groups(n: int, n_groups: int = 30, n_dims: int = 20, seed: int = 0) -> np.ndarray:
    """Groups of very unequal size, in 5 inner dimensions each."""
    rng = np.random.default_rng(seed)
    share = rng.random(n_groups) ** 4 + 1e-3
    label = rng.choice(n_groups, n, p=share / share.sum())
    centres, axes = rng.normal(size=(n_groups, n_dims)) * 4, rng.normal(size=(n_groups, 5, n_dims))
    inner = np.einsum("nq,nqd->nd", rng.normal(size=(n, 5)), axes[label])
    return (centres[label] + inner + rng.normal(size=(n, n_dims)) * 0.2).astype(np.float32)


def exact(x: np.ndarray, n: int, metric: str = "euclidean") -> tuple[np.ndarray, np.ndarray]:
    return knn.exact(x, n, metric=metric, metric_kwds={})


def found(indices: np.ndarray, want: np.ndarray) -> float:
    """Share of the other neighbours of a cell that were found."""
    same = indices[:, None, 1:] == want[:, 1:, None]
    return float(same.any(axis=2).mean())


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean", "cosine"])
def test_recall_reaches_its_goal_and_is_measured(metric: str) -> None:
    x = groups(5000)
    want = exact(x, 15, metric)
    recalls = []
    for goal in (0.8, 0.99):
        index = build(x, 15, metric=metric, recall=goal)
        indices, distances = index.neighbors(15)
        recalls.append(found(indices, want[0]))
        assert goal <= index.recall < 1
        assert recalls[-1] == pytest.approx(index.recall, abs=0.005 if goal == 0.99 else 0.03)
        assert index.n_probes < index.n_lists / 2
    assert recalls[0] < recalls[1]
    # Distances are exact: a cell whose neighbours were all found has those of the exact search.
    same = (indices == want[0]).all(axis=1)
    assert same.mean() > 0.8
    np.testing.assert_allclose(distances[same], want[1][same], rtol=1e-5, atol=3e-6)


def test_all_lists_give_the_exact_neighbours() -> None:
    x = groups(2000)
    index = build(x, 10, recall=1.0)
    want = exact(x, 10)
    indices, distances = index._replace(n_probes=index.n_lists).neighbors(10)
    np.testing.assert_array_equal(indices, want[0])
    np.testing.assert_allclose(distances, want[1], atol=1e-5)


def test_threads_and_parts_do_not_change_the_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    x, new = groups(6000), groups(700, seed=1)
    x[50:90] = x[3]
    new[5] = x[3]

    def run(n_threads: int) -> tuple[InvertedLists, list[np.ndarray]]:
        with use_threads(n_threads):
            index = build(x, 15)
            return index, [*index.neighbors(15), *index.search(new, 15)]

    index, want = run(1)
    for n_threads in (2, 4):
        other, results = run(n_threads)
        assert (other.n_probes, other.recall) == (index.n_probes, index.recall)
        for got, expected in zip(results, want, strict=True):
            np.testing.assert_array_equal(got, expected)
    monkeypatch.setattr(inverted_lists, "_QUERIES_AT_ONCE", 64)
    monkeypatch.setattr(inverted_lists, "_CELLS_PER_TASK", 17)
    for part in (slice(0, 1), slice(1, 333), slice(333, 700)):
        for got, expected in zip(index.search(new[part], 15), want[2:], strict=True):
            np.testing.assert_array_equal(got, expected[part])


def test_new_cells_find_the_nearest_reference_cells() -> None:
    x = groups(6000)
    new, reference = x[:300], x[300:]
    index = build(reference, 10)
    indices, distances = index.search(new, 10)
    squares = ((new[:, None].astype(np.float64) - reference[None, :]) ** 2).sum(axis=2)
    want = np.argsort(squares, axis=1, kind="stable")[:, :10]
    assert (indices[:, None] == want[:, :, None]).any(axis=2).mean() > 0.98
    rows = np.arange(300)[:, None]
    np.testing.assert_allclose(distances, np.sqrt(squares[rows, indices]), rtol=1e-12)
    assert (np.diff(distances, axis=1) >= 0).all()


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("value", [0, 3])
def test_equal_cells(value: float, metric: str) -> None:
    """Lists stay short, and any equal cell is a true neighbour."""
    x = np.full((3000, 4), value, np.float32)
    index = build(x, 15, metric=metric)
    assert np.diff(index.bounds).max() <= 4 * (1 + 3000**0.5 / list_rules.LISTS)
    assert (index.recall, index.n_probes) == (1.0, 1)
    indices, distances = index.neighbors(15)
    np.testing.assert_array_equal(indices[:, 0], np.arange(3000))
    assert all(np.unique(row).size == 15 for row in indices)
    np.testing.assert_allclose(distances[:, 1:], 1 if metric == "cosine" and not value else 0)


def test_a_pile_of_equal_cells_beside_others() -> None:
    x = groups(4000)
    x[::3] = x[0]
    index = build(x, 15)
    indices, distances = index.neighbors(15)
    assert not distances[::3].any()
    assert all(np.unique(row).size == 15 for row in indices[::3])
    others = np.arange(4000) % 3 > 0
    last = exact(x, 15)[1][others, -1:]
    assert (distances[others] <= last + 1e-5).mean() > 0.985


@pytest.mark.parametrize("n_cells", [3, 15, 40])
def test_as_many_neighbours_as_cells(n_cells: int) -> None:
    x = groups(n_cells)
    indices, distances = build(x, n_cells).neighbors(n_cells)
    want = exact(x, n_cells)
    np.testing.assert_array_equal(indices, want[0])
    np.testing.assert_allclose(distances, want[1], atol=1e-5)


def test_a_file_is_searched_without_a_copy(tmp_path: Path) -> None:
    x = groups(15_000, n_dims=300)
    np.save(tmp_path / "x.npy", x)
    # "c" maps it as writable, like arrays in memory: the kernels are compiled for these already.
    on_disk = np.load(tmp_path / "x.npy", mmap_mode="c")
    want = build(x, 5).neighbors(5)
    with use_threads(1):
        tracemalloc.start()
        indices, distances = build(on_disk, 5).neighbors(5)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    np.testing.assert_array_equal(indices, want[0])
    np.testing.assert_array_equal(distances, want[1])
    assert peak < x.nbytes
