"""The gene-major copy has the values of X, the same bytes always, and single genes read from it."""

from __future__ import annotations

import logging
import shutil

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import scatlas as sa
import scatlas.io.products.gene_copy as gene_copy
import scatlas.io.zarr_writer.sharded_array as shards
from scatlas.compute.threads import use_threads
from scatlas.errors import InputError
from scatlas.io import CsrWriter, checksum, write_gene_copy
from scatlas.io.products.gene_copy import NAME

CELLS, GENES = 2000, 40


def matrix(seed=0):
    """Genes in every cell, in none, and in between; cells without values."""
    rng = np.random.default_rng(seed)
    shares = np.linspace(0, 1, GENES)
    dense = rng.random((CELLS, GENES)) < shares
    dense[[0, 9, CELLS - 1]] = False
    return sp.csr_matrix(np.where(dense, rng.random((CELLS, GENES)), 0).astype(np.float32))


def write(path, x, dtype=np.float32):
    with CsrWriter(path, n_vars=x.shape[1], data_dtype=dtype) as store:
        store.append(x)
        store.obs = pd.DataFrame({"n": np.arange(x.shape[0])}, index=names("c", x.shape[0]))
        store.var = pd.DataFrame(index=names("GENE", x.shape[1]))
    return path


def names(prefix, n):
    return [f"{prefix}{i}" for i in range(n)]


@pytest.fixture
def atlas(tmp_path):
    """An atlas without a copy, in a folder of its test."""
    return write(tmp_path / "atlas.zarr", matrix())


@pytest.fixture
def copied(atlas):
    write_gene_copy(atlas, atlas.with_name(NAME))
    return atlas


def test_the_copy_is_the_same_matrix_by_gene(copied):
    adata = ad.read_zarr(copied.with_name(NAME))
    expected = matrix().tocsc()
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(adata.X, part), getattr(expected, part))
    assert adata.X.dtype == np.float32
    assert adata.X.indices.dtype == adata.X.indptr.dtype == np.int32
    assert adata.obs.equals(ad.read_zarr(copied).obs)
    assert list(adata.var_names) == names("GENE", GENES)


@pytest.mark.parametrize("dtype", [np.float32, None], ids=["normalised", "counts"])
def test_neither_blocks_nor_threads_change_a_byte(tmp_path, dtype, monkeypatch):
    """With ranges of several genes, of one gene, and of a part of a gene."""
    monkeypatch.setattr(shards, "CHUNK_VALUES", 64)
    monkeypatch.setattr(shards, "SHARD_VALUES", 256)
    x = matrix()
    x.data = x.data if dtype else np.ceil(300 * x.data)
    store = write(tmp_path / "m.zarr", x, dtype)
    divide = gene_copy._Segments.ranges
    numbers = []

    def count_ranges(segments, limit):
        ranges = list(divide(segments, limit))
        numbers.append(len(ranges))
        return ranges

    monkeypatch.setattr(gene_copy._Segments, "ranges", count_ranges)
    digests = set()
    for budget, threads in ((64_000, 1), (64_000, 4), (600_000, 2), ("256MB", 3)):
        with use_threads(threads):
            write_gene_copy(store, tmp_path / "out.zarr", block_budget=budget)
        digests.add(checksum(tmp_path / "out.zarr"))
    assert len(digests) == 1
    assert numbers[1] > GENES > numbers[-1] == 1, "a premise: genes are divided, or all together"
    assert (x.tocsc() != ad.read_zarr(tmp_path / "out.zarr").X).nnz == 0


def test_a_matrix_without_values_and_one_without_cells(tmp_path):
    for n_cells in (5, 0):
        store = write(tmp_path / "m.zarr", sp.csr_matrix((n_cells, 3), dtype=np.float32))
        write_gene_copy(store, tmp_path / NAME)
        assert ad.read_zarr(tmp_path / NAME).X.shape == (n_cells, 3)
        np.testing.assert_array_equal(sa.get.gene(store, "GENE1"), np.zeros(n_cells, np.float32))


