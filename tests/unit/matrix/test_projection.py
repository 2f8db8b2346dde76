"""Projection onto a map: what a cell gets is its own; votes; novelty."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

from scatlas.compute.threads import use_threads
from scatlas.errors import InputError
from scatlas.kernels.graphs import umap_cpu
from scatlas.matrix.projection import novelty, novelty_ranks, project_layout, vote_labels

CURVE = (0.583, 1.334)
K = 12


@pytest.fixture(scope="module")
def cells() -> dict[str, np.ndarray]:
    """Six groups of unequal width in a reference; new cells of these and of a seventh group."""
    rng = np.random.default_rng(0)
    centres, widths = rng.normal(size=(7, 10)) * 4, np.geomspace(0.3, 2, 7)
    of_reference, of_new = np.arange(1200) % 6, np.arange(700) % 7
    reference, new = (
        centres[groups] + rng.normal(size=(groups.size, 10)) * widths[groups][:, None]
        for groups in (of_reference, of_new)
    )
    search = NearestNeighbors(n_neighbors=K).fit(reference)
    distances, neighbours = search.kneighbors(new)
    within, near = search.kneighbors()
    return {
        "groups": of_reference,
        "new_groups": of_new,
        "map": (reference[:, :2] + 5 * centres[of_reference][:, :2]).astype(np.float32),
        "distances": distances,
        "neighbours": neighbours,
        "within": within,
        "near": near,
    }


def test_a_cell_gets_the_same_whatever_is_projected_with_it(
    cells: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = np.arange(100, 800, dtype=np.uint64)
    given = cells["neighbours"], cells["distances"]
    known = project_layout(cells["map"], *given, CURVE, keys=keys)
    assert known.dtype == np.float32
    monkeypatch.setattr("scatlas.compute.threads._CELLS_PER_BLOCK", 30)
    chosen = np.random.default_rng(0).permutation(700)[:300]
    with use_threads(3):
        found = project_layout(cells["map"], *(x[chosen] for x in given), CURVE, keys=keys[chosen])
        votes = vote_labels(cells["groups"], *(x[chosen] for x in given))
    np.testing.assert_array_equal(found, known[chosen])
    for part, whole in zip(votes, vote_labels(cells["groups"], *given), strict=True):
        np.testing.assert_array_equal(part, whole[chosen])
    other = project_layout(cells["map"], *given, CURVE, keys=keys + np.uint64(1))
    assert (other != known).any(axis=1).all()
    none = project_layout(cells["map"], *(x[:0] for x in given), CURVE, keys=keys[:0])
    assert none.shape == (0, 2)


def test_cells_of_an_unknown_group_are_novel(cells: dict[str, np.ndarray]) -> None:
    """Where plain distances fail: they are larger in the widest known group."""
    usual = cells["within"].mean(axis=1)
    found = novelty(cells["neighbours"], cells["distances"], usual)
    of_reference = novelty(cells["near"], cells["within"], usual)
    is_new = cells["new_groups"] == 6
    assert roc_auc_score(is_new, found) > 0.99
    ranks = novelty_ranks(found, of_reference)
    assert (ranks[is_new] > 0.99).mean() > 0.95
    assert 0.4 < np.median(ranks[~is_new]) < 0.6
    assert ((ranks >= 0) & (ranks <= 1)).all()


@settings(max_examples=30)
@given(
    n=st.sampled_from([0, 1, 30]),
    k=st.integers(1, 6),
    index=st.sampled_from([np.int32, np.int64]),
    seed=st.integers(0, 1000),
)
def test_kernels_are_those_of_plain_numpy(n: int, k: int, index: type, seed: int) -> None:
    rng = np.random.default_rng(seed)
    neighbours = rng.integers(0, 9, (n, k)).astype(index)
    weights = (rng.integers(1, 4, (n, k)) / 4).astype(np.float32)
    weights[rng.random((n, k)) < 0.1] = 1
    reference, codes = rng.normal(size=(9, 3)).astype(np.float32), rng.integers(-1, 4, 9)
    means = umap_cpu.average(reference, neighbours, weights)
    winners, shares = umap_cpu.vote(codes, neighbours, weights)
    usual, distances = rng.integers(0, 3, 9) * 1.0, rng.integers(0, 3, (n, k)).astype(np.float32)
    ratios = umap_cpu.relative_distance(distances, neighbours, usual)
    for i in range(n):
        equal = np.flatnonzero(weights[i] == 1)
        mean = np.average(reference[neighbours[i]], axis=0, weights=weights[i].astype(float))
        known = reference[neighbours[i, equal[0]]] if equal.size else mean
        np.testing.assert_allclose(means[i], known, rtol=1e-6, atol=1e-6)
        # The first of the largest: Python's max keeps the order of the neighbours.
        votes: dict[int, float] = {}
        for code, weight in zip(codes[neighbours[i]], weights[i], strict=True):
            if code >= 0:
                votes[code] = votes.get(code, 0.0) + float(weight)
        winner = max(votes, key=votes.__getitem__, default=-1)
        assert winners[i] == winner
        assert shares[i] == votes.get(winner, 0.0) / weights[i].sum(dtype=float)
        own, theirs = distances[i].sum(), usual[neighbours[i]].sum()
        expected = 1.0 if own == 0 else np.inf if theirs == 0 else own / theirs
        np.testing.assert_allclose(ratios[i], expected, rtol=1e-12)


@pytest.mark.parametrize("wrong", [-1, 1200])
def test_neighbours_outside_the_reference_are_refused(
    cells: dict[str, np.ndarray], wrong: int
) -> None:
    neighbours = cells["neighbours"].copy()
    neighbours[5, 2] = wrong
    message = f"cell 5 has the neighbour {wrong}, but the reference has 1200 cells"
    with pytest.raises(InputError, match=message):
        project_layout(
            cells["map"], neighbours, cells["distances"], CURVE, keys=np.zeros(700, "u8")
        )
    with pytest.raises(InputError, match=message):
        vote_labels(cells["groups"], neighbours, cells["distances"])
    with pytest.raises(InputError, match=message):
        novelty(neighbours, cells["distances"], cells["within"].mean(axis=1))
