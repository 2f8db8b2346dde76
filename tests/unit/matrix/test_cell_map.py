"""The map of all cells from that of a sample: who keeps what, and what decides it."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from scatlas.compute.threads import use_threads
from scatlas.matrix import inverted_lists
from scatlas.matrix.projection import novelty, project_layout, vote_labels
from scatlas.matrix.reference_map import Sample, map_cells

K, N_CELLS, N_SAMPLE = 10, 900, 300


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    """Five groups; the last 30 cells are equal to one another."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(5, 8)) * 4
    x = centres[np.arange(N_CELLS) % 5] + rng.normal(size=(N_CELLS, 8))
    x[-30:] = x[-1]
    return x.astype(np.float32)


@pytest.fixture(scope="module")
def sample(x: np.ndarray) -> Sample:
    rows = np.sort(np.random.default_rng(1).choice(N_CELLS, N_SAMPLE, replace=False))
    distances, _ = NearestNeighbors(n_neighbors=K).fit(x[rows]).kneighbors(x[rows])
    return Sample(
        rows=rows,
        coordinates=x[rows, :2].copy(),
        codes=rows % 5,
        usual=distances[:, 1:].mean(axis=1),
        curve=(0.583, 1.334),
        n_neighbors=K,
        seed=7,
    )


@pytest.fixture(scope="module")
def index(x: np.ndarray, sample: Sample) -> inverted_lists.InvertedLists:
    built = inverted_lists.build(x[sample.rows], K)
    return built._replace(n_probes=built.n_lists)


def mapped(sample, index, x: np.ndarray, size: int) -> dict[str, np.ndarray]:
    parts = list(map_cells(sample, index, (x[i : i + size] for i in range(0, len(x), size))))
    columns = {name: np.concatenate([part[1][name] for part in parts]) for name in parts[0][1]}
    return {"places": np.concatenate([part[0] for part in parts]), **columns}


@pytest.fixture(scope="module")
def found(x: np.ndarray, sample: Sample, index) -> dict[str, np.ndarray]:
    return mapped(sample, index, x, 128)


@pytest.mark.parametrize(("size", "threads"), [(1, 1), (64, 3), (900, 2)])
def test_parts_and_threads_change_no_bit(found, x, sample, index, size: int, threads: int) -> None:
    with use_threads(threads):
        again = mapped(sample, index, x, size)
    for name, values in found.items():
        np.testing.assert_array_equal(again[name], values, err_msg=name)


def test_sampled_cells_keep_place_and_cluster(found, sample) -> None:
    np.testing.assert_array_equal(found["places"][sample.rows], sample.coordinates)
    np.testing.assert_array_equal(found["leiden"][sample.rows], sample.codes)


def test_other_cells_are_projected(found, x, sample) -> None:
    others = np.setdiff1d(np.arange(N_CELLS), sample.rows)
    search = NearestNeighbors(n_neighbors=K + 1).fit(x[sample.rows])
    distances, near = search.kneighbors(x[others])
    # Of neighbours at equal distances any may be the nearest.
    clear = np.diff(distances, axis=1).min(axis=1) > 0
    assert clear.sum() > 400
    others, distances, near = others[clear], distances[clear, :K], near[clear, :K]
    codes, shares = vote_labels(sample.codes, near[:, :-1], distances[:, :-1])
    np.testing.assert_array_equal(found["leiden"][others], codes)
    np.testing.assert_allclose(found["leiden_share"][others], shares, rtol=1e-5)
    expected = novelty(near[:, :-1], distances[:, :-1], sample.usual)
    np.testing.assert_allclose(found["map_distance"][others], expected, rtol=1e-5)
    keys = others.astype(np.uint64)
    places = project_layout(sample.coordinates, near, distances, sample.curve, keys=keys, seed=7)
    np.testing.assert_allclose(found["places"][others], places, rtol=0, atol=0.05)


def test_a_sampled_cell_does_not_count_itself(found, x, sample, index) -> None:
    """Also among more equal cells than it has neighbours."""
    search = NearestNeighbors(n_neighbors=K - 1).fit(x[sample.rows])
    distances, near = search.kneighbors()
    expected = novelty(near, distances, sample.usual)
    np.testing.assert_allclose(found["map_distance"][sample.rows], expected, rtol=1e-5)
    # Alone of its cluster: no neighbour agrees.
    codes = sample.codes.copy()
    codes[0] = 5
    alone = mapped(sample._replace(codes=codes), index, x, 256)
    assert alone["leiden"][sample.rows[0]] == 5
    assert alone["leiden_share"][sample.rows[0]] == 0
    assert ((found["leiden_share"] >= 0) & (found["leiden_share"] <= 1 + 1e-12)).all()
