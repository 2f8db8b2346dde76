"""Lazy arrays of CSC blocks, as other tools read them from CSC files, give the results of CSR.

The kernels read the indices of a sparse block as genes. Those of a CSC block are cells, and would
be out of bounds of the kernels' arrays.
"""

from __future__ import annotations

from typing import Any

import anndata as ad
import dask.array as da
import numpy as np
import pytest
from scipy import sparse

import scatlas as sa
from scatlas import blocks, elements
from scatlas.matrix.gene_moments import gene_moments


def csc_blocks(x: sparse.csr_matrix, *, declared: type) -> da.Array:
    """`x` as a Dask array of CSC blocks whose metadata declare the type `declared`."""
    dense = da.from_array(x.toarray(), chunks=(7, -1))
    return dense.map_blocks(sparse.csc_matrix, dtype=x.dtype, meta=declared((0, 0), dtype=x.dtype))


def qc(adata: ad.AnnData) -> Any:
    return sa.pp.calculate_qc_metrics(adata, qc_vars=["mt"], percent_top=[5])


def lazy_factors(adata: ad.AnnData) -> Any:
    return sa.pp.normalize_total(adata, target_sum=10, inplace=False)["norm_factor"]


def filter_and_aggregate(adata: ad.AnnData) -> Any:
    sa.pp.filter_genes(adata, min_counts=3)
    groups = sa.get.aggregate(adata, "batch", ["sum", "var", "median"])
    return tuple(groups.layers[name] for name in ("sum", "var", "median"))


@pytest.mark.filterwarnings("ignore:Some cells have zero counts:UserWarning")
@pytest.mark.parametrize("declared", [sparse.csc_matrix, sparse.csr_matrix])
@pytest.mark.parametrize("step", [qc, lazy_factors, filter_and_aggregate])
def test_csc_blocks_give_the_results_of_csr_blocks(
    step: Any, declared: type, counts: Any, make_adata: Any, dense: Any, block_loads: Any
) -> None:
    """Also if the metadata of the array says that the blocks are CSR."""
    counts = counts.astype(np.float32)
    expected = step(make_adata(block_loads.dask(counts)))
    found = step(make_adata(csc_blocks(counts, declared=declared)))
    pairs = zip(*(x if isinstance(x, tuple) else (x,) for x in (found, expected)), strict=True)
    for one, other in pairs:
        np.testing.assert_array_equal(dense(one), dense(other))


def test_results_of_csc_blocks_are_declared_as_csr(counts: Any, make_adata: Any) -> None:
    adata = make_adata(csc_blocks(counts.astype(np.float32), declared=sparse.csc_matrix))
    sa.pp.log1p(adata)
    assert adata.X._meta.format == "csr"
    assert adata.X.compute(scheduler="synchronous").format == "csr"


def same(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    assert got.shape == want.shape
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name), strict=True)


