"""Kernels of QC, normalisation and selection against plain NumPy and SciPy."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse

from scatlas.kernels.counts import normalize_cpu, qc_cpu, select_cpu

# Every width of data, indices and indptr at least once; each pair of data and indices is one more
# variant to compile.
PAIRS = [("uint8", "uint16"), ("int32", "int32"), ("float32", "int32"), ("float64", "int64")]
INTEGER = {"uint8", "uint16", "int32"}
quick = settings(max_examples=25, deadline=None, derandomize=True)


def widths(x: sparse.spmatrix, indices: str, indptr: str) -> Any:
    """`x` with index arrays of these very types (SciPy's constructors would widen uint16)."""
    block = copy.copy(x)
    block.indices, block.indptr = x.indices.astype(indices), x.indptr.astype(indptr)
    return block


@st.composite
def dense_counts(draw: st.DrawFn, dtype: str, *, signed: bool = False) -> np.ndarray:
    """Matrices of all odd shapes, no row and no column included, most values zero."""
    shape = draw(st.tuples(st.integers(0, 7), st.integers(1, 9)))
    if dtype in INTEGER:
        value = st.integers(-3 if signed and dtype == "int32" else 0, 9)
    else:
        value = st.sampled_from([0.25, 1.0, 2.5, 3.0, 1e-3, 77.0] + [-1.5] * signed)
    zeros = st.just(0)
    return draw(hnp.arrays(np.dtype(dtype), shape, elements=st.one_of(zeros, zeros, value)))


@st.composite
def blocks(draw: st.DrawFn, *, signed: bool = False) -> tuple[Any, np.ndarray]:
    """A block of either kind and the dense matrix it stands for."""
    dtype, indices = draw(st.sampled_from(PAIRS))
    matrix = draw(dense_counts(dtype, signed=signed))
    if draw(st.booleans()):
        return matrix, matrix
    kind = draw(st.sampled_from([sparse.csr_matrix, sparse.csr_array]))
    block = widths(kind(matrix), indices, draw(st.sampled_from(["int32", "int64"])))
    if block.nnz and draw(st.booleans()):  # an explicit zero, as files have them
        k = draw(st.integers(0, block.nnz - 1))
        block.data[k] = 0
        return block, block.copy().astype(block.dtype).toarray()
    return block, matrix


@quick
@given(blocks(), st.data())
def test_qc_partials_of_any_cut_merge_to_the_whole(pair: Any, data: st.DataObject) -> None:
    block, matrix = pair
    cut = data.draw(st.integers(0, matrix.shape[0]))
    masks = np.zeros((1, matrix.shape[1]), bool)
    masks[0, 0] = True
    parts = [
        qc_cpu.qc_block(select_cpu.select_rows(block, np.arange(lo, hi)), masks)
        for lo, hi in ((0, cut), (cut, matrix.shape[0]))
    ]
    merged, whole = qc_cpu.QCSums.merge(parts), qc_cpu.qc_block(block, masks)
    for name in ("totals", "n_genes", "masked", "n_cells"):
        np.testing.assert_array_equal(getattr(merged, name), getattr(whole, name))
    np.testing.assert_allclose(merged.gene_totals, whole.gene_totals, rtol=1e-14)


def test_sums_of_values_that_are_not_finite_are_not_integers() -> None:
    totals = qc_cpu.row_totals(np.array([[np.nan, 1.0], [np.inf, 1.0]], np.float32))
    assert totals.dtype == np.float64
    assert math.isnan(totals[0])
    assert math.isinf(totals[1])
    # Sums past 2^53 are not known to be exact.
    assert qc_cpu.row_totals(np.array([[2.0**53, 4.0]])).dtype == np.float64


@pytest.mark.parametrize("ns", [[], [0], [4], [2, 1]])
def test_top_totals_refuse_impossible_ranks(ns: list[int]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        qc_cpu.top_totals(np.ones((2, 3), np.int32), ns)


@quick
@given(blocks(signed=True))
def test_scale_rows_rounds_once_and_leaves_its_input(pair: tuple[Any, np.ndarray]) -> None:
    block, matrix = pair
    before = block.data.copy() if sparse.issparse(block) else block.copy()
    factors = 1.0 / (3.0 + np.arange(matrix.shape[0]))
    dtype = np.float64 if matrix.dtype == np.float64 else np.float32
    want = (matrix.astype(np.float64) * factors[:, None]).astype(dtype)
    inputs = [block]
    if sparse.issparse(block) and block.indices.dtype != np.uint16:
        inputs.append(block.tocsc())
    for x in inputs:
        scaled = normalize_cpu.scale_rows(x, factors)
        assert type(scaled) is type(x)
        assert scaled.dtype == dtype
        got = scaled.astype(dtype).toarray() if sparse.issparse(scaled) else scaled
        np.testing.assert_array_equal(got, want)
    after = block.data if sparse.issparse(block) else block
    np.testing.assert_array_equal(after, before)


def test_scale_rows_refuses_factors_of_other_cells() -> None:
    with pytest.raises(ValueError, match="2 factors for 3 cells"):
        normalize_cpu.scale_rows(np.ones((3, 2)), np.ones(2))


@quick
@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.float64]),
        st.tuples(st.integers(0, 4), st.integers(0, 700)),
        elements=st.floats(0, 2.0**100, width=32) | st.floats(0, 2.0**-20, width=32),
    )
)
def test_log1p_is_within_one_ulp(x: np.ndarray) -> None:
    before = x.copy()
    got = normalize_cpu.log1p(x)
    np.testing.assert_array_equal(x, before)
    exact = np.log1p(x.astype(np.float64)).astype(x.dtype)
    assert got.dtype == x.dtype
    assert (np.abs(got - exact) <= np.spacing(exact)).all()


