"""Kernels of rank_genes_groups: rank sums as exact integers, sums of the rest, any types."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse, stats

from scatlas.kernels.moments import group_sums_cpu
from scatlas.kernels.moments.group_sums_cpu import SumKinds, other_group_sums
from scatlas.kernels.ranking import rank_sums_cpu


def rank_sums(
    blocks: list[tuple[Any, np.ndarray]], n_groups: int, wanted: np.ndarray, reference: int | None
) -> tuple[rank_sums_cpu.RankSums, np.ndarray, np.ndarray]:
    """Rank sums of some genes of blocks with codes, nonzero values by group, and group sizes."""
    dense = [x.toarray() if sparse.issparse(x) else x for x, _ in blocks]
    x, codes = np.concatenate(dense), np.concatenate([codes for _, codes in blocks])
    sizes = np.bincount(codes[codes >= 0], minlength=n_groups)
    nonzero = np.array([(x[codes == g][:, wanted] != 0).sum(axis=0) for g in range(n_groups)])
    zeros = sizes.sum() - nonzero.sum(axis=0)
    if reference is not None:
        zeros = sizes[reference] - nonzero[reference]
    place = np.full(x.shape[1], -1)
    place[wanted] = np.arange(wanted.size)
    gathered = rank_sums_cpu.NonzerosByGene(nonzero.sum(axis=0), x.dtype, n_groups)
    for block, block_codes in blocks:
        for part in rank_sums_cpu.gather_nonzeros(
            block, block_codes, new_column=place, n_groups=n_groups
        ):
            gathered.add(part)
    return gathered.rank_sums(zeros, reference, 2), nonzero, sizes


@settings(max_examples=60)
@given(st.data())
def test_integers_are_exact(data):
    """Against ranks and cubes in Python's integers, for few values of any sizes."""
    n, n_groups = data.draw(st.integers(1, 25)), data.draw(st.integers(1, 4))
    reference = data.draw(st.sampled_from([None, *range(n_groups)]))
    values = st.sampled_from([-2.0, -0.5, 0.0, 0.0, 1.0, 3.5])
    column = np.array(data.draw(st.lists(values, min_size=n, max_size=n)))
    codes = np.array(data.draw(st.lists(st.integers(0, n_groups - 1), min_size=n, max_size=n)))
    found, nonzero, sizes = rank_sums(
        [(column[:, None], codes)], n_groups, np.array([0]), reference
    )
    for group in range(n_groups):
        if reference is None:
            ranks = stats.rankdata(column)
            nonzero_here = (codes == group) & (column != 0)
            assert found.ranks[0, group] == sum(int(2 * rank) for rank in ranks[nonzero_here])
        elif group != reference:
            others = column[codes == reference]
            own = column[(codes == group) & (column != 0)]
            doubled = sum(2 * int((others < v).sum()) + int((others == v).sum()) for v in own)
            assert found.ranks[0, group] == doubled
    below = column[codes == reference] if reference is not None else column
    assert found.below[0] == (below < 0).sum()
    sides = [column]
    if reference is not None:
        sides = [column[(codes == g) | (codes == reference)] for g in range(n_groups)]
    ties = found.ties[0].sum(axis=0)[None] if reference is None else found.ties[0]
    if reference is not None:
        alone = ties[reference].copy()
        ties = ties + np.where(np.arange(n_groups)[:, None] == reference, 0, alone)
    for side, limbs in zip(sides, ties, strict=True):
        _, repeats = np.unique(side[side != 0], return_counts=True)
        assert int(limbs[1]) * 2**32 + int(limbs[0]) == sum(int(t) ** 3 - int(t) for t in repeats)
    assert nonzero.sum() == (column != 0).sum()
    assert sizes.sum() == n


@pytest.mark.parametrize("t", [0, 1, 2, 3, 1000, 2**16, 2**31 - 1, 1_234_567_891])
def test_cubes_of_large_numbers(t):
    limbs = np.array([5, 7])
    rank_sums_cpu._cube(limbs, np.int64(t), 1)
    low, high = limbs - [5, 7]
    assert int(high) * 2**32 + int(low) == t**3 - t
    np.testing.assert_array_equal(rank_sums_cpu._cubes(np.array([t])), [[low, high]])
    rank_sums_cpu._cube(limbs, np.int64(t), -1)
    assert limbs.tolist() == [5, 7]


