"""Flavours seurat_v3: kernels against plain references; passes, blocks, kinds of X, errors."""

from __future__ import annotations

import sys
import warnings
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from scatlas import blocks
from scatlas.errors import InputError
from scatlas.kernels.counts.qc_cpu import holds_counts
from scatlas.kernels.moments import moments_cpu
from scatlas.kernels.moments.count_moments_cpu import gene_sum_pairs, moments_of_counts
from scatlas.kernels.moments.moments_cpu import clipped_squares, moments_above
from scatlas.matrix.hvg import hvg_of_counts
from scatlas.pp import highly_variable_genes

WIDTHS = [(i, p) for i in ("uint16", "int32", "int64") for p in ("int32", "int64")]
V3 = ["seurat_v3", "seurat_v3_paper"]
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


# --- kernels ----------------------------------------------------------------------------------


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


def test_one_group_without_codes_and_blocks_without_rows():
    x = np.array([[1, 5, 0], [7, 5, 0]], dtype=np.uint8)
    bounds = np.array([[3.5, 5.0, 0.0]])
    for block in (x, csr(x)):
        got = moments_above(block, bounds)
        assert got.groups.tolist() == [0]
        assert got.n_cells.tolist() == [2]
        assert got.expressed.tolist() == [[1, 0, 0]], "a value at its bound is not above it"
        assert got.sums[0, :, 0].tolist() == [7, 0, 0]
        assert got.sums[0, :, 2].tolist() == [49, 0, 0]
        none = moments_above(block[:0], bounds)
        assert (none.n_cells.tolist(), none.sums.any()) == ([0], False)
        assert moments_above(block, bounds, np.array([-1, -1])).groups.size == 0


@given(case=bounded(min_rows=2), data=st.data())
@few
def test_moments_above_do_not_depend_on_the_blocks(case, data):
    x, codes, bounds = case
    order = np.array(data.draw(st.permutations(range(len(x)))))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(x) - 1), max_size=4)))
    whole = moments_above(csr(x), bounds, codes)
    parts = [
        moments_above(csr(part), bounds, code)
        for part, code in zip(np.split(x[order], cuts), np.split(codes[order], cuts), strict=True)
    ]
    folded = moments_cpu.merge_in_place(parts)
    assert folded.groups.tolist() == whole.groups.tolist()
    assert folded.n_cells.tolist() == whole.n_cells.tolist()
    np.testing.assert_array_equal(folded.expressed, whole.expressed)
    np.testing.assert_array_equal(folded.sums[..., ::2], whole.sums[..., ::2])


@given(case=bounded(min_rows=1))
@few
def test_squares_of_clipped_values(case):
    x, codes, bounds = case
    moments = moments_cpu.moments(csr(x), codes)
    # A bound that clips lies above the mean.
    bounds = np.fmax(bounds[moments.groups], moments.mean)
    by_code = np.full((3, x.shape[1]), np.nan)
    by_code[moments.groups] = bounds
    got = clipped_squares(moments, moments_above(csr(x), by_code, codes), bounds)
    for at, code in enumerate(moments.groups):
        for gene in range(x.shape[1]):
            bound, mean = bounds[at, gene], Fraction(moments.mean[at, gene])
            values = [Fraction(min(float(v), bound)) for v in x[codes == code, gene]]
            expected = float(sum((v - mean) ** 2 for v in values))
            # Below this the mean's own rounding shows.
            room = len(values) * (2e-16 * float(mean)) ** 2
            assert got[at, gene] == pytest.approx(expected, rel=1e-14, abs=room)


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
    for block in (x, csr(x), csr(x, "uint16", "int64")):
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


# --- public function --------------------------------------------------------------------------


@pytest.fixture
def counts(make_counts):
    """200 cells x 90 genes with two expressed by all cells, an outlier, and an empty gene."""
    x = make_counts(200, 90).toarray()
    x[:, 10], x[7, 20] = 3, 4000  # no variance; above every bound
    return sp.csr_matrix(x)


@pytest.fixture
def clipped(monkeypatch):
    """How many values each pass has found above a bound."""
    found = []
    original = moments_cpu.moments_above

    def counting(*args):
        moments = original(*args)
        found.append(int(moments.expressed.sum()))
        return moments

    monkeypatch.setattr(moments_cpu, "moments_above", counting)
    return found


@pytest.mark.parametrize("batch_key", [None, "batch"])
def test_passes(dask_type, counts, make_adata, block_loads, clipped, batch_key):
    adata = make_adata(dask_type(counts))
    highly_variable_genes(adata, flavor="seurat_v3", batch_key=batch_key, n_top_genes=20)
    assert sum(clipped) > 0, "the premise: something is clipped"
    assert adata.var.loc["gene10", ["variances", "variances_norm"]].tolist() == [0, 0]
    assert block_loads.passes() == 2
    assert "1 more with the flavors seurat_v3" in highly_variable_genes.passes_note
    block_loads.assert_unchanged()


