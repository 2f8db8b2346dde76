"""Kernels that go straight from counts: moments of normalised counts, and the cut."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from scatlas import blocks
from scatlas.kernels.counts import normalize_cpu, select_cpu
from scatlas.kernels.counts.normalize_cpu import select_and_log_normalize
from scatlas.kernels.counts.select_cpu import new_column_of_gene
from scatlas.kernels.moments import count_moments_cpu, moments_cpu
from scatlas.kernels.moments.count_moments_cpu import normalized_moments

few = settings(max_examples=25, deadline=None, derandomize=True)
# Each pair of data and indices is one more variant to compile.
PAIRS = [("uint8", "uint16"), ("uint16", "int32"), ("float32", "int64")]


def csr(x, index="int32", indptr="int64"):
    """CSR with index arrays of exactly these widths."""
    m = sp.csr_matrix(x)
    return blocks.csr(m.data, m.indices.astype(index), m.indptr.astype(indptr), x.shape[1])


def bits(moments):
    return [
        part.tobytes() for part in (moments.mean, moments.var, moments.expressed, moments.n_cells)
    ]


def refuse(*_):
    raise AssertionError("the block was normalised first")


@st.composite
def counts(draw, min_rows=0):
    """Counts, mostly zero, of every size that is looked up or not; empty rows."""
    dtype, index = draw(st.sampled_from(PAIRS))
    n, g = draw(st.integers(min_rows, 13)), draw(st.integers(1, 11))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.poisson(draw(st.sampled_from([0.1, 1.0, 30.0])), (n, g)).astype(dtype)
    x[rng.random((n, g)) < 0.1] = draw(st.sampled_from([1, 31, 32, 33, 255]))
    x[rng.random(n) < 0.3] = 0
    block = csr(x, index, draw(st.sampled_from(["int32", "int64"])))
    if block.nnz and draw(st.booleans()):  # an explicit zero, as files have them
        block.data[0] = 0
        x = block.astype(dtype).toarray()
    return x, block


@st.composite
def scales(draw, n):
    """One over the size factors, with cells left out."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    out = 10.0 ** rng.uniform(-2, 2, n)
    out[rng.random(n) < draw(st.sampled_from([0.0, 0.3, 1.0]))] = np.nan
    return out


def values_of(x, scale, log):
    """Normalised values as normalize_total and log1p make them, float32 [n, n_genes]."""
    v = normalize_cpu.scale_rows(np.asarray(x), scale)
    return normalize_cpu.log1p(v) if log else v


# --- moments ----------------------------------------------------------------------------------


@given(pair=counts(), log=st.booleans(), grouped=st.booleans(), data=st.data())
@few
def test_moments_are_those_of_stored_values(pair, log, grouped, data):
    x, block = pair
    scale = data.draw(scales(len(x)))
    codes = np.arange(len(x)) % 3 - 1 if grouped else np.zeros(len(x), np.int64)
    before = block.data.copy()
    got = normalized_moments(block, scale, codes if grouped else None, log=log)
    kept = np.where(np.isnan(scale), -1, codes)
    expected = moments_cpu.moments(values_of(x, np.nan_to_num(scale), log), kept)
    if got.groups.size > expected.groups.size:  # no rows at all: group 0 without cells
        assert len(x) == 0
        return
    assert bits(got) == bits(expected)
    assert got.groups.tolist() == expected.groups.tolist()
    assert bits(normalized_moments(x, scale, codes if grouped else None, log=log)) == bits(got)
    np.testing.assert_array_equal(block.data, before)


def exact(values):
    """Sum and sum of squares without rounding, per gene."""
    for column in values.T:
        column = [Fraction(float(v)) for v in column if v]
        yield sum(column, Fraction(0)), sum((v * v for v in column), Fraction(0))


