"""Kernels of counts: bits, types, edges of the logarithm, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from scatlas import blocks
from scatlas.kernels.counts import normalize_cpu, qc_cpu, select_cpu
from scatlas.kernels.counts.normalize_cpu import select_and_log_normalize
from scatlas.kernels.counts.select_cpu import new_column_of_gene


@settings(max_examples=25)
@given(cut=st.integers(0, 30), dtype=st.sampled_from(["uint8", "int32", "float32", "float64"]))
def test_qc_partials_of_any_cut_merge_to_the_whole(cut: int, dtype: str) -> None:
    rng = np.random.default_rng(cut)
    x = rng.poisson(1, (30, 9)) * (rng.choice([0.3, 1.0], (30, 9)) if "f" in dtype else 1)
    masks = np.arange(9)[None] % 4 == 0
    for block in (x.astype(dtype), sparse.csr_matrix(x.astype(dtype))):
        parts = [qc_cpu.qc_block(part, masks) for part in (block[:cut], block[cut:])]
        merged, whole = qc_cpu.QCSums.merge(parts), qc_cpu.qc_block(block, masks)
        for name in ("totals", "n_genes", "masked", "n_cells", "gene_totals"):
            np.testing.assert_array_equal(getattr(merged, name), getattr(whole, name))


def test_sums_of_values_that_are_not_finite_are_not_integers() -> None:
    no_masks = np.zeros((0, 2), bool)
    x = np.array([[np.nan, 1.0], [np.inf, 1.0]], np.float32)
    totals = qc_cpu.qc_block(x, no_masks).totals
    assert totals.dtype == np.float64
    np.testing.assert_array_equal(totals, [np.nan, np.inf])
    # Sums past 2^53 are not known to be exact.
    assert qc_cpu.qc_block(np.array([[2.0**53, 4.0]]), no_masks).totals.dtype == np.float64


@pytest.mark.parametrize("n_integer_rows", [0, 1, 5, 9])
def test_totals_of_reals_are_added_in_order(n_integer_rows: int) -> None:
    """Rows of integers, which are summed in any order, and the rows after them."""
    x = np.random.default_rng(0).lognormal(0, 9, (9, 301)).astype(np.float32)
    x[:n_integer_rows] = np.minimum(np.round(x[:n_integer_rows]), 2**20)
    want = np.cumsum(x, axis=1, dtype=np.float64)[:, -1]
    for block in (x, np.asfortranarray(x), sparse.csr_matrix(x)):
        np.testing.assert_array_equal(qc_cpu.row_sums(block), want)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix, sparse.csc_matrix])
@pytest.mark.parametrize("dtype", ["int32", "float32", "float64"])
def test_scaling_rounds_once_and_in_place_too(kind: Any, dtype: str) -> None:
    """Also of rows that are longer than a batch."""
    rng = np.random.default_rng(0)
    dense, factors = (100 * rng.random((3, 5000))).astype(dtype), rng.random(3)
    want = dense.astype(np.float64) * factors[:, None]
    want = want.astype(normalize_cpu.scaled_dtype(dtype))
    x = kind(dense)
    scaled = normalize_cpu.scale_rows(x, factors)
    assert scaled.dtype == want.dtype
    assert (scaled != want).sum() == (x != dense).sum() == 0
    if dtype != "int32":
        normalize_cpu.scale_rows_into(x, factors, x.data if sparse.issparse(x) else x)
        assert (x != want).sum() == 0


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
def test_log1p_of_sparse_blocks_shares_the_structure(kind: Any) -> None:
    x = kind(np.array([[0, 1, 3], [2, 0, 0]], np.float32))
    logged = normalize_cpu.log1p(x)
    assert type(logged) is kind
    assert logged.indices is x.indices
    assert logged.data is not x.data


@settings(max_examples=25)
@given(
    types=st.sampled_from([("uint8", "uint16"), ("uint16", "int32"), ("float32", "int64")]),
    genes=st.lists(st.integers(0, 10), unique=True),
    left_out=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_cut_has_the_bits_of_one_step_after_another(
    types: tuple[str, str], genes: list[int], left_out: float
) -> None:
    rng = np.random.default_rng(len(genes))
    x = rng.poisson(1, (13, 11)).astype(types[0])
    x[4] = 0
    block = sparse.csr_matrix(x)
    block = blocks.csr(block.data, block.indices.astype(types[1]), block.indptr, 11)
    scale = 10.0 ** rng.uniform(-2, 2, 13)
    scale[rng.random(13) < left_out] = np.nan
    kept, place = ~np.isnan(scale), new_column_of_gene(genes, 11)
    selected = select_cpu.select_genes(select_cpu.select_rows(block, kept), genes)
    np.testing.assert_array_equal(selected.toarray(), x[kept][:, genes])
    expected = normalize_cpu.log1p(normalize_cpu.scale_rows(selected, scale[kept]))
    got = select_and_log_normalize(block, scale, place)
    np.testing.assert_array_equal(got.indices, sparse.csr_matrix(x[kept][:, genes]).indices)
    assert got.indices.dtype == got.indptr.dtype == np.int32
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))
    dense = select_and_log_normalize(x, scale, place)
    np.testing.assert_array_equal(dense, got.toarray())
    assert dense.dtype == got.dtype == np.float32


def test_cut_keeps_the_kind_and_widens_only_where_it_must(monkeypatch: Any) -> None:
    x = sparse.csr_array(np.eye(3, dtype=np.uint8))
    place = new_column_of_gene([1], 3)
    assert type(select_and_log_normalize(x, np.ones(3), place)) is sparse.csr_array
    monkeypatch.setattr(select_cpu, "_INT32", 2)
    wide = select_and_log_normalize(x, np.ones(3), place)
    assert wide.indices.dtype == wide.indptr.dtype == np.int64


def test_genes_among_more_genes() -> None:
    dense = np.random.default_rng(5).poisson(0.5, (9, 20)).astype(np.uint8)
    columns = np.arange(20) * 3500
    x = sparse.csr_matrix(dense)
    x.indices = x.indices.astype(np.uint16)
    found = select_cpu.spread_genes(x, columns, 70_000)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found[:, columns].toarray(), dense)
    assert found.nnz == np.count_nonzero(dense)


ONES = np.ones((3, 2), np.uint8)


def test_totals_of_the_largest_values_of_a_row():
    rng = np.random.default_rng(0)
    for n in range(1, 31):
        x = rng.integers(0, n + 3, (40, 30)).astype(float)
        for values in (x.astype(np.int32), np.where(rng.random(x.shape) < 0.02, np.nan, x)):
            largest = np.sort(values)[:, ::-1][:, :n]
            np.testing.assert_array_equal(qc_cpu.top_totals(values, [n])[:, 0], largest.sum(axis=1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: qc_cpu.top_totals(ONES, []), "ascend"),
        (lambda: qc_cpu.top_totals(ONES, [0]), "ascend"),
        (lambda: qc_cpu.top_totals(ONES, [3]), "ascend"),
        (lambda: qc_cpu.top_totals(ONES, [2, 1]), "ascend"),
        (lambda: normalize_cpu.scale_rows(ONES, np.ones(2)), "2 factors for 3 cells"),
        (lambda: select_and_log_normalize(ONES, np.ones(2), np.zeros(2)), r"a block of \(3, 2\)"),
        (lambda: select_and_log_normalize(ONES, np.ones(3), np.zeros(3)), r"a block of \(3, 2\)"),
        (lambda: select_cpu.select_genes(ONES, [2]), "within"),
        (lambda: select_cpu.select_genes(ONES, [-1]), "within"),
        (lambda: select_cpu.select_genes(ONES, [0, 0]), "twice"),
        (lambda: select_cpu.select_genes(ONES, [0], 4), "2 genes, not 4"),
        (lambda: select_cpu.select_rows(ONES, np.ones(2, bool)), "a mask of 2 for 3 cells"),
        (lambda: select_cpu.select_rows(ONES, [3]), "within"),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
