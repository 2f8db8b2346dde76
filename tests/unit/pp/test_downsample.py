"""downsample_counts: random numbers against plain ones, distributions, kinds of X, errors."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from scatlas import blocks
from scatlas.errors import InputError
from scatlas.kernels.counts import downsample_cpu
from scatlas.pp import downsample_counts
from scatlas.pp._downsample import _draw_with_replacement, _draw_without_replacement

few = settings(max_examples=30, deadline=None, derandomize=True)
PAIRS = [("uint8", "uint16"), ("int32", "int32"), ("float32", "int64"), ("bool", "int32")]


def csr(x, index="int32", indptr="int64"):
    m = sp.csr_matrix(x)
    return blocks.csr(m.data, m.indices.astype(index), m.indptr.astype(indptr), x.shape[1])


def test_rng_is_the_name_of_random_state_in_newer_scanpy():
    adata = ad.AnnData(csr(np.full((4, 9), 5, np.int32)))

    def drawn(**options):
        return downsample_counts(adata, 7, copy=True, **options).X.toarray()

    np.testing.assert_array_equal(drawn(rng=3), drawn(random_state=3))
    np.testing.assert_array_equal(drawn(rng=None), drawn())
    first, again = (drawn(rng=np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    with pytest.raises(InputError, match="same option: give one of them"):
        drawn(rng=3, random_state=3)
    with pytest.raises(InputError, match=r"rng=1\.5 is not possible"):
        drawn(rng=1.5)


# --- random numbers ---------------------------------------------------------------------------

# Known answers of the authors of Philox: counter, key, words.
ANSWERS = [
    ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ([2**32 - 1] * 4, [2**32 - 1] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@pytest.mark.parametrize("counter, key, words", ANSWERS)
def test_philox(counter, key, words):
    given = map(np.uint64, [*counter, *key])
    assert [int(word, 16) for word in words.split()] == list(downsample_cpu._philox(*given))


def words_of(seed, cell):
    """Words of a cell in plain integers."""
    made = 0
    while True:
        low, high = divmod(made, 2**32)[::-1], divmod(cell, 2**32)[::-1]
        yield from plain_philox([*low, *high], list(divmod(seed, 2**32)[::-1]))
        made += 1


def plain_philox(c, k):
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(q >> 32) ^ c[1] ^ k[0], q % 2**32, (p >> 32) ^ c[3] ^ k[1], p % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def plain_draw(counts, target, seed, cell, replace):
    """What the kernel does, count by count."""
    words = words_of(seed, cell)

    def below(bound):
        while True:
            high, low = divmod(next(words) * bound, 2**32)
            if low >= 2**32 % bound:
                return high

    genes = np.repeat(np.arange(len(counts)), counts)
    if replace:
        drawn = [genes[below(len(genes))] for _ in range(target)]
        return np.bincount(drawn, minlength=len(counts))
    drawn = []
    for i, gene in enumerate(genes):
        left, wanted = len(genes) - i, target - len(drawn)
        # None is drawn when there is no choice.
        if wanted and (wanted == left or below(left) < wanted):
            drawn.append(gene)
    return np.bincount(drawn, minlength=len(counts))


@st.composite
def cases(draw):
    dtype, index = draw(st.sampled_from(PAIRS))
    n, g = draw(st.integers(0, 9)), draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = (rng.poisson(1.0, (n, g)) * rng.choice([1, 15], (n, g))).astype(dtype)
    x[rng.random(n) < 0.2] = 0
    targets = rng.integers(-1, x.sum(axis=1, dtype=np.int64) + 1)
    cells = rng.integers(0, 2**40, n)
    return x, csr(x, index, draw(st.sampled_from(["int32", "int64"]))), targets, cells


@given(case=cases(), seed=st.integers(0, 2**64 - 1), replace=st.booleans())
@few
def test_draw(case, seed, replace):
    x, block, targets, cells = case
    dtype = np.uint8 if replace and x.dtype == bool else x.dtype
    if replace:
        targets = np.where(x.any(axis=1), targets, -1)
    options = {"seed": seed, "replace": replace, "dtype": dtype}
    before = block.data.copy()
    got = downsample_cpu.draw_counts(block, cells, targets, **options)
    np.testing.assert_array_equal(block.data, before)
    assert got.dtype == dtype
    assert (got.indices.dtype, got.indptr.dtype) == (block.indices.dtype, block.indptr.dtype)
    assert got.data.all(), "no explicit zero"
    for row, (counts, target) in enumerate(zip(x, targets, strict=True)):
        expected = counts
        if target >= 0:
            plain = plain_draw(counts.astype(int), target, seed, int(cells[row]), replace)
            assert plain.sum() == target
            expected = plain.astype(dtype)
        np.testing.assert_array_equal(got.toarray()[row], expected)
    dense = downsample_cpu.draw_counts(x, cells, targets, **options)
    np.testing.assert_array_equal(dense, got.toarray())
    turned = downsample_cpu.draw_counts(np.asfortranarray(x), cells, targets, **options)
    np.testing.assert_array_equal(turned, dense)


def test_large_counts():
    """Totals whose numbers need all 32 bits, and numbers that are drawn again to have no bias."""
    x = csr(np.array([[3 * 2**29, 0, 5, 3 * 2**29 - 10]], np.int64))
    options = {"seed": 1, "replace": True, "dtype": np.int64}
    got = downsample_cpu.draw_counts(x, np.zeros(1, int), np.array([7]), **options)
    assert got.sum() == 7
    assert (got.toarray()[0, [0, 3]] > 0).all()
    # 3 * 2**30 counts: a quarter of the words would be biased and is drawn again.
    bound, n_drawn = np.uint64(3 * 2**30), 400_000
    words, state = np.empty((4, downsample_cpu._N_CALLS), np.uint64), np.array([0, 0, 1], np.uint64)
    downsample_cpu._fill(words, state)
    low = words * bound & np.uint64(2**32 - 1)
    biased = np.vectorize(downsample_cpu._is_biased)(low, bound)
    assert 0.1 < biased.mean() < 0.4
    assert state[downsample_cpu._COUNTER] == downsample_cpu._N_CALLS
    genes = csr(np.full((1, 48), 2**26, np.int64))
    got = downsample_cpu.draw_counts(genes, np.zeros(1, int), np.array([n_drawn]), **options)
    assert got.sum() == n_drawn
    assert stats.chisquare(got.toarray()[0]).pvalue > 0.01


# --- distribution -----------------------------------------------------------------------------

COUNTS = np.array([40, 0, 25, 3, 1, 31, 100])
N = 20_000


def law_of(target, *, replace):
    """Mean and covariance of the drawn counts of COUNTS."""
    total = COUNTS.sum()
    p = COUNTS / total
    spread = target * (np.diag(p) - np.outer(p, p))
    return target * p, spread if replace else spread * (total - target) / (total - 1)


@pytest.mark.parametrize("replace", [False, True])
def test_distribution_within_cells(replace):
    """Means, variances and covariances of genes."""
    target = 60
    adata = ad.AnnData(sp.csr_matrix(np.tile(COUNTS, (N, 1))))
    downsample_counts(adata, target, replace=replace)
    x = adata.X.toarray()
    assert (x.sum(axis=1) == target).all()
    assert replace or (x <= COUNTS).all()
    mean, spread = law_of(target, replace=replace)
    np.testing.assert_allclose(x.mean(axis=0), mean, atol=4.5 * np.sqrt(spread.max() / N))
    np.testing.assert_allclose(np.cov(x.T), spread, atol=5 * spread.max() * np.sqrt(2 / N))
    # Cells draw independently.
    assert abs(np.corrcoef(x[1:, 5], x[:-1, 5])[0, 1]) < 4.5 / np.sqrt(N)


@pytest.mark.parametrize("share", [_draw_without_replacement, _draw_with_replacement])
@pytest.mark.parametrize("target", [0, 60, 199, 200])
def test_distribution_over_cells(share, target):
    totals, n = COUNTS, 3000
    found = np.array([share(totals, target, np.random.default_rng(i)) for i in range(n)])
    assert (found.sum(axis=1) == target).all()
    assert share is _draw_with_replacement or (found <= totals).all()
    mean, spread = law_of(target, replace=share is _draw_with_replacement)
    np.testing.assert_allclose(found.mean(axis=0), mean, atol=4.5 * np.sqrt(spread.max() / n))
    np.testing.assert_allclose(np.cov(found.T), spread, atol=5 * spread.max() * np.sqrt(2 / n))


@pytest.mark.parametrize("share", [_draw_without_replacement, _draw_with_replacement])
def test_more_counts_than_numpy_draws_from(share):
    totals = np.full(5000, 10**9)
    for target in (5, 10**12, 4 * 10**12 + 1):
        found = share(totals, target, np.random.default_rng(0))
        assert found.sum() == target
        assert found.min() >= 0
        if target > 5:
            left = 1 if share is _draw_with_replacement else 1 - target / 5e12
            spread = np.sqrt(target / 5000 * left)
            assert spread < np.abs(found - target / 5000).max() < 5 * spread


# --- public function --------------------------------------------------------------------------

HOW = [
    {"counts_per_cell": 20},
    {"counts_per_cell": np.arange(60) * 3},
    {"counts_per_cell": 20, "replace": True},
    {"total_counts": 1000},
    {"total_counts": 1000, "replace": True},
]


@pytest.mark.parametrize("how", HOW, ids=str)
def test_same_counts_for_every_kind_of_x(array_type, block_loads, counts, make_adata, dense, how):
    expected = make_adata(counts)
    downsample_counts(expected, **how, random_state=5)
    for rows in (1, 13) if array_type.is_dask else (None,):
        block_loads.reset()
        adata = make_adata(array_type(counts, rows=rows))
        original = adata.X
        assert downsample_counts(adata, **how, random_state=5) is None
        assert adata.X is not original
        if array_type.is_dask:
            assert adata.X.chunks == original.chunks
            assert block_loads.per_block()[-1] == ("total_counts" in how)
        np.testing.assert_array_equal(dense(adata.X), expected.X.toarray())
    kind = getattr(adata.X, "_meta", adata.X)
    assert type(kind) is type(getattr(original, "_meta", original))
    block_loads.assert_unchanged()
    other = make_adata(counts)
    downsample_counts(other, **how, random_state=2**64 - 1)
    assert (other.X != expected.X).nnz
    downsample_counts(other, **how, random_state=None)


def test_cells_and_data_without_more_stay_as_they_are(counts, make_adata):
    adata = make_adata(counts.copy())
    adata.X.data[::4] = 0
    x = adata.X.copy()
    once = downsample_counts(adata, 10**6, copy=True)
    assert (x != once.X).nnz == 0
    assert once.X.data.all()
    assert once.X.nnz < x.nnz == adata.X.nnz
    for replace in (False, True):
        total = int(x.sum())
        more = downsample_counts(adata, total_counts=total + 1, replace=replace, copy=True)
        assert (x != more.X).nnz == 0
    all_of_them = downsample_counts(adata, total_counts=total, copy=True)
    assert (x != all_of_them.X).nnz == 0
    none = downsample_counts(adata, 0, copy=True)
    assert none.X.nnz == 0
    assert none.shape == adata.shape
    empty = make_adata(counts[:0])
    downsample_counts(empty, 5)
    downsample_counts(empty, total_counts=0)
    assert empty.X.shape == (0, 50)


def test_small_integers_get_wider_with_replacement(make_adata):
    x = np.tile(np.array([250, 100], np.uint8), (200, 1))
    for kind in (np.asarray, sp.csr_matrix):
        adata = make_adata(kind(x))
        narrow = downsample_counts(adata, 340, copy=True).X
        assert narrow.dtype == np.uint8
        wide = downsample_counts(adata, 340, replace=True, copy=True).X
        assert wide.dtype == np.uint16
        assert wide.max() > 255
        assert (wide.sum(axis=1) == 340).all()
        assert downsample_counts(adata, 99, replace=True, copy=True).X.dtype == np.uint8


def test_errors(counts, make_adata, block_loads):
    def refused(message, x=counts, **how):
        adata = make_adata(x)
        with pytest.raises(InputError, match=message):
            downsample_counts(adata, **how)
        assert adata.X is x or (x != adata.X).nnz == 0

    refused("either counts_per_cell or total_counts")
    refused("either counts_per_cell or total_counts", counts_per_cell=3, total_counts=9)
    refused("60 cells", counts_per_cell=[1, 2])
    for bad in (-1, 2.5, [-1] * 60):
        refused("integers from 0 on", counts_per_cell=bad)
    refused("total_counts=-1", total_counts=-1)
    for seed in (-1, 2**64):
        refused("random_state=.* whole number from 0 to", total_counts=3, random_state=seed)
    for bad in (0.5, -1.0, np.nan):
        odd = counts.astype(np.float64)
        odd.data[7] = bad
        refused("needs counts", odd, counts_per_cell=3)
        refused("needs counts", odd, total_counts=3)
        lazy = make_adata(block_loads.dask(odd))
        downsample_counts(lazy, 3)
        with pytest.raises(InputError, match="needs counts"):
            lazy.X.compute(scheduler="sync")
    deep = counts.astype(np.int64)
    deep.data[3] = 2**32
    refused("the maximum of 4,294,967,295", deep, counts_per_cell=3)
