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


def scattered(x, rng, index="int32", indptr="int64"):
    """CSR of the same counts: genes in any order, some in several entries, explicit zeros."""
    data, indices = [], []
    for row in x:
        part = rng.integers(0, row.astype(np.int64), endpoint=True).astype(x.dtype)
        genes = np.tile(np.arange(row.size), 2)
        order = rng.permutation(genes.size)
        data.append(np.concatenate([part, row - part if x.dtype != bool else row & ~part])[order])
        indices.append(genes[order])
    ends = np.arange(len(x) + 1) * 2 * x.shape[1]
    flat = (np.concatenate([*part, np.empty(0)]) for part in (data, indices))
    data, indices = (part.astype(kind) for part, kind in zip(flat, (x.dtype, index), strict=True))
    return blocks.csr(data, indices, ends.astype(indptr), x.shape[1])


def summed(block):
    """Dense counts, entries of one gene added up."""
    out = np.zeros(block.shape, np.int64)
    rows = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
    np.add.at(out, (rows, block.indices), block.data.astype(np.int64))
    return out


@given(case=cases(), seed=st.integers(0, 2**64 - 1), replace=st.booleans())
@few
def test_draw_does_not_depend_on_how_rows_are_stored(case, seed, replace):
    x, block, targets, cells = case
    if replace:
        targets = np.where(x.any(axis=1), targets, -1)
    options = {"seed": seed, "replace": replace, "dtype": np.int64}
    expected = downsample_cpu.draw_counts(block, cells, targets, **options)
    same = scattered(x, np.random.default_rng(seed), block.indices.dtype, block.indptr.dtype)
    np.testing.assert_array_equal(summed(same), x)
    before = [part.copy() for part in (same.data, same.indices, same.indptr)]
    got = downsample_cpu.draw_counts(same, cells, targets, **options)
    for part, old in zip((same.data, same.indices, same.indptr), before, strict=True):
        np.testing.assert_array_equal(part, old)
    assert (got.indices.dtype, got.indptr.dtype) == (block.indices.dtype, block.indptr.dtype)
    np.testing.assert_array_equal(summed(got), expected.toarray())


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


@pytest.mark.parametrize("replace", [False, True])
def test_distribution_within_cells(replace):
    """Means, variances and covariances of genes, and all probabilities of one."""
    target, total = 60, COUNTS.sum()
    import anndata as ad

    adata = ad.AnnData(sp.csr_matrix(np.tile(COUNTS, (N, 1))))
    downsample_counts(adata, target, replace=replace)
    x = adata.X.toarray()
    assert (x.sum(axis=1) == target).all()
    p = COUNTS / total
    spread = target * (np.diag(p) - np.outer(p, p))
    if not replace:
        assert (x <= COUNTS).all()
        spread = spread * (total - target) / (total - 1)
    np.testing.assert_allclose(x.mean(axis=0), target * p, atol=4.5 * np.sqrt(spread.max() / N))
    np.testing.assert_allclose(np.cov(x.T), spread, atol=5 * spread.max() * np.sqrt(2 / N))
    gene = 5
    law = stats.binom(target, p[gene])
    if not replace:
        law = stats.hypergeom(total, COUNTS[gene], target)
    common = np.flatnonzero(law.pmf(np.arange(target + 1)) * N > 8)
    expected = law.pmf(common)
    found = np.bincount(x[:, gene], minlength=target + 1)[common]
    rest = [N - found.sum()], [1 - expected.sum()]
    test = stats.chisquare([*found, *rest[0]], N * np.array([*expected, *rest[1]]))
    assert test.pvalue > 0.001
    # Cells draw independently.
    assert abs(np.corrcoef(x[1:, gene], x[:-1, gene])[0, 1]) < 4.5 / np.sqrt(N)


@pytest.mark.parametrize("share", [_draw_without_replacement, _draw_with_replacement])
@pytest.mark.parametrize("target", [0, 1, 15, 60, 199, 200])
def test_distribution_over_cells(share, target):
    total = COUNTS.sum()
    found = np.array([share(COUNTS, target, np.random.default_rng(i)) for i in range(3000)])
    assert (found.sum(axis=1) == target).all()
    p = COUNTS / total
    spread = target * (np.diag(p) - np.outer(p, p))
    if share is _draw_without_replacement:
        assert (found <= COUNTS).all()
        spread = spread * (total - target) / (total - 1)
    np.testing.assert_allclose(
        found.mean(axis=0), target * p, atol=4.5 * np.sqrt(spread.max() / 3000)
    )
    np.testing.assert_allclose(np.cov(found.T), spread, atol=5 * spread.max() * np.sqrt(2 / 3000))


