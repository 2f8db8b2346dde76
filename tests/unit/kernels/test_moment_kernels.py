"""Exact moments of values and of normalised counts: bits, errors of sums, what is refused."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from scatlas import blocks
from scatlas.kernels.counts import normalize_cpu
from scatlas.kernels.moments import count_moments_cpu, exact_sums_cpu, moments_cpu
from scatlas.kernels.moments.count_moments_cpu import normalized_moments

few = settings(max_examples=25)


def csr(x, index="int32", indptr="int64"):
    """CSR with index arrays of exactly these widths."""
    m = sp.csr_matrix(x)
    return blocks.csr(m.data, m.indices.astype(index), m.indptr.astype(indptr), x.shape[1])


def reference(x):
    """Mean and variance (n - 1) by two passes in extended precision."""
    x = x.astype(np.longdouble)
    mean = x.mean(axis=0)
    variance = ((x - mean) ** 2).sum(axis=0) / max(1, x.shape[0] - 1)
    return mean.astype(float), variance.astype(float)


def bits(moments):
    parts = (moments.groups, moments.n_cells, moments.mean, moments.var, moments.expressed)
    return [part.tobytes() for part in parts]


def values_of(x, scale, log):
    """Normalised values as normalize_total and log1p make them, float32 [n, n_genes]."""
    v = normalize_cpu.scale_rows(np.asarray(x), scale)
    return normalize_cpu.log1p(v) if log else v


@st.composite
def counts(draw):
    """Counts, mostly zero, of every size that is looked up or not; empty rows, stored zeros."""
    # Each pair of data and indices is one more variant to compile.
    pairs = [("uint8", "uint16"), ("uint16", "int32"), ("float32", "int64")]
    dtype, index = draw(st.sampled_from(pairs))
    shape = draw(st.integers(1, 13)), draw(st.integers(1, 11))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.poisson(draw(st.sampled_from([0.1, 1.0, 30.0])), shape).astype(dtype)
    x[rng.random(shape) < 0.1] = draw(st.sampled_from([1, 31, 32, 33, 255]))
    x[rng.random(len(x)) < 0.3] = 0
    block = csr(x, index, draw(st.sampled_from(["int32", "int64"])))
    block.data[: draw(st.integers(0, 1))] = 0
    return block.astype(dtype).toarray(), block


@given(pair=counts(), log=st.booleans(), grouped=st.booleans(), out=st.sampled_from([0, 0.3, 1]))
@few
def test_moments_of_counts_have_the_bits_of_normalised_values(pair, log, grouped, out):
    x, block = pair
    rng = np.random.default_rng(0)
    scale = 10.0 ** rng.uniform(-2, 2, len(x))
    scale[rng.random(len(x)) < out] = np.nan
    codes = np.arange(len(x)) % 3 - 1 if grouped else None
    before = block.data.copy()
    kept = np.where(np.isnan(scale), -1, 0 if codes is None else codes)
    expected = moments_cpu.moments(values_of(x, np.nan_to_num(scale), log), kept)
    for counts in (block, x):
        assert bits(normalized_moments(counts, scale, codes, log=log)) == bits(expected)
    np.testing.assert_array_equal(block.data, before)


def exact(values):
    """Sum and sum of squares without rounding, per gene."""
    for column in values.T:
        column = [Fraction(float(v)) for v in column if v]
        yield sum(column, Fraction(0)), sum((v * v for v in column), Fraction(0))


@pytest.mark.parametrize("log, expm1", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("spread", [0.0, 2.0, 3.3])
def test_sums_of_counts_are_exact(monkeypatch, spread, log, expm1):
    """Values that differ by up to a million, in one go or (the widest) in several."""
    monkeypatch.setattr(count_moments_cpu, "scale_rows", None)  # nothing is normalised first
    rng = np.random.default_rng(0)
    x = np.minimum(rng.geometric(0.01, (700, 9)), 2000).astype(np.uint16)
    x[rng.random(x.shape) < 0.5] = 0
    scale = 10.0 ** rng.uniform(-spread / 2, spread / 2, 700)

    def transform(values):
        values = normalize_cpu.log1p(values) if log else values
        return np.expm1(values) if expm1 else values

    rows = count_moments_cpu._exact_rows(csr(x).data, scale, 700, transform)[0]
    assert (rows < 700) == (spread == 3.3 and (expm1 or not log))
    got = normalized_moments(csr(x), scale, log=log, expm1=expm1).sums[0]
    values = transform(normalize_cpu.scale_rows(x, scale))
    for gene, (total, squares) in enumerate(exact(values)):
        assert Fraction(got[gene, 0]) + Fraction(got[gene, 1]) == total
        assert Fraction(got[gene, 2]) + Fraction(got[gene, 3]) == squares


def of_values(x, scale, codes):
    return moments_cpu.moments(csr(values_of(x, scale, log=False)), codes)


def of_dense(x, scale, codes):
    return moments_cpu.moments(values_of(x.astype(np.float64), scale, log=True), codes)


def of_counts(x, scale, codes):
    return normalized_moments(csr(x), scale, codes)


def of_logarithms(x, scale, codes):
    return normalized_moments(csr(x), scale, codes, log=True)


@pytest.mark.parametrize("merge", [moments_cpu.merge, moments_cpu.merge_in_place])
@pytest.mark.parametrize("kind", [of_values, of_dense, of_counts, of_logarithms])
@given(seed=st.integers(0, 2**32 - 1), grouped=st.booleans(), data=st.data())
@few
def test_moments_do_not_depend_on_the_blocks(kind, merge, seed, grouped, data):
    """Cells in any order; groups that some blocks lack."""
    rng = np.random.default_rng(seed)
    x = np.minimum(rng.geometric(0.05, (40, 5)), 250).astype(np.uint8)
    scale, codes = 10.0 ** rng.uniform(-3, 3, 40), rng.integers(-1, 3, 40) * grouped
    order = np.array(data.draw(st.permutations(range(40))))
    cuts = sorted(data.draw(st.sets(st.integers(1, 39), max_size=4)))
    parts = zip(*(np.split(part[order], cuts) for part in (x, scale, codes)), strict=True)
    assert bits(merge([kind(*part) for part in parts])) == bits(kind(x, scale, codes))


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


def test_moments_refuse_scales_of_other_cells():
    with pytest.raises(ValueError, match="2 scales for 3 cells"):
        normalized_moments(csr(np.ones((3, 2), np.uint8)), np.ones(2))


@pytest.mark.parametrize("expm1", [False, True])
def test_sums_without_errors_have_the_bits_of_pairs(monkeypatch, expm1):
    rng = np.random.default_rng(0)
    x = rng.gamma(1, 1, (300, 40)).astype(np.float32) * (rng.random((300, 40)) < 0.3)
    x[:, 3], x[7] = -x[:, 3], 0
    block, codes = csr(x), rng.integers(-1, 3, 300)
    block.data[5] = 0
    assert exact_sums_cpu.grid_of(block.data, 300) > 0
    exact = moments_cpu.moments(block, codes, expm1=expm1)
    monkeypatch.setattr(moments_cpu, "grid_of", lambda *_: 0.0)
    pairs = moments_cpu.moments(block, codes, expm1=expm1)
    np.testing.assert_array_equal(exact.sums.view(np.int64), pairs.sums.view(np.int64))
    np.testing.assert_array_equal(exact.expressed, pairs.expressed)


def test_sums_that_would_round_or_are_not_finite_carry_errors():
    for values in ([1e-30, 1.0], [1.0, np.inf], [np.nan, 0], [-np.inf, 0]):
        assert exact_sums_cpu.grid_of(np.array(values, np.float32), 2) == 0
    assert exact_sums_cpu.grid_of(np.zeros(3, np.float32), 2) > 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_mean_small_spread_stays_at_1e9(dtype):
    x = (1e6 + np.random.default_rng(0).normal(size=(3000, 3))).astype(dtype)
    mean, var = reference(x)
    got = moments_cpu.merge([moments_cpu.moments(part) for part in np.array_split(x, 7)])
    np.testing.assert_allclose(got.mean[0], mean, rtol=1e-15)
    np.testing.assert_allclose(got.var[0], var, rtol=1e-9)
    naive = (x.astype(float) ** 2).mean(axis=0) - x.astype(float).mean(axis=0) ** 2
    assert (np.abs(naive / var - 1) > 1e-6).any(), "the data do not show the loss"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [2, 3, 1000, 100_000])
def test_constant_gene_has_variance_zero(n, dtype):
    x = np.full((n, 2), [0.1, 1e5 / 3], dtype=dtype)
    got = moments_cpu.merge([moments_cpu.moments(part) for part in np.array_split(x, 3)])
    assert got.var.tolist() == [[0.0, 0.0]]


def test_variance_is_not_taken_for_rounding():
    # The least spread that float32 can hold about a mean: one unit in the last place, in one cell.
    x = np.full((100_000, 1), 1.0, dtype=np.float32)
    x[7] = np.nextafter(np.float32(1), np.float32(2))
    np.testing.assert_allclose(moments_cpu.moments(x).var[0], reference(x)[1], rtol=1e-6)
