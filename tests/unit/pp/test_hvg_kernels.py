"""Kernels of the flavors of counts: exact sums of any storage and blocks, and what counts are."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from scatlas import blocks
from scatlas.kernels.counts.qc_cpu import holds_counts
from scatlas.kernels.moments import moments_cpu
from scatlas.kernels.moments.count_moments_cpu import gene_sum_pairs, moments_of_counts
from scatlas.kernels.moments.moments_cpu import clipped_squares, moments_above
from scatlas.kernels.moments.pearson_cpu import PearsonModel, sums_of_nonzeros

WIDTHS = [("uint16", "int64"), ("int32", "int32"), ("int64", "int64")]
few = settings(max_examples=25, deadline=None, derandomize=True)


@st.composite
def matrices(draw, min_rows=0, dtypes=("uint8", "uint16", "int64", "float32", "float64")):
    """Dense counts (reals for some floats) with empty rows and some that are far above others."""
    n, g = draw(st.integers(min_rows, 13)), draw(st.integers(1, 11))
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.poisson(draw(st.sampled_from([0.1, 1.0, 30.0])), (n, g))
    x += rng.poisson(0.05, (n, g)) * (100 if dtype == np.uint8 else 20_000)
    x = x.clip(0, 255 if dtype == np.uint8 else None).astype(dtype)
    if dtype.kind == "f" and draw(st.booleans()):
        x *= rng.gamma(1.0, size=(n, g)).astype(dtype)
    x[rng.random(n) < 0.3] = 0
    return x


@st.composite
def bounded(draw, min_rows=0, **options):
    """A matrix, groups of its rows (-1: none), and bounds, some of them values of the matrix."""
    x = draw(matrices(min_rows, **options))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    codes = rng.integers(-1, 3, len(x))
    bounds = rng.gamma(1.0, 3.0, (3, x.shape[1]))
    if len(x):
        whole = rng.random(bounds.shape) < 0.3
        picked = x[rng.integers(0, len(x), bounds.shape), np.arange(x.shape[1])]
        bounds[whole] = picked[whole]
    bounds[rng.random(bounds.shape) < 0.1] = np.inf
    bounds[rng.random(bounds.shape) < 0.1] = np.nan
    return x, codes, bounds


def csr(x, index="int32", indptr="int32"):
    """CSR with index arrays of exactly these widths."""
    m = sp.csr_matrix(x)
    return blocks.csr(m.data, m.indices.astype(index), m.indptr.astype(indptr), x.shape[1])


def bits(moments):
    arrays = moments.groups, moments.n_cells, moments.sums, moments.expressed
    return [array.tobytes() for array in arrays]


def exact_pair(values):
    """A sum as the nearest float64 and the nearest to what that leaves."""
    total = sum(values, Fraction(0))
    return float(total), float(total - Fraction(float(total)))


@pytest.mark.parametrize(("index", "indptr"), WIDTHS)
@given(case=bounded())
@few
def test_values_above_their_bounds_are_summed_exactly(index, indptr, case):
    x, codes, bounds = case
    block = csr(x, index, indptr)
    before = block.data.copy()
    got = moments_above(block, bounds, codes)
    np.testing.assert_array_equal(block.data, before)
    assert bits(moments_above(x, bounds, codes)) == bits(got), "dense and CSR differ"
    assert got.groups.tolist() == sorted(set(codes[codes >= 0].tolist()))
    for at, code in enumerate(got.groups):
        rows = x[codes == code]
        assert got.n_cells[at] == len(rows)
        for gene in range(x.shape[1]):
            column = rows[:, gene]
            above = [Fraction(float(v)) for v in column if float(v) > bounds[code, gene]]
            assert got.expressed[at, gene] == len(above)
            high, low = exact_pair(above)
            squares, squares_low = exact_pair([v * v for v in above])
            if x.dtype.kind != "f" or all(v.denominator == 1 for v in above):
                assert got.sums[at, gene].tolist() == [high, low, squares, squares_low]
            np.testing.assert_allclose(got.sums[at, gene, ::2], [high, squares], rtol=1e-15)


def test_a_huge_count_does_not_drown_the_others():
    """What is left of a gene when its outliers are clipped keeps all of its digits."""
    rng = np.random.default_rng(0)
    x = rng.poisson(2.0, (1000, 3)).astype(np.int64)
    x[[5, 900]] = 2**31 - 1
    moments = moments_cpu.moments(csr(x))
    bounds = np.array([[4.5, 50.0, 1e6]]) + moments.mean
    got = clipped_squares(moments, moments_above(csr(x), bounds), bounds)
    for gene in range(3):
        mean = Fraction(moments.mean[0, gene])
        clipped = [Fraction(min(float(v), bounds[0, gene])) for v in x[:, gene]]
        expected = float(sum((v - mean) ** 2 for v in clipped))
        assert got[0, gene] == pytest.approx(expected, rel=1e-14)


@given(x=matrices(), grouped=st.booleans())
@few
def test_moments_of_counts_have_the_bits_of_moments(x, grouped):
    codes = np.arange(len(x)) % 3 - 1 if grouped else None
    for block in (x, csr(x, "uint16", "int64")):
        assert bits(moments_of_counts(block, codes)) == bits(moments_cpu.moments(block, codes))


@given(x=matrices())
@few
def test_gene_sums_have_the_bits_of_moments(x):
    reals = (x / 7).astype(np.float32)
    for block in (x, reals, reals / 3, np.asfortranarray(reals), csr(x), csr(reals)):
        np.testing.assert_array_equal(
            gene_sum_pairs(block), moments_cpu.moments(block).sums[0, :, :2].T
        )


@pytest.mark.parametrize("large", [2**24, 2**24 + 1, 2**31 - 1, -(2**24), -(2**24) - 1])
@pytest.mark.parametrize("dtype", ["int32", "int64", "float64"])
def test_counts_that_float32_cannot_hold(large, dtype):
    x = np.arange(200 * 3).reshape(200, 3) % 5
    x[7, 1], x[9, 2] = large, large - np.sign(large)
    block = csr(x.astype(dtype))
    assert bits(moments_of_counts(block)) == bits(moments_cpu.moments(block))


@pytest.mark.parametrize("kind", [np.asarray, csr])
def test_what_counts_are(kind):
    x = np.array([[0, 3, 0], [1, 0, 255]])
    for dtype in ("uint8", "int64", "float32", "float64", "bool"):
        assert holds_counts(kind(x.astype(dtype)))
        assert holds_counts(kind(x[:0].astype(dtype)))
    for bad in (0.5, -1.0, np.nan, 1e-30):
        odd = x.astype(np.float64)
        odd[1, 0] = bad
        assert not holds_counts(kind(odd))
    assert not holds_counts(kind(-x))


@pytest.mark.parametrize(("index", "indptr"), WIDTHS)
@given(x=matrices(dtypes=("uint8", "int64", "float32")), theta=st.sampled_from([0.5, np.inf]))
@few
def test_sums_of_pearson_residuals_do_not_depend_on_the_storage(index, indptr, x, theta):
    codes = np.arange(len(x)) % 3 - 1
    totals = x.sum(axis=1, dtype=np.float64)
    genes = np.array([x[codes == code].sum(axis=0, dtype=np.float64) for code in (0, 1)])
    model = PearsonModel(genes, np.maximum(genes.sum(axis=1), 1), np.array([0.7, 30.0]), theta)
    block = csr(x, index, indptr)
    before = block.data.copy()
    of_dense = sums_of_nonzeros(x, totals, model, codes)
    assert bits(sums_of_nonzeros(block, totals, model, codes)) == bits(of_dense)
    np.testing.assert_array_equal(block.data, before)