@pytest.mark.parametrize("dtype", ["int32", "float32", "float64"])
def test_blocks_of_any_size_give_the_same_bits(block_loads, counts, make_adata, dtype):
    """Of reals, too, whose sums carry their rounding."""
    x = counts.astype(dtype)
    if x.dtype.kind == "f":
        x.data *= np.random.default_rng(0).gamma(2.0, 0.5, x.nnz).astype(dtype)
    factors = np.where(np.arange(200) % 9 == 0, np.nan, 1.0)
    options = {"flavor": "seurat_v3", "n_top_genes": 20, "check_values": False}
    for key in (None, "batch"):
        tables = [
            highly_variable_genes(
                make_adata(block_loads.dask(x, rows)), batch_key=key, size_factors=factors,
                inplace=False, **options,
            )
            for rows in (1, 13, 67, 200)
        ]  # fmt: skip
        for other in tables[1:]:
            pd.testing.assert_frame_equal(other, tables[0], check_exact=True)


@pytest.mark.parametrize("flavor", V3)
def test_cells_left_out_are_not_there(counts, make_adata, block_loads, flavor):
    factors = np.where(np.arange(200) % 5 == 0, np.nan, 2.5)
    kept = ~np.isnan(factors)
    adata = make_adata(counts)
    for key in (None, "batch"):
        options = {"flavor": flavor, "n_top_genes": 20, "min_cells": 30, "inplace": False}
        expected = highly_variable_genes(adata[kept].copy(), batch_key=key, **options)
        for x in (counts, block_loads.dask(counts, 3)):
            got = highly_variable_genes(
                make_adata(x), batch_key=key, size_factors=factors, **options
            )
            pd.testing.assert_frame_equal(got, expected, check_exact=True)
            if key is None:
                del options["inplace"]
                bare = hvg_of_counts(x, adata.var_names, factors, **options)
                options["inplace"] = False
                pd.testing.assert_frame_equal(bare, expected, check_exact=True)
    # A batch that loses all of its cells is no batch.
    gone = np.where(adata.obs["batch"] == "b1", np.nan, 1.0)
    options = {"flavor": flavor, "batch_key": "batch", "inplace": False}
    pd.testing.assert_frame_equal(
        highly_variable_genes(adata, size_factors=gone, **options),
        highly_variable_genes(adata[~np.isnan(gone)].copy(), **options),
        check_exact=True,
    )


@pytest.mark.parametrize("flavor", V3)
def test_min_cells_is_filter_genes_first(counts, make_adata, flavor):
    n_cells = np.asarray((counts > 0).sum(axis=0)).ravel()
    keep = n_cells >= np.median(n_cells)
    adata = make_adata(counts)
    for key in (None, "batch"):
        for n_top_genes in (10, 1000):
            options = {"flavor": flavor, "batch_key": key, "n_top_genes": n_top_genes}
            got = highly_variable_genes(
                adata, min_cells=int(np.median(n_cells)), inplace=False, **options
            )
            expected = highly_variable_genes(adata[:, keep].copy(), inplace=False, **options)
            pd.testing.assert_frame_equal(got[keep], expected, check_exact=True)
            rest = got[~keep]
            assert rest[["variances_norm", "highly_variable_rank"]].isna().all(axis=None)
            assert not rest["highly_variable"].any()
            assert (rest["means"] >= 0).all()


@pytest.mark.parametrize("flavor", V3)
def test_batches_are_ranked_one_by_one(counts, make_adata, flavor):
    adata = make_adata(counts)
    adata.obs["batch"] = adata.obs["batch"].cat.add_categories(["unused"])
    adata.obs.loc[adata.obs_names[-11:], "batch"] = np.nan
    options = {"flavor": flavor, "n_top_genes": 15, "inplace": False}
    got = highly_variable_genes(adata, batch_key="batch", **options)
    alone = [
        highly_variable_genes(adata[adata.obs["batch"] == batch].copy(), **options)
        for batch in ("b0", "b1", "b2")
    ]
    ranks = pd.DataFrame([part["highly_variable_rank"] for part in alone])
    np.testing.assert_array_equal(got["highly_variable_rank"], ranks.median())
    assert got["highly_variable_nbatches"].tolist() == ranks.notna().sum().tolist()
    norms = [part["variances_norm"] for part in alone]
    np.testing.assert_array_equal(got["variances_norm"], np.mean(norms, axis=0))
    # Cells of no batch count for the moments of all cells.
    pd.testing.assert_frame_equal(
        got[["means", "variances"]],
        highly_variable_genes(adata, **options)[["means", "variances"]],
        check_exact=True,
    )
    by = ["highly_variable_rank", "highly_variable_nbatches"]
    key = {"seurat_v3": (by, [True, False]), "seurat_v3_paper": (by[::-1], [False, True])}
    order = got.sort_values(*key[flavor][:1], ascending=key[flavor][1], kind="stable")
    assert got.index[got["highly_variable"]].tolist() == [
        gene for gene in got.index if gene in order.index[:15]
    ]