@pytest.mark.parametrize("kind", [sparse.csc_matrix, sparse.csc_array])
@pytest.mark.parametrize("shape", [(700, 3000), (3000, 700), (250_000, 3)])
@pytest.mark.parametrize("dtype", ["f4", "u2", "?"])
def test_csc_becomes_the_csr_that_scipy_makes(kind, shape, dtype):
    """In several parts, with empty lines, genes in any order and a gene twice in a cell."""
    rng = np.random.default_rng(0)
    n = 400_000
    cells, genes = rng.integers(shape[0], size=n), rng.integers(shape[1] // 2, size=n) * 2
    order = np.argsort(genes, kind="stable")
    ends = np.searchsorted(genes[order], np.arange(shape[1] + 1))
    x = kind((rng.integers(1, 9, n).astype(dtype), cells[order], ends), shape=shape)
    same(blocks.to_csr(x), x.tocsr())


def unordered(form: type, shape: tuple[int, int], dtype: str) -> Any:
    """400,000 values in lines whose entries are in any order; every other line is empty."""
    rng = np.random.default_rng(0)
    n, by_rows = 400_000, form((1, 1)).format == "csr"
    lines, entries = shape if by_rows else shape[::-1]
    line = np.sort(rng.integers(lines // 2, size=n) * 2)
    ends = np.searchsorted(line, np.arange(lines + 1))
    values = rng.integers(0, 9, n).astype(dtype)
    return form((values, rng.integers(entries, size=n), ends), shape=shape)


@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.csc_matrix, sparse.csc_array])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(700, 3000), (3000, 700)])
def test_threads_select_what_scipy_selects(form: type, axis: int, shape: tuple[int, int]) -> None:
    x = unordered(form, shape, "f4")
    some = np.flatnonzero(np.random.default_rng(1).random(shape[axis]) < 0.3)
    for index in (some, some[:1], np.arange(shape[axis])):
        same(blocks.select_sorted(x, index, axis), x[index] if axis == 0 else x[:, index])


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(5, 3), (1600, 2500)])
def test_threads_select_what_numpy_selects(order: str, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    x = np.asarray(rng.random(shape), np.float32, order=order)
    for axis in (0, 1):
        some = np.flatnonzero(rng.random(shape[axis]) < 0.6)
        got = blocks.select_sorted(x, some, axis)
        assert got.flags.c_contiguous
        assert got.dtype == x.dtype
        np.testing.assert_array_equal(got, np.take(x, some, axis))


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("axis", ["obs", "var"])
def test_cells_that_are_not_there_are_refused(form: Any, axis: str) -> None:
    adata = ad.AnnData(form(np.ones((3, 3), np.float32)))
    with pytest.raises(IndexError):
        elements.subset(adata, np.array([0, 3]), axis)
    assert adata.shape == adata.X.shape == (3, 3)


def filters(adata: ad.AnnData) -> Any:
    calls = [(sa.pp.filter_cells, {"min_genes": 1}), (sa.pp.filter_genes, {"min_cells": 1})]
    calls += [(f, {"max_counts": 600}) for f in (sa.pp.filter_cells, sa.pp.filter_genes)]
    return tuple(array for call, bound in calls for array in call(adata.X, **bound))


def metrics(adata: ad.AnnData) -> Any:
    tables = sa.pp.calculate_qc_metrics(adata, qc_vars=["mt", "odd"], percent_top=None)
    return tuple(table[name].to_numpy() for table in tables for name in table)


def normalized(adata: ad.AnnData) -> Any:
    sa.pp.normalize_total(adata, key_added="factor")
    return adata.obs["factor"].to_numpy(), adata.X.toarray()


# Factors of the values 0 to 8: whole numbers, fractions, and sums that float64 does not hold.
@pytest.mark.parametrize(
    ("dtype", "factor"), [("f4", 1), ("i4", 1), ("f4", 0.37), ("f8", 2**50 - 1)]
)
@pytest.mark.parametrize("step", [filters, metrics, normalized])
def test_sums_in_the_order_of_genes_have_the_bits_of_those_by_rows(
    step: Any, dtype: str, factor: float
) -> None:
    x = unordered(sparse.csc_matrix, (3000, 700), dtype)
    if factor != 1:
        x.data *= x.dtype.type(factor)

    def result(x: Any) -> tuple[np.ndarray, ...]:
        adata = ad.AnnData(x)
        adata.var["mt"] = np.arange(700) % 50 == 0
        adata.var["odd"] = np.arange(700) % 2 == 1
        return step(adata)

    for got, want in zip(result(x.copy()), result(blocks.to_csr(x)), strict=True):
        np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.parametrize("expm1", [False, True])
@pytest.mark.parametrize("exact", [False, True])
def test_moments_of_csc_and_dense_are_those_of_csr(exact: bool, expm1: bool) -> None:
    """Whether the sums need errors (magnitudes far apart) or not, and whatever the groups."""
    rng = np.random.default_rng(0)
    x = np.log1p(rng.poisson(0.7, (900, 700)) * rng.random((900, 1))).astype(np.float32)
    x[:, 3], x[0, 0] = 0, 1.0 if exact else 1e-30
    codes = rng.integers(-1, 3, 900)
    for groups in (None, codes, np.sort(codes)):
        want = gene_moments(sparse.csr_matrix(x), groups, expm1=expm1)
        for other in (x, np.asfortranarray(x), sparse.csc_matrix(x)):
            got = gene_moments(other, groups, expm1=expm1)
            for name in ("groups", "n_cells", "sums", "expressed", "mean", "var"):
                assert getattr(got, name).tobytes() == getattr(want, name).tobytes()


@pytest.mark.parametrize("mask", [None, np.arange(60) % 3 > 0])
def test_scaled_csc_is_scaled_csr(mask: Any) -> None:
    x = sparse.random(60, 40, 0.4, "csc", np.float32, np.random.default_rng(0))
    got = sa.pp.scale(x, zero_center=False, max_value=1.5, mask_obs=mask)
    want = sa.pp.scale(x.tocsr(), zero_center=False, max_value=1.5, mask_obs=mask).tocsc()
    same(got, want)
    for name in ("data", "indices", "indptr"):
        assert not np.shares_memory(getattr(got, name), getattr(x, name))
