"""Totals of cells over some genes, and the cut of genes on size factors."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from scatlas import blocks
from scatlas.arrays.kinds import is_dask
from scatlas.errors import InputError
from scatlas.matrix.select_normalize import select_and_log_normalize
from scatlas.matrix.size_factors import cell_totals, size_factors


@pytest.fixture
def factors(counts):
    """Size factors of the cells. Blocks of 7 rows: the second loses every cell, the fourth none."""
    found, _ = size_factors(np.asarray(counts.sum(axis=1)).ravel())
    found[[0, *range(7, 14), 30, 59]] = np.nan
    return found


@pytest.mark.parametrize("genes", [slice(None), slice(0, 0), slice(3, 20)])
def test_totals_of_cells_over_some_genes(array_type, counts, block_loads, genes):
    mask = np.zeros(counts.shape[1], bool)
    mask[genes] = True
    totals = cell_totals(array_type(counts), mask)
    assert totals.dtype == np.int64
    np.testing.assert_array_equal(totals, counts.toarray()[:, genes].sum(axis=1))
    if array_type.is_dask:
        assert block_loads.passes() == cell_totals.passes == 1
    block_loads.assert_unchanged()


@pytest.mark.parametrize("ascending", [True, False])
def test_cut_is_lazy_and_loads_no_block_that_loses_its_cells(
    array_type, counts, factors, dense, block_loads, ascending
):
    genes = np.arange(1, 50, 3) if ascending else np.random.default_rng(0).permutation(50)[:20]
    expected = select_and_log_normalize(counts, genes, size_factors=factors)
    got = select_and_log_normalize(array_type(counts), genes, size_factors=factors)
    if array_type.is_dask:
        assert block_loads.per_block() == [0] * 9
        assert got.chunks == ((6, 7, 7, 6, 7, 7, 7, 3), (genes.size,))
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


def test_cut_in_memory_takes_several_blocks(monkeypatch, counts, factors):
    whole = select_and_log_normalize(counts, [3, 4], size_factors=factors)
    monkeypatch.setattr("scatlas.arrays.numpy_arrays.VALUES_PER_BLOCK", 50)
    assert len(blocks.row_slices(counts)) > 3
    got = select_and_log_normalize(counts, [3, 4], size_factors=factors)
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
def test_cut_refuses(counts, make_adata, genes, n_factors, message):
    with pytest.raises(InputError, match=message):
        select_and_log_normalize(counts, genes, size_factors=np.ones(n_factors))
    with pytest.raises(InputError, match="the array is AnnData"):
        select_and_log_normalize(make_adata(counts), genes, size_factors=np.ones(60))