def test_log1p_over_the_whole_range() -> None:
    rng = np.random.default_rng(0)
    magnitudes = 10.0 ** rng.uniform(-300, 300, 50_000)
    near_minus_one = -1 + 10.0 ** rng.uniform(-15, 0, 50_000)
    for x in (magnitudes, near_minus_one):
        want = np.log1p(x)
        assert np.max(np.abs(normalize_cpu.log1p(x) - want) / np.spacing(np.abs(want))) <= 2
    # float32 results are the correctly rounded ones.
    x = np.concatenate([rng.uniform(0, 5, 50_000), 10.0 ** rng.uniform(-37, 37, 50_000)])
    x = x.astype(np.float32)
    want = np.log1p(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(normalize_cpu.log1p(x), want)


@pytest.mark.parametrize("n_integer_rows", [0, 1, 5, 9])
def test_totals_of_reals_are_added_in_order(n_integer_rows: int) -> None:
    """Rows of integers, which are summed in any order, and the rows after them."""
    x = np.random.default_rng(0).lognormal(0, 9, (9, 301)).astype(np.float32)
    x[:n_integer_rows] = np.minimum(np.round(x[:n_integer_rows]), 2**20)
    want = np.cumsum(x, axis=1, dtype=np.float64)[:, -1]
    for block in (x, np.asfortranarray(x), sparse.csr_matrix(x)):
        np.testing.assert_array_equal(qc_cpu.row_sums(block), want)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix])
def test_scaling_in_place_has_the_values_of_scaling(kind: Any) -> None:
    """Also of rows that are longer than a batch."""
    rng = np.random.default_rng(0)
    x, factors = kind(rng.random((3, 5000)).astype(np.float32)), rng.random(3)
    want = normalize_cpu.scale_rows(x, factors)
    normalize_cpu.scale_rows_into(x, factors, x.data if sparse.issparse(x) else x)
    assert (x != want).sum() == 0