def test_scores_of_a_billion_cells():
    """A gene that ten cells express among a billion zeros: nothing cancels, nothing overflows."""
    sizes = np.array([10**6, 10**9])
    nonzero = np.array([[7], [3]])
    n_zeros = int(sizes.sum()) - 10
    doubled = [2 * (n_zeros + rank) for rank in range(1, 11)]  # above all zeros
    found = rank_sums_cpu.RankSums(
        np.array([[sum(doubled[:7]), sum(doubled[7:])]]),
        np.zeros((1, 2, 2), dtype=np.int64),
        np.zeros(1, dtype=np.int64),
    )
    for ties in (False, True):
        got = rank_sums_cpu.standard_scores(found, nonzero, sizes, None, tie_correct=ties)
        n, m = map(int, sizes)
        rank_sum = Fraction(sum(doubled[:7]), 2) + (n - 7) * Fraction(n_zeros + 1, 2)
        variance = Fraction(n * m * (n + m + 1), 12)
        if ties:
            variance *= 1 - Fraction(n_zeros**3 - n_zeros, (n + m) ** 3 - (n + m))
        expected = float(rank_sum - n * Fraction(n + m + 1, 2)) / np.sqrt(float(variance))
        np.testing.assert_allclose(got[0, 0], expected, rtol=1e-14)


@pytest.mark.parametrize(("n_groups", "size"), [(2**16, 2), (2**16 + 1, 4)])
def test_codes_are_no_wider_than_they_must(n_groups, size):
    x, codes = np.array([[1.0], [2.0]]), np.array([n_groups - 1, 0])
    (part,) = rank_sums_cpu.gather_nonzeros(x, codes, new_column=np.array([0]), n_groups=n_groups)
    assert part.codes.tolist() == codes.tolist()
    assert part.codes.itemsize == size
    assert rank_sums_cpu.bytes_per_value(np.float32, n_groups) == 4 + size


def test_keys_order_as_values_do():
    rng = np.random.default_rng(0)
    for dtype in ("int8", "uint8", "int16", "int32", "float32", "int64", "float64"):
        kind = np.finfo(dtype) if dtype.startswith("f") else np.iinfo(dtype)
        values = rng.normal(size=200) * 100
        values = np.abs(values) if dtype.startswith("u") else values
        ends = np.array([kind.min, kind.max, kind.max, 1, 1], dtype=dtype)
        values = np.concatenate([values.astype(dtype), ends])
        values = values[values != 0]
        codes = rng.integers(0, 9, values.size).astype(np.uint16)
        keys = rank_sums_cpu.sorted_keys(values, codes, np.array([0, values.size]))
        order = np.lexsort([codes, values])
        np.testing.assert_array_equal(keys & np.uint64(2**32 - 1), codes[order])
        runs = keys >> np.uint64(32)
        np.testing.assert_array_equal(np.diff(runs) > 0, np.diff(values[order]) > 0)
        np.testing.assert_array_equal(keys >> np.uint64(63) == 1, values[order] > 0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tasks_do_not_show(dtype, monkeypatch):
    """Many genes at once, in one thread or several, or one gene with more values than a task."""
    rng = np.random.default_rng(0)
    x = (rng.poisson(0.6, (60, 40)) * rng.choice([-1.5, 0.3, 2], (60, 40))).astype(dtype)
    codes = rng.integers(0, 3, 60)
    found = []
    for n_values in (2**18, 100, 1):
        monkeypatch.setattr(rank_sums_cpu, "_VALUES_PER_TASK", n_values)
        found.append(rank_sums([(x, codes)], 3, np.arange(40), None)[0])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("dtype", ["uint16", "float32", "float64"])
def test_sums_of_the_rest_lose_no_digit(dtype):
    rng = np.random.default_rng(0)
    x = rng.poisson(0.7, (200, 9)) * (10.0 ** rng.integers(-3, 4, (200, 9)))
    x = (x if dtype.startswith("f") else rng.poisson(2, (200, 9))).astype(dtype)
    codes = rng.integers(0, 5, 200)
    codes[codes == 3] = 2  # a group without a cell
    total = group_sums_cpu.zeros((5, 9), dtype, SumKinds(True, True, True))
    group_sums_cpu.add(x, codes, total)
    rest = other_group_sums(total)
    for group in range(5):
        others = x[codes != group]
        for gene in range(9):
            for power, found in ((1, rest.sums), (2, rest.squares)):
                exact = float(sum(Fraction(float(v)) ** power for v in others[:, gene]))
                np.testing.assert_allclose(found[group, gene], exact, rtol=2e-16)
        np.testing.assert_array_equal(rest.nonzero[group], (others != 0).sum(axis=0))
    assert (rest.errors is None) == (dtype == "uint16")
