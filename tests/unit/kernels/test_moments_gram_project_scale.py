"""Moments, Gram, projection and scaling kernels against plain float64 (or wider) references."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from scatlas import blocks
from scatlas.compute.threads import blas_on_one_thread
from scatlas.kernels.linalg import gram_cpu, project_cpu, scale_cpu
from scatlas.kernels.moments import exact_sums_cpu, moments_cpu

# Types of indices, offsets and values: each with one of the others, because each combination
# compiles for seconds. Kernels get int64 offsets of either type.
TYPES = [
    ("uint16", "int32", "uint16"),
    ("int32", "int64", "float32"),
    ("int64", "int32", "float64"),
]
with_types = pytest.mark.parametrize(("index", "indptr", "dtype"), TYPES)
few = settings(max_examples=25, deadline=None, derandomize=True)


@st.composite
def matrices(draw, min_rows=0, dtype=None):
    """Dense matrix with empty rows and odd shapes, in a dtype that plates come in."""
    n = draw(st.integers(min_rows, 13))
    g = draw(st.integers(1, 11))
    dtype = dtype or draw(st.sampled_from(["uint16", "float32", "float64"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.poisson(draw(st.sampled_from([0.1, 1.0, 30.0])), (n, g)).astype(dtype)
    if dtype != "uint16" and draw(st.booleans()):
        x *= rng.normal(size=(n, g)).astype(dtype)
    x[rng.random(n) < 0.3] = 0
    return x


def csr(x, index="int32", indptr="int32"):
    """CSR with index arrays of exactly these widths."""
    m = sp.csr_matrix(x)
    return blocks.csr(m.data, m.indices.astype(index), m.indptr.astype(indptr), x.shape[1])


def reference(x):
    """Mean and variance (n - 1; 0 for one cell) by two passes in extended precision."""
    x = x.astype(np.longdouble)
    mean = x.mean(axis=0)
    return mean, ((x - mean) ** 2).sum(axis=0) / max(1, x.shape[0] - 1)


def bits(moments):
    return moments.mean.tobytes(), moments.var.tobytes(), moments.expressed.tobytes()


# --- moments ----------------------------------------------------------------------------------


@with_types
@given(data=st.data())
@few
def test_moments_equal_reference(index, indptr, dtype, data):
    x = data.draw(matrices(min_rows=1, dtype=dtype))
    got = moments_cpu.moments(csr(x, index, indptr))
    mean, var = reference(x)
    # One rounding of the mean; the variance's only loss is the division.
    scale = np.abs(x.astype(float)).max() or 1.0
    np.testing.assert_allclose(got.mean[0], mean.astype(float), rtol=4e-16, atol=1e-18 * scale)
    np.testing.assert_allclose(got.var[0], var.astype(float), rtol=1e-14, atol=1e-26 * scale**2)
    np.testing.assert_array_equal(got.expressed[0], (x > 0).sum(axis=0))
    assert got.n_cells.tolist() == [x.shape[0]]
    assert bits(moments_cpu.moments(x)) == bits(got), "dense and CSR differ"


@given(x=matrices(min_rows=1), log_base=st.sampled_from([None, np.log(2.0), np.log(10.0)]))
@few
def test_expm1_moments_equal_reference(x, log_base):
    x = x % 20 if x.dtype == "uint16" else np.log1p(np.abs(x))
    wide = x if x.dtype.kind == "f" else x.astype(float)
    scaled = wide if log_base is None else (wide * log_base).astype(wide.dtype)
    expected = np.expm1(scaled)
    for block in (x, csr(x)):
        before = x.copy()
        got = moments_cpu.moments(block, expm1=True, log_base=log_base)
        mean, var = reference(expected)
        # np.expm1 may differ in the last bit between vector lanes of CSR and dense arrays.
        rtol = 1e-6 if wide.dtype == np.float32 else 1e-13
        np.testing.assert_allclose(got.mean[0], mean.astype(float), rtol=rtol)
        top = float(np.max(expected)) ** 2
        np.testing.assert_allclose(got.var[0], var.astype(float), rtol=rtol, atol=1e-13 * top)
        np.testing.assert_array_equal(x, before)


def test_zero_rows_give_no_cells():
    for block in (np.zeros((0, 4), np.float32), csr(np.zeros((0, 4), np.float32))):
        got = moments_cpu.moments(block)
        assert got.n_cells.tolist() == [0]
        assert not got.sums.any()
        n, sums, gram = gram_of(gram_cpu, block)
        assert (n, sums.tolist(), gram.any()) == (0, [0.0] * 4, False)
        assert project_cpu.project(block, np.ones((4, 2)), np.zeros(2)).shape == (0, 2)


@given(x=matrices(min_rows=2), data=st.data())
@few
def test_moments_do_not_depend_on_the_blocks(x, data):
    codes = np.array(data.draw(st.lists(st.integers(-1, 2), min_size=len(x), max_size=len(x))))
    order = np.array(data.draw(st.permutations(range(len(x)))))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(x) - 1), max_size=4)))
    whole = moments_cpu.moments(csr(x), codes)
    x, codes = x[order], codes[order]
    parts = [
        moments_cpu.moments(csr(part), code)
        for part, code in zip(np.split(x, cuts), np.split(codes, cuts), strict=True)
    ]
    merged = moments_cpu.merge(parts)
    assert merged.groups.tolist() == sorted(set(codes[codes >= 0].tolist()))
    assert merged.groups.tolist() == whole.groups.tolist()
    assert merged.n_cells.tolist() == [int((codes == c).sum()) for c in merged.groups]
    assert bits(merged) == bits(whole)
    for at, code in enumerate(merged.groups):
        mean, var = reference(x[codes == code])
        np.testing.assert_allclose(merged.mean[at], mean.astype(float), rtol=1e-15, atol=1e-15)
        np.testing.assert_allclose(merged.var[at], var.astype(float), rtol=1e-13, atol=1e-20)


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
    parts = [moments_cpu.moments(part) for part in np.array_split(x, 7)]
    mean, var = reference(x)
    got = moments_cpu.merge(parts)
    np.testing.assert_allclose(got.mean[0], mean.astype(float), rtol=1e-15)
    np.testing.assert_allclose(got.var[0], var.astype(float), rtol=1e-9)
    naive = (x.astype(float) ** 2).mean(axis=0) - x.astype(float).mean(axis=0) ** 2
    assert (np.abs(naive / var.astype(float) - 1) > 1e-6).any(), "the data do not show the loss"


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
    _, var = reference(x)
    got = moments_cpu.moments(x).var[0]
    np.testing.assert_allclose(got, var.astype(float), rtol=1e-6)


@given(seed=st.integers(0, 2**32 - 1), cut=st.integers(1, 39))
@few
def test_genes_with_the_same_values_tie(seed, cut):
    rng = np.random.default_rng(seed)
    values = rng.gamma(1.0, size=9).astype(np.float32)
    x = np.zeros((40, 2), dtype=np.float32)
    for gene in range(2):
        x[rng.choice(40, 9, replace=False), gene] = rng.permutation(values)
    got = moments_cpu.merge([moments_cpu.moments(csr(x[:cut])), moments_cpu.moments(csr(x[cut:]))])
    assert got.mean[0, 0] == got.mean[0, 1]
    assert got.var[0, 0] == got.var[0, 1]


def test_nan_and_infinity_are_not_hidden():
    x = np.array([[np.nan, np.inf, 1.0], [1.0, 1.0, 2.0]])
    got = moments_cpu.moments(x)
    assert np.isfinite(got.mean[0]).tolist() == [False, False, True]
    assert np.isfinite(got.var[0]).tolist() == [False, False, True]


# --- Gram -------------------------------------------------------------------------------------


@pytest.mark.parametrize("pair_cost", [0.0, 1e9], ids=["pairs", "blas"])
@with_types
@given(data=st.data())
@few
def test_gram_equals_reference(pair_cost, index, indptr, dtype, data):
    x = data.draw(matrices(dtype=dtype))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gram_cpu, "_PAIR_COST", pair_cost)
        got = gram_of(gram_cpu, csr(x, index, indptr))
    check_gram(got, x)
    check_gram(gram_of(gram_cpu, x), x)
    check_gram(gram_of(gram_cpu, np.asfortranarray(x)), x)


def gram_of(kernels, x):
    """Number of cells, sums per gene and both triangles of the products of a block."""
    sums, products = (np.zeros(shape) for shape in (x.shape[1], (x.shape[1], x.shape[1])))
    kernels.add_block(x, sums, products)
    kernels.mirror(products)
    return x.shape[0], sums, products


def check_gram(got, x):
    n, sums, gram = got
    wide = x.astype(float)
    assert n == x.shape[0]
    assert gram.dtype == sums.dtype == np.float64
    np.testing.assert_array_equal(gram, gram.T)
    if (wide == np.round(wide)).all():  # sums of integers are exact
        np.testing.assert_array_equal(sums, wide.sum(axis=0))
        np.testing.assert_array_equal(gram, wide.T @ wide)
    else:
        atol = 1e-15 * (np.abs(wide).max() ** 2) * len(x)
        np.testing.assert_allclose(sums, wide.sum(axis=0), rtol=1e-14, atol=atol)
        np.testing.assert_allclose(gram, wide.T @ wide, rtol=1e-14, atol=atol)


def test_gram_of_unsorted_and_duplicated_indices():
    data = np.array([1, 2, 3, 4, 5], dtype=np.float32)
    x = blocks.csr(data, np.array([2, 0, 1, 1, 3]), np.array([0, 2, 5]), 60)
    dense = np.zeros((2, 60))
    np.add.at(dense, ([0, 0, 1, 1, 1], [2, 0, 1, 1, 3]), data)
    check_gram(gram_of(gram_cpu, x), dense)


def test_gram_in_several_dense_steps_and_tiles(monkeypatch):
    monkeypatch.setattr(gram_cpu, "_DENSE_BYTES", 8 * 210)
    x = np.random.default_rng(0).poisson(1.0, (200, 210)).astype(np.uint8)
    check_gram(gram_of(gram_cpu, csr(x)), x)
    check_gram(gram_of(gram_cpu, x), x)


def test_gram_chooses_by_density(monkeypatch):
    used = set()
    monkeypatch.setattr(gram_cpu, "_add_pairs", lambda *_: used.add("pairs"))
    monkeypatch.setattr(gram_cpu, "_add_dense", lambda *_: used.add("blas"))
    rng = np.random.default_rng(0)
    for density, way in ((0.01, "pairs"), (0.5, "blas")):
        used.clear()
        gram_of(gram_cpu, csr((rng.random((20, 300)) < density).astype(np.float32)))
        assert used == {way}


@pytest.mark.parametrize("density", [0.02, 0.6], ids=["pairs", "blas"])
def test_gram_has_the_same_bits_for_any_number_of_threads(monkeypatch, density):
    """Blocks, parts within them and genes within these are many, and all are summed in order."""
    monkeypatch.setattr(gram_cpu, "_PART_VALUES", 100)
    monkeypatch.setattr(gram_cpu, "_GENES_SQUARED_PER_VALUE", 10**9)
    monkeypatch.setattr(gram_cpu, "_DENSE_BYTES", 8 * 410 * 70)
    rng = np.random.default_rng(0)
    x = rng.lognormal(size=(500, 410)).astype(np.float32)
    x[rng.random(x.shape) > density] = 0
    found = []
    for threads in (1, 2, 7):
        sums, upper = np.zeros(410), np.zeros((410, 410))
        with blas_on_one_thread(), ThreadPoolExecutor(threads) as pool:
            for block in (x[:200], x[200:201], x[201:]):
                gram_cpu.add_block(csr(block), sums, upper, threads=threads, run=pool.map)
        gram_cpu.mirror(upper)
        found.append((sums.tobytes(), upper.tobytes()))
    assert found[1] == found[0]
    assert found[2] == found[0]
    check_gram((500, sums, upper), x)
    if density < 0.1:  # every entry is one sum, row after row
        total = np.zeros((410, 410))
        for row in x.astype(float):
            total += np.outer(row, row)
        np.testing.assert_array_equal(upper, total)


def test_gram_refuses_genes_that_it_cannot_number():
    with pytest.raises(ValueError, match="65537 genes"):
        gram_cpu.add_block(sp.csr_matrix((2, 65537)), np.zeros(0), np.zeros((0, 0)))


# --- projection and scaling -------------------------------------------------------------------


@with_types
@given(data=st.data(), k=st.integers(1, 5))
@few
def test_project_equals_reference(index, indptr, dtype, data, k):
    x = data.draw(matrices(dtype=dtype))
    rng = np.random.default_rng(0)
    components, offset = rng.normal(size=(x.shape[1], k)), rng.normal(size=k)
    expected = x.astype(float) @ components - offset
    size = 1 + np.abs(x.astype(float)) @ np.abs(components)
    for dtype, rtol in (("float64", 1e-14), ("float32", 1.2e-7)):
        got = project_cpu.project(csr(x, index, indptr), components, offset, dtype=dtype)
        assert got.dtype == dtype
        assert (np.abs(got - expected) <= rtol * size).all()
        dense = project_cpu.project(x, components, offset, dtype=dtype)
        np.testing.assert_array_equal(got, dense)


@pytest.mark.parametrize("k", [1, 64, 130])
def test_project_sums_in_the_order_of_the_genes(monkeypatch, k):
    rng = np.random.default_rng(0)
    x = rng.lognormal(size=(40, 30)).astype(np.float32)
    x[rng.random(x.shape) < 0.6] = 0
    components, offset = rng.normal(size=(30, k)), rng.normal(size=k)
    total = np.zeros((40, k))
    for gene in range(30):
        total += x[:, gene : gene + 1].astype(float) * components[gene]
    monkeypatch.setattr(project_cpu, "_DENSE_VALUES", 30 * 7)
    for block in (csr(x), x):
        got = project_cpu.project(block, components, offset, dtype=np.float64)
        np.testing.assert_array_equal(got, total - offset)
        got = project_cpu.project(block, components, offset)
        np.testing.assert_array_equal(got, (total - offset).astype(np.float32))


@with_types
@given(data=st.data(), max_value=st.sampled_from([None, 0.7]), masked=st.booleans())
@few
def test_scale_equals_reference(index, indptr, dtype, data, max_value, masked):
    x = data.draw(matrices(dtype=dtype))
    rng = np.random.default_rng(0)
    mean, sd = rng.normal(size=x.shape[1]), rng.gamma(2.0, size=x.shape[1])
    rows = rng.random(len(x)) < 0.5 if masked else None
    dtype = np.float32 if x.dtype == np.float32 else np.float64
    before = x.copy()
    block = csr(x, index, indptr)
    for centre in (None, mean):
        expected = (x.astype(float) - (0 if centre is None else centre)) / sd
        if max_value is not None:
            expected = np.minimum(expected, max_value)
            if centre is not None:
                expected = np.maximum(expected, -max_value)
        if masked:
            expected[~rows] = x[~rows]
        expected = expected.astype(dtype)
        got = scale_cpu.scale(block, centre, sd, max_value, rows, dtype=dtype)
        assert sp.issparse(got) == (centre is None)
        assert got.dtype == dtype
        dense = scale_cpu.scale(x, centre, sd, max_value, rows, dtype=dtype)
        np.testing.assert_array_equal(dense, expected)
        np.testing.assert_array_equal(got.toarray() if sp.issparse(got) else got, expected)
        if sp.issparse(got):
            assert not np.shares_memory(got.indices, block.indices)
            assert not np.shares_memory(got.indptr, block.indptr)
    np.testing.assert_array_equal(x, before)


@with_types
@given(data=st.data(), bounds=st.sampled_from([(-np.inf, np.inf), (-np.inf, 0.7), (-0.7, 0.7)]))
@few
def test_shift_equals_reference(index, indptr, dtype, data, bounds):
    x = data.draw(matrices(dtype=dtype))
    rng = np.random.default_rng(0)
    mean, sd = rng.normal(size=x.shape[1]), rng.gamma(2.0, size=x.shape[1])
    zeros = np.clip(-mean / sd, *bounds)
    block = csr(x, index, indptr)
    before = block.data.copy()
    got = scale_cpu.scale_stored_values(block, mean, sd, zeros, bounds)
    expected = np.clip((x.astype(float) - mean) / sd, *bounds) - zeros
    stored = x != 0
    np.testing.assert_array_equal(got.toarray()[stored], expected[stored].astype(np.float32))
    assert got.dtype == np.float32
    assert got.nnz == block.nnz
    np.testing.assert_array_equal(block.data, before)
    assert not np.shares_memory(got.indices, block.indices)