def test_leftovers_of_a_killed_run_are_removed(atlas):
    out = atlas.with_name(NAME)
    for name in (f".{NAME}.work", f".{NAME}.partial"):
        (atlas.with_name(name) / "old").mkdir(parents=True)
    write_gene_copy(atlas, out)
    assert {path.name for path in atlas.parent.iterdir()} == {atlas.name, NAME}


@pytest.mark.filterwarnings("ignore:Writing zarr v2")
def test_a_store_of_another_program_is_refused(tmp_path):
    ad.AnnData(matrix()).write_zarr(tmp_path / "other.zarr")
    with pytest.raises(InputError, match="only a store of scatlas with a CSR X"):
        write_gene_copy(tmp_path / "other.zarr", tmp_path / NAME)
    assert not (tmp_path / NAME).exists()


def test_a_gene_is_its_column_of_x(copied, caplog):
    whole = ad.read_zarr(copied)
    lazy = sa.read_lazy(copied)
    for gene in (0, 1, 17, GENES - 1):
        expected = matrix().toarray()[:, gene]
        for source in (copied, str(copied), lazy, whole):
            found = sa.get.gene(source, f"GENE{gene}")
            assert isinstance(found, np.ndarray)
            assert found.dtype == np.float32
            np.testing.assert_array_equal(found, expected)
    assert caplog.text == "", "no pass over X"


def test_parts_and_changes_of_a_lazy_x_are_computed(copied):
    lazy = sa.read_lazy(copied)
    dense = matrix().toarray()
    part = lazy[100:300]
    np.testing.assert_array_equal(sa.get.gene(part, "GENE30"), dense[100:300, 30])
    lazy.layers["twice"] = lazy.X * 2
    np.testing.assert_array_equal(sa.get.gene(lazy, "GENE30", layer="twice"), 2 * dense[:, 30])
    lazy.X = lazy.X * 3
    np.testing.assert_array_equal(sa.get.gene(lazy, "GENE30"), 3 * dense[:, 30])


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix, sp.csc_matrix, sp.csr_array])
def test_matrices_in_memory(kind):
    dense = matrix().toarray()
    adata = ad.AnnData(kind(dense), var=pd.DataFrame(index=names("GENE", GENES)))
    np.testing.assert_array_equal(sa.get.gene(adata, "GENE30"), dense[:, 30])


def test_without_a_copy_all_of_x_is_read_and_the_log_says_so(atlas, caplog):
    expected = matrix().toarray()[:, 30]
    for source in (atlas, sa.read_lazy(atlas)):
        caplog.clear()
        np.testing.assert_array_equal(sa.get.gene(source, "GENE30"), expected)
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert "all of X is read for one gene" in record.message
        assert f"{NAME} does not exist" in record.message
        assert "by_gene: true" in record.message


def test_the_copy_of_another_atlas_is_not_read(copied, caplog):
    shutil.rmtree(copied)
    x = matrix(1)
    write(copied, x)
    np.testing.assert_array_equal(sa.get.gene(copied, "GENE30"), x.toarray()[:, 30])
    assert "is the copy of another X" in caplog.text


def test_an_unknown_gene(copied):
    for name, hint in (("gene7", "close names are 'GENE7'"), ("epcam", "no name is close to it")):
        for source in (copied, sa.read_lazy(copied)):
            with pytest.raises(InputError, match=f"no gene '{name}' among its 40 genes: {hint}"):
                sa.get.gene(source, name)


def test_a_damaged_copy_is_an_error(copied):
    shard = copied.with_name(NAME) / "X/data/c/0"
    content = bytearray(shard.read_bytes())
    content[20:60] = bytes(40)
    shard.write_bytes(content)
    with pytest.raises(InputError, match=NAME):
        sa.get.gene(copied, "GENE30")
