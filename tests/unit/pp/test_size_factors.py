"""Steps on counts and size factors: highly_variable_genes, select_and_log_normalize."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from scatlas import blocks
from scatlas.arrays.kinds import is_dask
from scatlas.errors import InputError
from scatlas.matrix.hvg import hvg_of_counts
from scatlas.matrix.select_normalize import select_and_log_normalize
from scatlas.matrix.size_factors import cell_totals, size_factors
from scatlas.pp import highly_variable_genes, log1p, normalize_total


def factors_of(counts, left_out=()):
    factors, _ = size_factors(np.asarray(counts.sum(axis=1)).ravel())
    factors[list(left_out)] = np.nan
    return factors


def normalised(counts, factors, make_adata):
    """Kept cells as normalize_total and log1p make them."""
    adata = make_adata(counts)[~np.isnan(factors)].copy()
    with pytest.warns(UserWarning, match="zero counts"):
        normalize_total(adata, target_sum=1, counts_per_cell=factors[~np.isnan(factors)])
    log1p(adata)
    return adata


# --- totals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("genes", [None, slice(0, 0), slice(3, 20)])
def test_totals_of_cells_over_some_genes(array_type, count_dtype, counts, block_loads, genes):
    counts = counts.astype(count_dtype)
    mask = None
    if genes is not None:
        mask = np.zeros(counts.shape[1], bool)
        mask[genes] = True
    totals = cell_totals(array_type(counts), mask)
    assert totals.dtype == (np.int64 if np.dtype(count_dtype).kind in "iu" else np.float64)
    wanted = counts.toarray().astype(np.int64)[:, slice(None) if mask is None else mask]
    np.testing.assert_array_equal(totals, wanted.sum(axis=1))
    if array_type.is_dask:
        assert block_loads.passes() == cell_totals.passes == 1
    block_loads.assert_unchanged()


# --- highly variable genes --------------------------------------------------------------------


@pytest.mark.parametrize("batch_key", [None, "batch"])
@pytest.mark.parametrize("flavor", ["seurat", "cell_ranger"])
def test_hvg_of_counts_is_that_of_normalised_ones(
    array_type, count_dtype, counts, make_adata, block_loads, flavor, batch_key
):
    counts = counts.astype(count_dtype)
    factors = factors_of(counts, left_out=[0, *range(7, 14), 30])
    options = {"flavor": flavor, "batch_key": batch_key, "n_top_genes": 10, "min_cells": 1}
    expected = highly_variable_genes(
        normalised(counts, factors, make_adata), inplace=False, **options
    )
    adata = make_adata(array_type(counts))
    adata.uns["log1p"] = {"base": 2}  # of a layer, say
    table = highly_variable_genes(adata, inplace=False, size_factors=factors, **options)
    if flavor == "cell_ranger":  # moments of the very same values
        pd.testing.assert_frame_equal(table, expected, check_exact=True)
    else:  # of values that float32 logarithms did not round
        assert table["highly_variable"].tolist() == expected["highly_variable"].tolist()
        for column in ("means", "dispersions"):
            np.testing.assert_allclose(table[column], expected[column], rtol=3e-7, atol=3e-7)
    if array_type.is_dask:
        assert block_loads.passes() == highly_variable_genes.passes == 1
    block_loads.assert_unchanged()

    if batch_key is None:
        del options["batch_key"]
        bare = hvg_of_counts(array_type(counts), adata.var_names, factors, **options)
        pd.testing.assert_frame_equal(bare, table, check_exact=True)
    adata.obs["size"] = factors
    options["batch_key"] = batch_key
    highly_variable_genes(adata, size_factors="size", **options)
    assert adata.var["highly_variable"].tolist() == table["highly_variable"].tolist()


def test_hvg_of_counts_does_not_depend_on_the_blocks(block_loads, counts, make_adata):
    factors = factors_of(counts)
    tables = [
        highly_variable_genes(
            make_adata(block_loads.dask(counts, rows)), size_factors=factors, inplace=False
        )
        for rows in (1, 13, 60)
    ]
    for other in tables[1:]:
        pd.testing.assert_frame_equal(other, tables[0], check_exact=True)


@pytest.mark.parametrize("flavor", ["seurat", "cell_ranger", "seurat_v3"])
def test_hvg_among_some_genes_is_that_of_a_plate_without_the_others(
    array_type, counts, make_adata, flavor
):
    names = make_adata(counts).var_names
    genes = np.random.default_rng(1).random(counts.shape[1]) < 0.7
    factors, _ = size_factors(cell_totals(array_type(counts), genes), target_sum=100)
    options = {"flavor": flavor, "n_top_genes": 8, "min_cells": 1}
    table = hvg_of_counts(array_type(counts), names, factors, genes=genes, **options)
    without = hvg_of_counts(counts[:, genes], names[genes], factors, **options)
    pd.testing.assert_frame_equal(table[genes], without, check_exact=True)
    last = "variances_norm" if flavor == "seurat_v3" else "dispersions_norm"
    assert table.loc[~genes, last].isna().all()
    assert not table.loc[~genes, "highly_variable"].any()


def test_hvg_refuses_size_factors(counts, make_adata):
    adata = make_adata(counts)
    factors = factors_of(counts)
    wrong, infinite = factors.copy(), factors.copy()
    wrong[2], infinite[2] = -1, np.inf
    for bad, message in (
        (factors[1:], r"shape \(59,\), but there are 60 cells"),
        (wrong, "not negative"),
        (infinite, "finite"),
        ("size", "no column 'size'"),
        (np.full(60, np.nan), "NaN for every cell"),
    ):
        with pytest.raises(InputError, match=message):
            highly_variable_genes(adata, size_factors=bad)
    adata.obs["batch"] = pd.Categorical(["b"] * 3 + [None] * 57)
    factors[:3] = np.nan
    with pytest.raises(InputError, match="no cell that belongs to a batch"):
        highly_variable_genes(adata, size_factors=factors, batch_key="batch")
    adata.X = adata.X.astype(np.float32)
    adata.X.data[7] = np.nan
    with pytest.raises(InputError, match="expects counts where size_factors"):
        highly_variable_genes(adata, size_factors=np.ones(60))


# --- cut --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ascending", [True, False])
def test_cut_is_each_step_after_the_other(
    array_type, count_dtype, counts, make_adata, dense, block_loads, ascending
):
    counts = counts.astype(count_dtype)
    # Blocks of 7 rows: the second loses every cell, the fourth none.
    factors = factors_of(counts, left_out=[0, *range(7, 14), 30, 59])
    genes = np.arange(1, 50, 3) if ascending else np.random.default_rng(0).permutation(50)[:20]
    expected = normalised(counts, factors, make_adata)[:, genes].X
    got = select_and_log_normalize(array_type(counts), genes, size_factors=factors)
    if array_type.is_dask:
        assert block_loads.per_block() == [0] * 9
        assert got.chunks == ((6, 7, 7, 6, 7, 7, 7, 3), (genes.size,))
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(dense(got), expected.toarray())
    if array_type.is_dask:
        assert block_loads.per_block() == [1, 0, *[1] * 7]
        assert select_and_log_normalize.passes == 0
        parts = list(blocks.stream(got))
        assert [part.shape[0] for part in parts] == list(got.chunks[0])
        assert {sp.issparse(part) for part in parts} == {array_type.is_sparse}
    else:
        assert sp.issparse(got) == array_type.is_sparse
    block_loads.assert_unchanged()
    mask = np.zeros(50, bool)
    mask[genes] = True
    masked = select_and_log_normalize(counts, mask, size_factors=factors)
    np.testing.assert_array_equal(masked.toarray(), expected.toarray()[:, np.argsort(genes)])


def test_cut_of_no_cell(block_loads, counts):
    nothing = np.full(60, np.nan)
    for x in (counts, block_loads.dask(counts)):
        got = select_and_log_normalize(x, [3, 4], size_factors=nothing)
        assert got.shape == (0, 2)
        assert (got.compute() if is_dask(got) else got).nnz == 0


def test_cut_in_memory_takes_several_blocks(monkeypatch, counts):
    whole = select_and_log_normalize(counts, [3, 4], size_factors=factors_of(counts))
    monkeypatch.setattr("scatlas.arrays.numpy_arrays.VALUES_PER_BLOCK", 50)
    assert len(blocks.row_slices(counts)) > 3
    got = select_and_log_normalize(counts, [3, 4], size_factors=factors_of(counts))
    assert (got != whole).nnz == 0


@pytest.mark.parametrize(
    "genes, n_factors, message",
    [
        ([3, 3], 60, "wanted twice"),
        ([50], 60, "within 0 and 49"),
        (np.ones(49, bool), 60, "mask of 49"),
        ([3], 59, "60 cells"),
    ],
)
def test_cut_refuses(counts, genes, n_factors, message):
    with pytest.raises(InputError, match=message):
        select_and_log_normalize(counts, genes, size_factors=np.ones(n_factors))


def test_cut_refuses_an_anndata(counts, make_adata):
    with pytest.raises(InputError, match="the array is AnnData"):
        select_and_log_normalize(make_adata(counts), [1], size_factors=np.ones(60))
