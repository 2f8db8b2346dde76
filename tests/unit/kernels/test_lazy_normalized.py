"""Blocks that are normalised on first use of their values; blocks that are computed once."""

from __future__ import annotations

import threading
import warnings

import anndata as ad
import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp

import scatlas as sa
from scatlas import blocks
from scatlas.blocks.dask_graph import SharedResults
from scatlas.io.matrices.csr_row_block import RowBlock
from scatlas.kernels.counts import lazy_normalized, normalize_cpu
from scatlas.kernels.counts.lazy_normalized import LazyNormalizedCsr, defer_normalization
from scatlas.kernels.moments.moments_cpu import moments
from scatlas.matrix.gene_moments import gene_moments
from scatlas.matrix.size_factors import cell_totals


def same(a: sp.csr_matrix, b: sp.csr_matrix) -> None:
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(a, part), getattr(b, part))


def normalized(counts: sp.csr_matrix, *, log: bool) -> tuple[LazyNormalizedCsr, sp.csr_matrix]:
    """A lazy block whose values are not computed yet, and the same block computed."""
    totals = np.asarray(counts.sum(axis=1)).ravel()
    scales = 1 / np.where(totals == 0, 1, totals / np.median(totals))
    with defer_normalization():
        block = lazy_normalized.scale_rows(counts, scales)
        block = lazy_normalized.log1p(block) if log else block
    expected = normalize_cpu.scale_rows(counts, scales)
    return block, normalize_cpu.log1p(expected) if log else expected


@pytest.mark.parametrize("log", [False, True])
def test_values_are_those_of_the_kernels(counts, count_dtype, log):
    block, expected = normalized(counts.astype(count_dtype), log=log)
    assert block.pending
    assert (block.shape, block.nnz, block.dtype) == (expected.shape, expected.nnz, expected.dtype)
    assert block.pending
    same(block, expected)
    assert block.pending is None


COLUMNS = [*map(np.array, ([1, 4, 30], [30, 4, 1], [4, 4], [-1, 3])), np.arange(50) % 3 == 0]


@pytest.mark.parametrize("key", [*COLUMNS, slice(3, 9), 7])
def test_columns_are_those_that_scipy_takes(counts, key):
    for log in (False, True):
        for rows in (slice(None), slice(5, 9)):
            block, expected = normalized(counts, log=log)
            np.testing.assert_array_equal(block[rows, key].toarray(), expected[rows, key].toarray())


def test_another_thread_may_work_a_shared_block_out_at_any_moment(counts):
    class Settling(LazyNormalizedCsr):
        """As if another thread had worked it out just after each look at what is pending."""

        @property
        def pending(self):
            found = self.__dict__["at_first"]
            if found is not None:
                self.data = normalize_cpu.log1p(normalize_cpu.scale_rows(*found[:2]).data)
            return found

        @pending.setter
        def pending(self, value):
            self.__dict__["at_first"] = value

    columns = np.array([1, 4, 30])
    plain, expected = normalized(counts, log=True)
    for use in (
        lambda block: block.dtype,
        lambda block: block[:, columns].toarray(),
        lambda block: block[5:9].toarray(),
        lambda block: block.data,
        lambda block: lazy_normalized.log1p(block).toarray(),
    ):
        block = Settling.from_counts(*plain.pending[:2], log=True)
        np.testing.assert_array_equal(use(block), use(expected))


def test_only_plain_counts_in_our_own_passes_are_deferred(counts):
    scales = np.ones(counts.shape[0])
    assert type(lazy_normalized.scale_rows(counts, scales)) is sp.csr_matrix
    with defer_normalization():
        block = lazy_normalized.scale_rows(counts, scales)
        assert type(block) is LazyNormalizedCsr
        assert isinstance(lazy_normalized.scale_rows(counts.toarray(), scales), np.ndarray)
        twice = lazy_normalized.log1p(lazy_normalized.log1p(block))
        other = lazy_normalized.log1p(block, 2)
        with defer_normalization():
            pass
        assert type(lazy_normalized.scale_rows(counts, scales)) is LazyNormalizedCsr
    assert type(lazy_normalized.scale_rows(counts, scales)) is sp.csr_matrix
    plain = normalize_cpu.scale_rows(counts, scales)
    same(twice, normalize_cpu.log1p(normalize_cpu.log1p(plain)))
    same(other, normalize_cpu.log1p(plain, 2))


@pytest.fixture
def lazy(counts, block_loads) -> ad.AnnData:
    adata = ad.AnnData(block_loads.dask(counts.astype(np.float32), rows=7))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the empty cells
        sa.pp.normalize_total(adata)
    sa.pp.log1p(adata)
    return adata