@pytest.mark.filterwarnings("ignore")
def test_the_fast_logarithm_of_float32_has_the_bits_of_the_exact_one() -> None:
    """Float32 numbers of all sizes, NaN and infinite ones too (once all 2**32 were tried)."""
    x = np.arange(0, 2**32, 2111, dtype=np.uint64).astype(np.uint32).view(np.float32)
    counts = np.random.default_rng(0).gamma(1.0, 2.0, 2_000_000).astype(np.float32)
    near_zero = np.array([0.0, -0.0, 1e-45, -1e-40, 2**-29, 2**-30, -(2**-29)], np.float32)
    for values in (x, counts, near_zero):
        want, got = np.empty_like(values), np.empty_like(values)
        normalize_cpu._log1p_flat(values, 1.0, want)
        normalize_cpu.log1p_into(values, got)
        np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def test_log1p_at_its_edges_and_types() -> None:
    x = np.array([0.0, -0.0, -1.0, -2.0, np.inf, np.nan, -np.inf])
    np.testing.assert_array_equal(
        normalize_cpu.log1p(x), [0, 0, -np.inf, np.nan, np.inf, np.nan, np.nan]
    )
    assert normalize_cpu.log1p(np.array([[1, 2]])).dtype == np.float64
    got = normalize_cpu.log1p(np.array([1.0, 3.0, 9.0]), 2.0)
    np.testing.assert_allclose(got, [1.0, 2.0, np.log2(10.0)], rtol=3e-16)


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csr_array, sparse.csc_matrix])
def test_log1p_of_sparse_blocks_keeps_the_structure(kind: Any) -> None:
    x = widths(kind(np.array([[0, 1, 3], [2, 0, 0]], np.float32)), "uint16", "int64")
    logged = normalize_cpu.log1p(x)
    assert type(logged) is kind
    assert logged.indices is x.indices
    assert logged.data is not x.data
    np.testing.assert_array_equal(logged.data, np.log1p(x.data.astype("f8")).astype("f4"))


@quick
@given(blocks(), st.data())
def test_select_genes(pair: tuple[Any, np.ndarray], data: st.DataObject) -> None:
    block, matrix = pair
    index = data.draw(st.lists(st.integers(0, matrix.shape[1] - 1), unique=True))
    got = select_cpu.select_genes(block, np.array(index, int), matrix.shape[1])
    assert type(got) is type(block)
    assert got.dtype == matrix.dtype
    assert got.shape == (matrix.shape[0], len(index))
    if sparse.issparse(got):
        assert got.indices.dtype == got.indptr.dtype
        rows = np.split(got.indices, got.indptr[1:-1])
        assert all((np.diff(row.astype(int)) > 0).all() for row in rows)
        got = got.toarray()
    np.testing.assert_array_equal(got, matrix[:, index])


@pytest.mark.parametrize(
    "index, message",
    [([3], "within"), ([-1], "within"), ([0, 0], "twice"), ([0], "3 genes, not 4")],
)
def test_select_genes_refuses(index: list[int], message: str) -> None:
    n_genes = 4 if "not 4" in message else None
    with pytest.raises(ValueError, match=message):
        select_cpu.select_genes(sparse.csr_matrix((2, 3)), np.array(index), n_genes)


@quick
@given(blocks(), st.data())
def test_select_rows(pair: tuple[Any, np.ndarray], data: st.DataObject) -> None:
    block, matrix = pair
    mask = data.draw(hnp.arrays(bool, matrix.shape[0]))
    for rows in (mask, np.flatnonzero(mask)[::-1]):
        got = select_cpu.select_rows(block, rows)
        assert type(got) is type(block)
        assert got.dtype == matrix.dtype
        got = got.toarray() if sparse.issparse(got) else got
        np.testing.assert_array_equal(got, matrix[rows])


def test_select_rows_refuses_other_masks() -> None:
    with pytest.raises(ValueError, match="a mask of 3 for 2 cells"):
        select_cpu.select_rows(np.ones((2, 2)), np.ones(3, bool))
    with pytest.raises(ValueError, match="within"):
        select_cpu.select_rows(np.ones((2, 2)), np.array([2]))


def test_kernels_let_other_threads_run_and_are_cached() -> None:
    for module in (qc_cpu, normalize_cpu, select_cpu):
        compiled = [f for f in vars(module).values() if hasattr(f, "py_func")]
        assert compiled
        for function in compiled:
            assert function.targetoptions["nogil"], function
            assert function._cache is not None, function
            assert type(function._cache).__name__ != "NullCache", function