@pytest.mark.parametrize("log, expm1", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("spread", [0.0, 2.0, 3.3])
def test_sums_are_exact(monkeypatch, spread, log, expm1):
    """Values that differ by up to a million, in one go or (the widest) in several."""
    monkeypatch.setattr(count_moments_cpu, "scale_rows", refuse)
    rng = np.random.default_rng(0)
    x = np.minimum(rng.geometric(0.01, (700, 9)), 2000).astype(np.uint16)
    x[rng.random(x.shape) < 0.5] = 0
    scale = 10.0 ** rng.uniform(-spread / 2, spread / 2, 700)
    values = values_of(x, scale, log)
    if expm1:
        values = np.expm1(values)

    def transform(values):
        values = normalize_cpu.log1p(values) if log else values
        return np.expm1(values) if expm1 else values

    rows = count_moments_cpu._exact_rows(csr(x).data, scale, 700, transform)[0]
    assert (rows < 700) == (spread == 3.3 and (expm1 or not log))
    got = normalized_moments(csr(x), scale, log=log, expm1=expm1).sums[0]
    for gene, (total, squares) in enumerate(exact(values)):
        assert Fraction(got[gene, 0]) + Fraction(got[gene, 1]) == total
        assert Fraction(got[gene, 2]) + Fraction(got[gene, 3]) == squares


@given(seed=st.integers(0, 2**32 - 1), log=st.booleans(), data=st.data())
@few
def test_moments_do_not_depend_on_the_blocks(seed, log, data):
    rng = np.random.default_rng(seed)
    x = np.minimum(rng.geometric(0.05, (40, 5)), 250).astype(np.uint8)
    scale = 10.0 ** rng.uniform(-3, 3, 40)
    order = np.array(data.draw(st.permutations(range(40))))
    cuts = sorted(data.draw(st.sets(st.integers(1, 39), max_size=4)))
    whole = normalized_moments(csr(x), scale, log=log)
    parts = zip(np.split(x[order], cuts), np.split(scale[order], cuts), strict=True)
    merged = moments_cpu.merge_in_place([normalized_moments(csr(a), b, log=log) for a, b in parts])
    assert bits(merged) == bits(whole)


@pytest.mark.parametrize(
    "data, scale",
    [
        ([1.5, 2.0], [1.0, 1.0]),  # not whole
        ([-1.0, 2.0], [1.0, 1.0]),
        ([1.0, 2.0**31], [1e-9, 1e9]),  # too different in size
        ([1.0, 2.0], [1e-46, 1.0]),  # vanishes in float32
        ([1.0, 2.0], [1e38, 3e38]),  # overflows in float32
        ([1.0, np.nan], [1.0, 1.0]),
        ([1.0, np.inf], [1.0, 1.0]),
        ([1.0, 2.0**31 - 2**7], [1e-3, 1.0]),  # the last that is checked, and the next
        ([1.0, 2.0**32], [1.0, 1.0]),
    ],
)
def test_other_values_take_the_way_over_stored_ones(data, scale):
    x = np.diag(np.array(data, np.float32))
    scale = np.array(scale)
    rows, *_ = count_moments_cpu._exact_rows(csr(x).data, scale, 1000, lambda values: values)
    assert rows < 1000
    with np.errstate(over="ignore"):
        expected = moments_cpu.moments(values_of(x, scale, log=False))
        got = normalized_moments(csr(x), scale)
    assert bits(got) == bits(expected)


def test_float64_counts_keep_their_precision():
    x = np.array([[1.0, 0.0], [3.0, 1.0], [7.0, 0.0]])
    scale = np.array([0.1, 0.2, 1 / 3])
    got = normalized_moments(csr(x), scale)
    np.testing.assert_allclose(got.mean[0], (x * scale[:, None]).mean(axis=0), rtol=1e-16)


def test_genes_with_the_same_values_tie():
    rng = np.random.default_rng(3)
    scale = rng.choice([0.3, 0.7, 1.9], 300)
    x = np.zeros((300, 2), np.uint8)
    for s in np.unique(scale):
        rows = np.flatnonzero(scale == s)
        values = rng.integers(0, 60, rows.size)
        x[rows, 0], x[rows, 1] = values, rng.permutation(values)
    got = normalized_moments(csr(x), scale, log=True)
    assert got.mean[0, 0] == got.mean[0, 1]
    assert got.var[0, 0] == got.var[0, 1]


def test_a_constant_gene_has_variance_zero():
    x = np.full((5000, 1), 3, np.uint8)
    got = normalized_moments(csr(x), np.full(5000, 0.1))
    assert got.var.tolist() == [[0.0]]
    assert got.mean[0, 0] == np.float32(3 * 0.1)


def test_moments_refuse_scales_of_other_cells():
    with pytest.raises(ValueError, match="2 scales for 3 cells"):
        normalized_moments(csr(np.ones((3, 2), np.uint8)), np.ones(2))


# --- cut --------------------------------------------------------------------------------------


@given(pair=counts(), data=st.data())
@few
def test_cut_has_the_bits_of_one_step_after_another(pair, data):
    x, block = pair
    scale = data.draw(scales(len(x)))
    genes = data.draw(st.lists(st.integers(0, x.shape[1] - 1), unique=True))
    place = new_column_of_gene(genes, x.shape[1])
    kept = ~np.isnan(scale)
    selected = select_cpu.select_genes(select_cpu.select_rows(block, kept), genes)
    expected = normalize_cpu.log1p(normalize_cpu.scale_rows(selected, scale[kept]))
    before = block.data.copy()
    got = select_and_log_normalize(block, scale, place)
    assert type(got) is type(block)
    assert got.shape == (kept.sum(), len(genes))
    assert got.data.dtype == np.float32
    assert got.indices.dtype == got.indptr.dtype == np.int32
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))
    dense = select_and_log_normalize(x, scale, place)
    np.testing.assert_array_equal(dense, got.toarray())
    assert dense.dtype == np.float32
    np.testing.assert_array_equal(block.data, before)