def test_more_counts_than_numpy_draws_from():
    totals = np.full(5000, 10**9)
    for share in (_draw_without_replacement, _draw_with_replacement):
        for target in (5, 10**12, 4 * 10**12 + 1):
            found = share(totals, target, np.random.default_rng(0))
            assert found.sum() == target
            assert found.min() >= 0
            if target > 5:
                mean, p = target / 5000, 1 / 5000
                spread = np.sqrt(
                    target * p * (1 - (target / 5e12 if share is _draw_without_replacement else 0))
                )
                assert np.abs(found - mean).max() < 5 * spread
                assert np.abs(found - mean).max() > spread


# --- public function --------------------------------------------------------------------------

HOW = [
    {"counts_per_cell": 20},
    {"counts_per_cell": np.arange(60) * 3},
    {"counts_per_cell": 20, "replace": True},
    {"total_counts": 1000},
    {"total_counts": 1000, "replace": True},
]


@pytest.mark.parametrize("how", HOW, ids=str)
def test_same_counts_for_every_kind_of_x(
    array_type, block_loads, count_dtype, counts, make_adata, dense, how
):
    expected = make_adata(counts)
    downsample_counts(expected, **how)
    adata = make_adata(array_type(counts.astype(count_dtype)))
    original = adata.X
    assert downsample_counts(adata, **how) is None
    assert adata.X is not original
    assert adata.X.dtype == count_dtype
    if array_type.is_dask:
        assert adata.X.chunks == original.chunks
        assert block_loads.passes() == ("total_counts" in how)
    kind = getattr(adata.X, "_meta", adata.X)
    assert sp.issparse(kind) == array_type.is_sparse
    if sp.issparse(kind):
        assert kind.format == array_type.name.removeprefix("dask-")
    got = dense(adata.X)
    assert got.dtype == count_dtype
    np.testing.assert_array_equal(got, expected.X.toarray())
    before, after = (x.sum(axis=1, dtype=np.int64) for x in (counts.toarray(), got))
    if "total_counts" in how:
        assert after.sum() == 1000
    else:
        np.testing.assert_array_equal(after, np.minimum(before, how["counts_per_cell"]))
    assert how.get("replace") or (got <= counts.toarray()).all()
    block_loads.assert_unchanged()


@pytest.mark.parametrize("how", HOW, ids=str)
def test_no_count_depends_on_the_blocks(block_loads, counts, make_adata, dense, how):
    expected = make_adata(counts)
    downsample_counts(expected, **how, random_state=5)
    for rows in (1, 13, 60):
        adata = make_adata(block_loads.dask(counts, rows))
        downsample_counts(adata, **how, random_state=5)
        np.testing.assert_array_equal(dense(adata.X), expected.X.toarray())
    other = make_adata(counts)
    downsample_counts(other, **how, random_state=2**64 - 1)
    assert (other.X != expected.X).nnz
    downsample_counts(other, **how, random_state=None)


@pytest.mark.parametrize("how", HOW, ids=str)
def test_no_count_depends_on_how_x_is_stored(block_loads, counts, make_adata, dense, how):
    expected = make_adata(counts)
    downsample_counts(expected, **how)
    rows = scattered(counts.toarray(), np.random.default_rng(0))
    genes = scattered(counts.T.toarray(), np.random.default_rng(0))
    columns = sp.csc_matrix((genes.data, genes.indices, genes.indptr), shape=counts.shape)
    for x in (rows, columns, block_loads.dask(rows, 13)):
        adata = make_adata(x)
        downsample_counts(adata, **how)
        np.testing.assert_array_equal(dense(adata.X), expected.X.toarray())


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


def test_views(counts, make_adata):
    parent = make_adata(counts.copy())
    view = parent[:30]
    with pytest.warns(UserWarning, match="Received a view"):
        downsample_counts(view, 5)
    assert not view.is_view
    assert (counts != parent.X).nnz == 0


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
