"""New cells on the map of a reference, and the variance that its components hold."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
from scipy import sparse

from scatlas.matrix.components import components
from scatlas.matrix.gene_scale import GeneScale
from scatlas.matrix.gram import gram_stats
from scatlas.matrix.reference_map import (
    UNLIKE_RANK,
    ColumnMomentsByPlate,
    Layout,
    Projection,
    ReferenceMap,
    count_leading,
    held_variance,
    index_reference,
    smallest_usual_share,
    usual_distances,
)

CENTRES = np.array([[0.0, 0, 0], [20, 0, 0], [0, 20, 0]])
K = 10


def cells(n: int, groups: list[int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    group = rng.choice(groups, n)
    return (CENTRES[group] + rng.normal(size=(n, 3))).astype(np.float32), group


@pytest.fixture(scope="module")
def reference() -> ReferenceMap:
    """Two groups, far from each other in their components and on the map."""
    x, group = cells(600, [0, 1], seed=0)
    lists = index_reference(x, K + 1)
    places = (10 * group[:, None] + np.random.default_rng(1).normal(size=(600, 2))).astype("f4")
    layout = Layout(places, (0.58, 1.33), 0)
    return ReferenceMap(lists, K, {"group": group}, layout, usual_distances(lists, K))


def test_new_cells_join_their_group_and_unknown_ones_are_unlike(reference: ReferenceMap):
    x, group = cells(300, [0, 1, 2], seed=2)
    placed = reference.place(x, np.arange(300, dtype=np.uint64))
    known = group < 2
    assert (placed.labels["group"] == group)[known].all()
    assert (placed.shares["group"][known] == 1).all()
    np.testing.assert_allclose(placed.coordinates[known].mean(axis=1), 10 * group[known], atol=6)
    unlike = placed.ranks > UNLIKE_RANK
    assert unlike[~known].all()
    assert unlike[known].mean() < 0.1
    assert np.median(placed.distances[known]) == pytest.approx(1, abs=0.1)


def test_distances_among_reference_cells_are_those_by_hand(reference: ReferenceMap):
    x = reference.lists.cells.x.astype(np.float64)
    pairs = np.linalg.norm(x[:, None] - x, axis=2)
    nearest = np.argsort(pairs, axis=1)[:, 1 : K + 1]
    usual = np.take_along_axis(pairs, nearest, axis=1).mean(axis=1)
    np.testing.assert_allclose(reference.usual[0], usual, rtol=1e-5)
    np.testing.assert_allclose(reference.usual[1], usual / usual[nearest].mean(axis=1), rtol=1e-5)


def log_values(n: int, seed: int) -> sparse.csr_matrix:
    x = sparse.random(n, 12, 0.4, "csr", np.float32, random_state=seed)
    x.data *= 3
    return x


@pytest.mark.parametrize("scale", [None, (False, None), (True, None), (True, 1.5), (False, 2.0)])
@pytest.mark.parametrize("zero_center", [True, False])
def test_new_cells_are_projected_as_those_of_the_atlas(
    scale: tuple[bool, float | None] | None, zero_center: bool
):
    x = log_values(80, seed=0)
    lazy = da.from_array(x, chunks=(30, 12), asarray=False)
    stats = gram_stats(x)
    codes = np.repeat([0, 1], [30, 50])
    moments = ColumnMomentsByPlate.read(x, codes, 2)
    scaling = of_atlas = None
    shifted = lazy
    if scale:
        scaling = GeneScale(moments.mean_of_all, moments.std_of_all, *scale)
        of_atlas = GeneScale.from_stats(stats, zero_center=scale[0], max_value=scale[1])
        np.testing.assert_allclose(scaling.std, of_atlas.std, rtol=1e-12)
        shifted = of_atlas.shift(lazy)
        stats = of_atlas.stats(stats, shifted)
    found = components(stats, 4, zero_center=zero_center)
    zeros = None if of_atlas is None else of_atlas.zeros
    expected = found.project(shifted, zero_center=zero_center, zeros=zeros).compute()
    moments = ColumnMomentsByPlate.read(shifted, codes, 2)
    own_zeros = scaling.zeros if scaling else np.zeros(12)
    offset = (moments.mean_of_all if zero_center else -own_zeros) @ found.PCs
    projected = Projection(found.PCs, offset, scaling)(x)
    np.testing.assert_allclose(projected, expected, rtol=0, atol=1e-5)


def test_held_variance_is_that_by_hand_in_any_blocks():
    x = log_values(90, seed=1)
    codes = np.repeat([0, -1, 1, 2], [40, 10, 39, 1])
    PCs = components(gram_stats(x), 5).PCs
    x_pca = (x @ PCs).astype(np.float32)
    tables = []
    for rows in (90, 17):
        parts = (
            da.from_array(part, chunks=(rows, part.shape[1]), asarray=False) for part in (x, x_pca)
        )
        tables.append(
            held_variance(*(ColumnMomentsByPlate.read(p, codes, 3) for p in parts), ["a", "b", "c"])
        )
    assert tables[0].equals(tables[1])
    for i, name in enumerate("ab"):
        own = x[codes == i].toarray().astype(np.float64)
        total = own.var(axis=0, ddof=1).sum()
        held = (own @ PCs).var(axis=0, ddof=1).sum()
        row = tables[0].loc[name]
        assert row["variance"] == pytest.approx(total, rel=1e-9)
        assert row["share"] == pytest.approx(held / total, rel=1e-5)
    assert tables[0].loc["c", "n_cells"] == 1
    assert np.isnan(tables[0].loc["c", "share"])


def test_a_share_is_small_if_it_lies_further_out_than_the_plates_of_the_atlas():
    assert smallest_usual_share(np.array([0.5, 0.6, np.nan])) == pytest.approx(0.4)
    assert smallest_usual_share(np.array([0.5])) == pytest.approx(0.45)
    assert np.isnan(smallest_usual_share(np.array([np.nan])))


def test_components_of_noise_do_not_count():
    """A plate of the same kind has the share of the others, however many components hold noise."""
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(400, 3)))[0].T * np.array([[9.0], [7.0], [5.0]])

    def plate() -> np.ndarray:
        return rng.normal(size=(1000, 3)) @ axes + rng.normal(size=(1000, 400))

    known, new = plate(), plate()
    _, values, vectors = np.linalg.svd(known - known.mean(axis=0), full_matrices=False)
    n = count_leading(values[:100] ** 2)
    assert n == 3
    codes = np.zeros(1000, np.int64)

    def share(x: np.ndarray, n: int) -> float:
        moments = [ColumnMomentsByPlate.read(part, codes, 1) for part in (x, x @ vectors[:n].T)]
        return held_variance(*moments, ["p"])["share"].iloc[0]

    assert share(new, n) == pytest.approx(share(known, n), rel=0.1)
    assert share(new, 100) < smallest_usual_share(np.array([share(known, 100)]))
    assert count_leading(np.ones(5)) == 5