def test_cut_of_float64_keeps_its_precision():
    x = np.array([[1.0, 0.0, 2.0], [3.0, 1.0, 0.0]])
    got = select_and_log_normalize(csr(x), np.array([0.1, np.nan]), new_column_of_gene([2, 0], 3))
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got.indices, [0, 1])
    np.testing.assert_allclose(got.toarray(), np.log1p([[0.2, 0.1]]), rtol=3e-16)


def test_cut_keeps_the_kind_and_widens_only_where_it_must(monkeypatch):
    x = sp.csr_array(np.eye(3, dtype=np.uint8))
    place = new_column_of_gene([1], 3)
    assert type(select_and_log_normalize(x, np.ones(3), place)) is sp.csr_array
    monkeypatch.setattr(select_cpu, "_INT32", 2)
    wide = select_and_log_normalize(x, np.ones(3), place)
    assert wide.indices.dtype == wide.indptr.dtype == np.int64


def test_cut_refuses_what_does_not_fit():
    x = csr(np.ones((3, 2), np.uint8))
    for scale, place in ((np.ones(2), np.zeros(2, int)), (np.ones(3), np.zeros(3, int))):
        with pytest.raises(ValueError, match=r"for a block of \(3, 2\)"):
            select_and_log_normalize(x, scale, place)


def test_kernels_let_other_threads_run_and_are_cached():
    for module in (count_moments_cpu, normalize_cpu):
        compiled = [f for f in vars(module).values() if hasattr(f, "py_func")]
        assert compiled
        for function in compiled:
            assert function.targetoptions["nogil"], function
            assert type(function._cache).__name__ != "NullCache", function


@pytest.mark.parametrize("data, index", PAIRS)
def test_genes_among_more_genes(data, index):
    rng = np.random.default_rng(5)
    dense = rng.poisson(0.5, (9, 20)).astype(data)
    columns = np.sort(rng.choice(70_000, 20, replace=False))
    found = select_cpu.spread_genes(csr(dense, index), columns, 70_000)
    assert found.dtype == data
    assert found.has_sorted_indices
    expected = np.zeros((9, 70_000), data)
    expected[:, columns] = dense
    np.testing.assert_array_equal(found.toarray(), expected)
