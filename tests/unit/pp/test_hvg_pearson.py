"""Flavour pearson_residuals: kernels against plain references; passes, blocks, kinds of X."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from scatlas import blocks
from scatlas.errors import InputError
from scatlas.kernels.moments import moments_cpu, pearson_cpu
from scatlas.kernels.moments.pearson_cpu import PearsonModel
from scatlas.matrix import hvg_pearson
from scatlas.matrix.hvg import hvg_of_counts
from scatlas.pp import highly_variable_genes

WIDTHS = [(i, p) for i in ("uint16", "int32", "int64") for p in ("int32", "int64")]
few = settings(max_examples=25, deadline=None, derandomize=True)
FLAVOR = "pearson_residuals"


def csr(x, index="int32", indptr="int32"):
    m = sp.csr_matrix(x)
    return blocks.csr(m.data, m.indices.astype(index), m.indptr.astype(indptr), x.shape[1])


def clipped_residuals(x, theta, clip):
    """Of all counts of one group, in extended precision."""
    x = x.astype(np.longdouble)
    mu = np.outer(x.sum(axis=1), x.sum(axis=0)) / x.sum()
    with np.errstate(invalid="ignore"):
        residuals = (x - mu) / np.sqrt(mu + mu**2 / theta)
    return np.clip(np.where(mu == 0, 0, residuals), -clip, clip)


# --- kernels ----------------------------------------------------------------------------------


@st.composite
def cases(draw, min_rows=0):
    """Counts of rows of two groups (-1: none), and what they are expected to be."""
    n, g = draw(st.integers(min_rows, 13)), draw(st.integers(1, 9))
    dtype = draw(st.sampled_from(["uint8", "int32", "float32", "float64"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.poisson(rng.gamma(0.5, 3.0, g), (n, g)).clip(0, 255).astype(dtype)
    x[rng.random(n) < 0.2] = 0
    codes = rng.integers(-1, 2, n)
    theta = draw(st.sampled_from([0.5, 100.0, np.inf]))
    genes = np.array([x[codes == code].sum(axis=0, dtype=np.float64) for code in (0, 1)])
    clips = np.array([draw(st.sampled_from([0.7, 30.0])), 1.5])
    model = PearsonModel(genes, np.maximum(genes.sum(axis=1), 1), clips, theta)
    return x, x.sum(axis=1, dtype=np.float64), codes, model


@pytest.mark.parametrize(("index", "indptr"), WIDTHS)
@given(case=cases())
@few
def test_sums_of_residuals(index, indptr, case):
    x, totals, codes, model = case
    block = csr(x, index, indptr)
    before = block.data.copy()
    others = pearson_cpu.sums_of_nonzeros(block, totals, model, codes)
    np.testing.assert_array_equal(block.data, before)
    dense = pearson_cpu.sums_of_nonzeros(x, totals, model, codes)
    np.testing.assert_array_equal(dense.sums, others.sums)
    assert others.groups.tolist() == sorted(set(codes[codes >= 0].tolist()))
    for at, code in enumerate(others.groups):
        mine = codes == code
        assert others.n_cells[at] == mine.sum()
        different, n = np.unique(totals[mine], return_counts=True)
        zeros = pearson_cpu.sums_of_zeros(model, code, different, n)
        got = zeros + others.sums[at]
        if not x[mine].any():
            assert not got.any()
            continue
        residuals = clipped_residuals(x[mine], model.theta, model.clips[code])
        n = mine.sum()
        np.testing.assert_allclose(got[:, 0], residuals.sum(axis=0), atol=1e-14 * n * 30)
        expected = (residuals**2).sum(axis=0).astype(np.float64)
        np.testing.assert_allclose(got[:, 2], expected, rtol=1e-13, atol=1e-15 * n * 900)
    whole = pearson_cpu.sums_of_nonzeros(block, totals, model._replace(clips=np.full(2, 1.5)))
    assert whole.groups.tolist() == [0]


@given(case=cases(min_rows=2), data=st.data())
@few
def test_sums_do_not_depend_on_the_blocks(case, data):
    x, totals, codes, model = case
    order = np.array(data.draw(st.permutations(range(len(x)))))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(x) - 1), max_size=4)))
    whole = pearson_cpu.sums_of_nonzeros(csr(x), totals, model, codes)
    parts = [
        pearson_cpu.sums_of_nonzeros(csr(x[rows]), totals[rows], model, codes[rows])
        for rows in np.split(order, cuts)
    ]
    folded = moments_cpu.merge_in_place(parts)
    assert folded.groups.tolist() == whole.groups.tolist()
    np.testing.assert_array_equal(folded.sums[..., ::2], whole.sums[..., ::2])


# --- public function --------------------------------------------------------------------------


@pytest.fixture
def counts(make_counts):
    """200 cells x 90 genes with two of one count in all cells, an outlier, and an empty gene."""
    x = make_counts(200, 90).toarray()
    x[:, 10], x[7, 20] = 3, 4000
    x[:, 11] = x[:, 12]
    return sp.csr_matrix(x)


@pytest.mark.parametrize("batch_key", [None, "batch"])
def test_passes(dask_type, counts, make_adata, block_loads, batch_key):
    adata = make_adata(dask_type(counts))
    highly_variable_genes(adata, flavor=FLAVOR, batch_key=batch_key, n_top_genes=20)
    assert adata.var.loc["gene5", "residual_variances"] == 0
    assert block_loads.passes() == 2
    assert "with pearson_residuals" in highly_variable_genes.passes_note
    block_loads.assert_unchanged()


@pytest.mark.parametrize("dtype", ["int32", "float64"])
def test_blocks_of_any_size_give_the_same_bits(block_loads, counts, make_adata, dtype, monkeypatch):
    monkeypatch.setattr(hvg_pearson, "_GENES_AT_ONCE", 7)
    x = counts.astype(dtype)
    if x.dtype.kind == "f":
        x.data *= np.random.default_rng(0).gamma(2.0, 0.5, x.nnz)
    factors = np.where(np.arange(200) % 9 == 0, np.nan, 1.0)
    options = {"flavor": FLAVOR, "n_top_genes": 20, "check_values": False, "inplace": False}
    for key in (None, "batch"):
        tables = [
            highly_variable_genes(
                make_adata(block_loads.dask(x, rows)), batch_key=key, size_factors=factors,
                **options,
            )
            for rows in (1, 13, 67, 200)
        ]  # fmt: skip
        for other in tables[1:]:
            pd.testing.assert_frame_equal(other, tables[0], check_exact=True)


def test_cells_left_out_are_not_there(counts, make_adata):
    factors = np.where(np.arange(200) % 5 == 0, np.nan, 2.5)
    kept = ~np.isnan(factors)
    adata = make_adata(counts)
    options = {"flavor": FLAVOR, "n_top_genes": 20, "min_cells": 30}
    for key in (None, "batch"):
        more = {"batch_key": key, "inplace": False}
        expected = highly_variable_genes(adata[kept].copy(), **more, **options)
        got = highly_variable_genes(adata, size_factors=factors, **more, **options)
        pd.testing.assert_frame_equal(got, expected, check_exact=True)
        assert got.loc["gene5", "residual_variances"] != 0  # NaN: not ranked
        if key is None:
            bare = hvg_of_counts(counts, adata.var_names, factors, **options)
            pd.testing.assert_frame_equal(bare, expected, check_exact=True)


def test_batches_are_ranked_one_by_one(counts, make_adata):
    adata = make_adata(counts)
    adata.obs.loc[adata.obs_names[-11:], "batch"] = np.nan
    options = {"flavor": FLAVOR, "n_top_genes": 15, "inplace": False}
    got = highly_variable_genes(adata, batch_key="batch", **options)
    alone = [
        highly_variable_genes(adata[adata.obs["batch"] == batch].copy(), **options)
        for batch in ("b0", "b1", "b2")
    ]
    ranks = pd.DataFrame([part["highly_variable_rank"] for part in alone])
    np.testing.assert_array_equal(got["highly_variable_rank"], ranks.median())
    n = ranks.notna().sum()
    assert got["highly_variable_nbatches"].tolist() == n.tolist()
    assert got["highly_variable_intersection"].tolist() == (n == 3).tolist()
    variances = [part["residual_variances"] for part in alone]
    np.testing.assert_array_equal(got["residual_variances"], np.mean(variances, axis=0))
    whole = highly_variable_genes(adata, **options)
    for column in ("means", "variances"):
        np.testing.assert_array_equal(got[column], whole[column])
    assert got["highly_variable"].sum() == 15
    assert n[got["highly_variable"]].min() >= n[~got["highly_variable"]].max()


def test_empty_cells_have_residuals_of_zero(counts, make_adata):
    more = sp.vstack([counts, sp.csr_matrix((300, 90), dtype=counts.dtype)]).tocsr()
    options = {"flavor": FLAVOR, "n_top_genes": 20, "clip": 10, "inplace": False}
    table = highly_variable_genes(make_adata(more), **options)
    residuals = np.vstack([clipped_residuals(counts.toarray(), 100, 10), np.zeros((300, 90))])
    expected = residuals.var(axis=0).astype(np.float64)
    np.testing.assert_allclose(table["residual_variances"], expected, rtol=1e-13)


def test_in_place_subset_and_layer(counts, make_adata):
    for key in (None, "batch"):
        adata = make_adata(counts.copy())
        options = {"flavor": FLAVOR, "n_top_genes": 20, "batch_key": key}
        table = highly_variable_genes(adata, inplace=False, **options)
        assert "hvg" not in adata.uns
        assert highly_variable_genes(adata, **options) is None
        assert adata.uns["hvg"] == {"flavor": FLAVOR, "computed_on": "adata.X"}
        pd.testing.assert_frame_equal(adata.var.drop(columns="mt"), table, check_exact=True)
        some = highly_variable_genes(adata, inplace=False, subset=True, **options)
        pd.testing.assert_frame_equal(some, table[table["highly_variable"]], check_exact=True)
        adata.layers["counts"], adata.X = adata.X, None
        highly_variable_genes(adata, layer="counts", subset=True, **options)
        assert adata.var_names.equals(some.index)
        assert adata.uns["hvg"]["computed_on"] == "counts"


def test_values_that_are_no_counts(counts, make_adata):
    x = counts.astype(np.float32)
    x.data[17] += 0.5
    options = {"flavor": FLAVOR, "n_top_genes": 20, "inplace": False}
    message = f"^`flavor='{FLAVOR}'` expects raw count data, but non-integers were found.$"
    with pytest.warns(UserWarning, match=message) as caught:
        warned = highly_variable_genes(make_adata(x), **options)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        silent = highly_variable_genes(make_adata(x), check_values=False, **options)
    pd.testing.assert_frame_equal(warned, silent, check_exact=True)


def test_errors(counts, make_adata):
    def refused(message, x=counts, *, odd=None, **options):
        adata = make_adata(x)
        adata.obs["odd"] = odd
        before = adata.var.copy()
        with pytest.raises(InputError, match=message):
            highly_variable_genes(adata, **({"flavor": FLAVOR, "n_top_genes": 9} | options))
        assert "hvg" not in adata.uns
        pd.testing.assert_frame_equal(adata.var, before)

    refused("give n_top_genes", n_top_genes=None)
    refused("n_top_genes=0", n_top_genes=0)
    for theta in (0, -1, np.nan):
        refused("theta=.* must be above 0", theta=theta)
    for clip in (-1, np.nan):
        refused("clip=.* must not be negative", clip=clip)
    refused("no gene is expressed in min_cells=201", min_cells=201)
    refused("at least one cell", counts[:0])
    refused("all cells are empty", sp.csr_matrix((3, 90), dtype=np.int32))
    odd = np.where(np.isin(np.arange(200), (3, 4)), "x", "y")
    emptied = sp.csr_matrix(counts.toarray() * (odd == "y")[:, None])
    refused("all cells of batch 'x' are empty", emptied, odd=odd, batch_key="odd")
    refused("total below 0", -counts, check_values=False)
    bad = counts.astype(np.float64)
    bad.data[3] = np.nan
    refused("NaN or infinite values", bad, check_values=False)
    with pytest.raises(InputError, match=r"mvp.*pearson_residuals"):
        highly_variable_genes(make_adata(counts), flavor="mvp")