def test_the_two_flavours_differ_by_batches_alone(counts, make_adata):
    adata = make_adata(counts)
    options = {"n_top_genes": 15, "inplace": False}
    for key in (None, "batch"):
        a, b = (
            highly_variable_genes(adata, flavor=flavor, batch_key=key, **options) for flavor in V3
        )
        others = a.columns.drop("highly_variable")
        pd.testing.assert_frame_equal(a[others], b[others], check_exact=True)
        assert a["highly_variable"].equals(b["highly_variable"]) == (key is None)


def test_equal_genes_are_ranked_in_the_order_of_var(counts, make_adata):
    x = counts.toarray()
    rng = np.random.default_rng(0)
    x = np.hstack([x, *(np.array([rng.permutation(column) for column in x.T]).T for _ in "ab")])
    adata = make_adata(sp.csr_matrix(x))
    adata.var_names = [f"g{i}" for i in rng.permutation(x.shape[1])]
    for n_top_genes in (10, 11, 12):
        got = highly_variable_genes(
            adata, flavor="seurat_v3", n_top_genes=n_top_genes, inplace=False
        )
        norm = got["variances_norm"].to_numpy()
        assert (norm[:90] == norm[90:180]).all()
        order = np.argsort(-norm, kind="stable")[:n_top_genes]
        assert np.flatnonzero(got["highly_variable"]).tolist() == sorted(order)
        assert got["highly_variable_rank"].iloc[order].tolist() == list(range(n_top_genes))


def test_default_number_of_genes_and_duplicated_names(counts, make_adata):
    adata = make_adata(counts)
    assert highly_variable_genes(adata, flavor="seurat_v3", inplace=False)["highly_variable"].all()
    adata.var_names = ["same", "same", *adata.var_names[2:]]
    table = highly_variable_genes(adata, flavor="seurat_v3", n_top_genes=3, inplace=False)
    assert table["highly_variable"].sum() == 3


def test_values_that_are_no_counts(array_type, counts, make_adata):
    x = counts.astype(np.float32)
    x.data[17] += 0.5
    adata = make_adata(array_type(x))
    for flavor in V3:
        options = {"flavor": flavor, "n_top_genes": 20, "inplace": False}
        message = f"^`flavor='{flavor}'` expects raw count data, but non-integers were found.$"
        with pytest.warns(UserWarning, match=message) as caught:
            warned = highly_variable_genes(adata, **options)
        assert caught[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            silent = highly_variable_genes(adata, check_values=False, **options)
        pd.testing.assert_frame_equal(warned, silent, check_exact=True)
    if not array_type.is_dask and array_type.is_sparse:
        adata.X.data[17] = -1  # whole, but below 0
        with pytest.warns(UserWarning, match="expects raw count data"):
            highly_variable_genes(adata, flavor="seurat_v3")


def test_errors(counts, make_adata, monkeypatch):
    adata = make_adata(counts)

    def refused(message, adata=adata, **options):
        before = adata.var.copy()
        with pytest.raises(InputError, match=message):
            highly_variable_genes(adata, flavor="seurat_v3", **options)
        assert "hvg" not in adata.uns
        pd.testing.assert_frame_equal(adata.var, before)

    refused("n_top_genes=0", n_top_genes=0)
    for span in (0, -0.1, 1.5, np.nan):
        refused("must be above 0 and at most 1", span=span)
    refused("no gene is expressed in min_cells=201", min_cells=201)
    refused("85 genes vary, too few .* with span=0.02", span=0.02)
    refused("NaN for every cell", size_factors=np.full(200, np.nan))
    refused("at least one cell", adata[:0].copy())
    refused("0 genes vary, too few", adata[:1].copy())
    refused("no column 'lane'", batch_key="lane")
    refused("no layers.'raw'", layer="raw")
    alike = make_adata(sp.csr_matrix(np.tile(np.array([[1], [3]]), (20, 50))))
    refused(r"loess cannot fit the variances of 50 genes on their means \(.*\): raise", alike)
    odd = make_adata(counts.astype(np.float64))
    odd.X.data[3] = np.nan
    with pytest.warns(UserWarning, match="expects raw count data"):
        refused("NaN or infinite values.*expects counts for flavor='seurat_v3'", odd)
    odd = make_adata(-counts)
    refused("mean below 0: flavor='seurat_v3' expects counts", odd, check_values=False)
    monkeypatch.setitem(sys.modules, "skmisc.loess", None)
    refused(r"scikit-misc is not installed: pip install 'scatlas\[skmisc\]'")
    # The other flavours do without it.
    highly_variable_genes(adata[:, :50].copy(), flavor="seurat", size_factors=np.ones(200))