@pytest.mark.parametrize("expm1", [False, True])
@pytest.mark.parametrize("groups", [False, True])
def test_moments_of_lazy_logarithms_need_none(lazy, monkeypatch, expm1, groups):
    """To the same bits, from the counts: nothing is normalised on the way."""
    codes = np.arange(lazy.n_obs) % 3 - 1 if groups else None
    expected = moments(lazy.X.compute(scheduler="sync"), codes, expm1=expm1)
    monkeypatch.setattr(normalize_cpu, "scale_rows", None)
    found = gene_moments(lazy.X, codes, expm1=expm1)
    for name in ("groups", "n_cells", "expressed", "mean", "var"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_moments_of_other_values_take_them(lazy):
    """Logarithms to another base, and exponentials of what is no logarithm."""
    x = sa.pp.log1p(lazy.X)
    expected = moments(x.compute(scheduler="sync"), expm1=True)
    np.testing.assert_array_equal(gene_moments(x, expm1=True).var, expected.var)
    expected = moments(lazy.X.compute(scheduler="sync"), expm1=True, log_base=np.log(2))
    found = gene_moments(lazy.X, expm1=True, log_base=np.log(2))
    np.testing.assert_array_equal(found.var, expected.var)


def test_blocks_that_others_get_are_plain(lazy):
    assert type(lazy.X.blocks[1].compute()) is sp.csr_matrix
    kept = lazy.X.persist()
    assert {type(kept.blocks[i].compute()) for i in range(3)} == {sp.csr_matrix}
    for block in blocks.stream(lazy.X):  # computed in the threads, not by who takes the block
        assert block.data.size == block.nnz
        assert getattr(block, "pending", None) is None


def test_genes_are_cut_before_they_are_normalised(lazy, monkeypatch):
    index = np.array([30, 2, 7])
    expected = lazy.X.compute()[:, index].toarray()
    sizes = set()
    scale = normalize_cpu.scale_rows
    monkeypatch.setattr(
        normalize_cpu, "scale_rows", lambda x, s: (sizes.add(x.shape[1]), scale(x, s))[1]
    )
    for x in (blocks.select_genes(lazy.X, index), lazy[:, index].copy().X):
        found = np.vstack([block.toarray() for block in blocks.stream(x)])
        np.testing.assert_array_equal(found, expected)
    assert sizes == {3}


# Each block once


def numbered(n_blocks: int, rows: int) -> tuple[da.Array, list[int]]:
    """Dask CSR blocks, and a list that says which were made."""
    made = []
    lock = threading.Lock()

    def block(i: int) -> sp.csr_matrix:
        with lock:
            made.append(i)
        return sp.csr_matrix(np.arange(rows * 3).reshape(rows, 3) + 100.0 * i)

    meta = sp.csr_matrix((0, 0))
    parts = [da.from_delayed(dask.delayed(block)(i), (rows, 3), meta=meta) for i in range(n_blocks)]
    return da.concatenate(parts), made


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_rows_taken_by_anndata_make_no_block_twice(workers):
    """Dask rechunks the rest, so that its blocks overlap those below."""
    x, made = numbered(12, 10)
    mask = np.random.default_rng(0).random(120) < 0.9
    taken = ad.AnnData(x)[mask].copy().X
    assert taken.chunks[0] != tuple(mask.reshape(12, 10).sum(axis=1))
    expected = taken.compute().toarray()
    made.clear()
    with dask.config.set(num_workers=workers):
        found = [block.toarray() for block in blocks.stream(taken)]
    np.testing.assert_array_equal(np.vstack(found), expected)
    assert sorted(made) == list(range(12))


def test_a_block_that_is_needed_far_away_is_not_kept():
    """Rows in any order would keep all blocks in memory."""
    x, made = numbered(8, 5)
    order = np.random.default_rng(0).permutation(40)
    taken = x[order]
    found = np.vstack([block.toarray() for block in blocks.stream(taken)])
    np.testing.assert_array_equal(found, x.compute().toarray()[order])
    assert len(made) > 16


def test_what_is_shared_is_forgotten_when_the_last_has_it():
    below = {"a": set(), "b": {"a"}, "c": {"b"}, "x": {"b", "c"}, "y": {"b", "c"}, "z": {"c"}}
    shared = SharedResults(below, ["x", "y", "z"])
    made = []

    def make(key: str) -> str:
        made.append(key)
        for k in sorted(shared.requests(key)):
            shared.get(k, make)
        return key

    for key in ("x", "y", "z"):
        make(key)
    assert sorted(made) == ["a", "b", "c", "x", "y", "z"]
    assert not shared._results


# Values without indices


def test_totals_read_no_indices(counts, tmp_path, monkeypatch):
    path = tmp_path / "plate.h5ad"
    ad.AnnData(counts.astype(np.float32)).write_h5ad(path, compression="gzip")
    adata = sa.read_lazy(path, block_budget=8 * 700)
    assert adata.X.npartitions > 2
    genes = np.arange(counts.shape[1]) % 2 == 0
    of_some = cell_totals(adata.X, genes)
    parts = []
    read = RowBlock._read
    monkeypatch.setattr(
        RowBlock, "_read", lambda self, i, *a, **k: (parts.append(i), read(self, i, *a, **k))[1]
    )
    np.testing.assert_array_equal(cell_totals(adata.X), counts.sum(axis=1).A1)
    assert set(parts) == {0}
    np.testing.assert_array_equal(of_some, counts[:, genes].sum(axis=1).A1)
    halved = adata.X * 0.5
    np.testing.assert_array_equal(cell_totals(halved), counts.sum(axis=1).A1 / 2)
