"""Every measured gene of an atlas, from the copy by gene, from the plates' counts, and from X."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr

import scatlas as sa
import scatlas.io.products.gene_copy as gene_copy
import scatlas.io.products.gene_major as gene_major
import scatlas.io.zarr_writer.sharded_array as shards
from scatlas.compute.threads import use_threads
from scatlas.errors import InputError
from scatlas.io import CsrWriter, checksum, concat_on_disk, join_pieces, write_cells, write_piece
from scatlas.io.files.anndata_file import Store
from scatlas.io.products.gene_copy import NAME
from scatlas.io.zarr_writer.elements import consolidate, open_group_to_write, write_elem
from scatlas.matrix.select_normalize import select_and_log_normalize

SYMBOLS = {"g0": "CD3D", "g1": "SAME", "g2": "SAME", "g3": "MS4A1"}
# Genes by plate; the atlas has the first four of them.
GENES = {"p1": [f"g{i}" for i in range(12)], "p2": [f"g{i}" for i in range(11, -1, -2)]}
GENES["p3"] = [*GENES["p1"][:6], "only3"]
ATLAS_GENES = ["g1", "g3", "g5", "only3"]
KEPT = {"p1": 700, "p2": 300, "p3": 1}


def counts(plate: str) -> np.ndarray:
    """Cells x genes: genes in every cell and in none, empty cells, small and large counts."""
    rng = np.random.default_rng(len(plate) + ord(plate[1]))
    n_cells, n_genes = KEPT[plate] + 50, len(GENES[plate])
    x = rng.poisson(np.linspace(0, 4, n_genes), (n_cells, n_genes))
    x[:, -1] += 1
    x[[0, 7]] = 0
    x[3, 2] = 70_000 if plate == "p2" else 300
    return x


def kept(plate: str) -> np.ndarray:
    keep = np.ones(KEPT[plate] + 50, bool)
    keep[np.random.default_rng(1).permutation(len(keep))[:50]] = False
    return keep


def factors(plate: str) -> np.ndarray:
    totals = counts(plate)[kept(plate)].sum(axis=1)
    return totals / 7.3


def expected(gene: str, *, as_counts: bool = False) -> np.ndarray:
    """Values of a gene by the same kernel on dense counts; zeros where a plate lacks it."""
    parts = []
    for plate, genes in GENES.items():
        x = counts(plate)[kept(plate)]
        x = x[:, [genes.index(gene)]] if gene in genes else np.zeros((len(x), 1), int)
        if not as_counts:
            x = select_and_log_normalize(
                x.astype(np.uint32), np.arange(1), size_factors=factors(plate)
            )
        parts.append(x.ravel())
    return np.concatenate(parts)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Folder of the results of three plates, with the stores that look-ups of genes read."""
    folder = tmp_path_factory.mktemp("results")
    pieces, selected = {}, {}
    for plate, genes in GENES.items():
        own, keep = folder / "plates" / plate, kept(plate)
        own.mkdir(parents=True)
        names = np.array([f"{plate}_{i}" for i in range(len(keep))], object)
        var = pd.DataFrame({"symbol": [SYMBOLS.get(g, g.upper()) for g in genes]}, index=genes)
        x = sp.csr_matrix(counts(plate))
        with CsrWriter(own / "counts.zarr", n_vars=len(genes)) as store:
            store.append(x)
            store.obs, store.var = pd.DataFrame(index=names), var
        cells = pd.DataFrame({"row": np.flatnonzero(keep), "size_factor": factors(plate)})
        write_cells(own / "size_factors.parquet", cells, [names[keep]])
        pieces[plate], selected[plate] = own / NAME, own / "selected.zarr"
        write_piece(own / "counts.zarr", pieces[plate], keep=keep)
        dense = np.stack([expected(gene) for gene in ATLAS_GENES], axis=1)
        first = sum(KEPT[name] for name in list(GENES)[: list(GENES).index(plate)])
        with CsrWriter(selected[plate], n_vars=4, data_dtype=np.float32) as store:
            store.append(sp.csr_matrix(dense[first : first + KEPT[plate]]))
            store.obs = pd.DataFrame({"size_factor": factors(plate)}, index=names[keep])
            store.var = pd.DataFrame(index=ATLAS_GENES)
    concat_on_disk(selected, folder / "merged.zarr")
    join_pieces(pieces, folder / "merged.zarr", folder / NAME)
    shutil.copytree(folder / "merged.zarr", folder / "atlas.zarr")
    record = {
        "config": json.dumps({"genes": "union", "qc": {"gene_names": "symbol"}}),
        "plates": json.dumps([{"plate": plate} for plate in GENES]),
    }
    write_elem(open_group_to_write(folder / "atlas.zarr/uns"), "scatlas", record)
    consolidate(folder / "atlas.zarr")
    return folder


@pytest.fixture
def atlas(made, tmp_path) -> Path:
    """The atlas in a folder of its test."""
    shutil.copytree(made, tmp_path / "results", copy_function=shutil.copyfile)
    return tmp_path / "results/atlas.zarr"


ALL_GENES = [*GENES["p1"], "only3"]


def test_every_gene_has_the_bits_of_x(made, caplog):
    atlas = made / "atlas.zarr"
    lazy, whole = sa.read_lazy(atlas), ad.read_zarr(atlas)
    for gene in ALL_GENES:
        for source in (atlas, str(atlas), lazy):
            values = sa.get.gene(source, gene)
            assert values.dtype == np.float32
            np.testing.assert_array_equal(values, expected(gene))
            of_counts = sa.get.gene(source, gene, layer="counts")
            assert of_counts.dtype == np.uint32
            np.testing.assert_array_equal(of_counts, expected(gene, as_counts=True))
        if gene in ATLAS_GENES:
            np.testing.assert_array_equal(whole[:, gene].X.toarray().ravel(), expected(gene))
    assert "read" not in caplog.text, "no pass over X or over the plates"


def test_a_gene_that_plates_lack_is_zero_there_and_the_log_names_them(made, caplog):
    assert not sa.get.gene(made / "atlas.zarr", "only3")[:-1].any()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message == ("only3 is not measured on 2 of 3 plates, whose cells have 0: p1, p2")


def test_without_a_copy_one_pass_gives_the_same_bits(atlas, caplog):
    shutil.rmtree(atlas.with_name(NAME))
    caplog.set_level(logging.INFO)
    for source in (atlas, sa.read_lazy(atlas)):
        caplog.clear()
        values = sa.get.genes(source, [*ALL_GENES, "g0"])
        assert caplog.text.count("the plates' counts are read once") == 1
        assert (
            f"genes of {'adata' if source is not atlas else atlas}: 1,001 cells in" in caplog.text
        )
        assert f"all of X is read for one gene, because {atlas.with_name(NAME)} does" in caplog.text
        for i, gene in enumerate([*ALL_GENES, "g0"]):
            np.testing.assert_array_equal(values[:, i], expected(gene))
        of_counts = sa.get.genes(source, ["only3", "g0"], layer="counts")
        np.testing.assert_array_equal(of_counts[:, 1], expected("g0", as_counts=True))
    assert sa.get.genes(atlas, []).shape == (1001, 0)


def test_names_in_another_column(made):
    atlas = made / "atlas.zarr"
    np.testing.assert_array_equal(sa.get.gene(atlas, "CD3D"), expected("g0"))
    np.testing.assert_array_equal(sa.get.gene(atlas, "MS4A1"), expected("g3"))
    with pytest.raises(InputError, match=r"2 genes have the name 'SAME' .* give one of 'g1', 'g2'"):
        sa.get.gene(atlas, "SAME")
    names = pd.DataFrame({"symbol": ["A", "B"]}, index=["x", "y"])
    adata = ad.AnnData(np.eye(2, dtype=np.float32), var=names)
    np.testing.assert_array_equal(sa.get.gene(adata, "B"), [0, 1])


def test_an_unknown_gene(atlas):
    ways = [(atlas, "among its 13 genes"), (sa.read_lazy(atlas), "among its 13 genes")]
    for source, where in ways:
        with pytest.raises(InputError, match=f"'ms4a2'.*{where}|'ms4a2'.*13 genes.*'MS4A1'"):
            sa.get.gene(source, "ms4a2")
        with pytest.raises(InputError, match="has no 'count'"):
            sa.get.gene(source, "g0", layer="count")
        np.testing.assert_array_equal(sa.get.genes(source, "g0")[:, 0], expected("g0"))
    shutil.rmtree(atlas.with_name("plates"))
    with pytest.raises(InputError, match="counts of its plates are not beside it: no name is clos"):
        sa.get.gene(atlas, "epcam")
    shutil.rmtree(atlas.with_name(NAME))
    with pytest.raises(InputError, match=r"counts of 'g0' are neither in by_gene.zarr \(.* exist"):
        sa.get.gene(atlas, "g0", layer="counts")


def test_a_copy_links_large_plates_and_needs_no_piece(made, tmp_path):
    links = {f.stat().st_ino for f in (made / "plates").glob("*/by_gene.zarr/X/*/c/*")}
    files = [f.stat().st_ino in links for f in sorted((made / NAME / "counts/c").iterdir())]
    assert files == [True, False], "p2, in another order of genes; p1 and p3 together"
    for name in ("atlas.zarr", NAME):
        shutil.copytree(made / name, tmp_path / name)
    np.testing.assert_array_equal(sa.get.gene(tmp_path / "atlas.zarr", "g0"), expected("g0"))


def test_small_plates_are_joined_alike_in_ranges_and_by_threads(atlas, monkeypatch):
    """A gene of two of them is one read; of linked plates one each."""
    pieces = {plate: atlas.parent / "plates" / plate / NAME for plate in GENES}
    copy, digests = atlas.with_name(NAME), set()
    for at_once, threads in ((2**23, 1), (500, 1), (500, 4)):
        monkeypatch.setattr(gene_copy, "_VALUES_AT_ONCE", at_once)
        with use_threads(threads):
            join_pieces(pieces, atlas.with_name("merged.zarr"), copy)
        digests.add(checksum(copy))
    assert len(digests) == 1
    for limit, n_reads in ((2**26, 2), (1000, 3), (0, 3)):
        monkeypatch.setattr(gene_copy, "_SMALL_VALUES", limit)
        join_pieces(pieces, atlas.with_name("merged.zarr"), copy)
        opened = gene_copy.find_gene_copy(Store.find(atlas))
        assert len(opened.read(5)) == n_reads
        for gene in ALL_GENES:
            np.testing.assert_array_equal(sa.get.gene(atlas, gene), expected(gene))


def test_a_copy_of_some_genes(atlas, caplog):
    """Named by either name; a plate without one of them has the others."""
    plates = {plate: atlas.parent / "plates" / plate for plate in GENES}
    for plate, folder in plates.items():
        options = {"keep": kept(plate), "genes": ["only3", "CD3D", "g5", "absent"]}
        write_piece(folder / "counts.zarr", folder / NAME, **options)
    pieces = {plate: folder / NAME for plate, folder in plates.items()}
    facts = join_pieces(pieces, atlas.with_name("merged.zarr"), atlas.with_name(NAME))
    assert (facts["n_genes"], facts["n_genes_not_on_all_plates"]) == (3, 2)
    caplog.set_level(logging.INFO)
    for gene, n_passes in (("g0", 0), ("g5", 0), ("g7", 1)):
        np.testing.assert_array_equal(sa.get.gene(atlas, gene), expected(gene))
        assert caplog.text.count("read once") == n_passes


def test_an_edited_x_is_read_and_other_cells_are_not_taken_for_these(atlas, caplog):
    x = ad.read_zarr(atlas).X
    with CsrWriter(atlas.with_name("new.zarr"), n_vars=4, data_dtype=np.float32) as store:
        store.append(2 * x)
    shutil.rmtree(atlas / "X")
    shutil.copytree(atlas.with_name("new.zarr") / "X", atlas / "X")
    np.testing.assert_array_equal(sa.get.gene(atlas, "g1"), 2 * expected("g1"))
    assert f"{atlas.with_name(NAME)} is of another X" in caplog.text
    np.testing.assert_array_equal(sa.get.gene(atlas, "g0"), expected("g0"))
    group = open_group_to_write(atlas / "obs")
    write_elem(group, "size_factor", group["size_factor"][:][::-1])
    consolidate(atlas)
    with pytest.raises(InputError, match="no gene 'g0' among its 4 genes"):
        sa.get.gene(atlas, "g0")


def test_a_damaged_copy_is_an_error(atlas):
    shard = atlas.with_name(NAME) / "cells/c/1"  # of p1 and p3
    content = bytearray(shard.read_bytes())
    content[20:60] = bytes(40)
    shard.write_bytes(content)
    with pytest.raises(InputError, match=rf"{NAME}.*gene g"):
        sa.get.gene(atlas, "g11")


def test_pieces_of_other_cells_are_refused(atlas):
    piece = atlas.parent / "plates/p1" / NAME
    write_piece(piece.with_name("counts.zarr"), piece, keep=kept("p1") & (np.arange(750) > 99))
    with pytest.raises(InputError, match="run the steps by_gene and concat_on_disk again"):
        join_pieces({"p1": piece}, atlas.with_name("merged.zarr"), atlas.with_name(NAME))


@pytest.mark.parametrize("dtype", [np.float32, None], ids=["normalised", "counts"])
def test_neither_blocks_nor_threads_change_a_byte(tmp_path, dtype, monkeypatch):
    """With ranges of several genes, of one gene, and of a part of a gene."""
    monkeypatch.setattr(shards, "CHUNK_VALUES", 64)
    monkeypatch.setattr(shards, "SHARD_VALUES", 256)
    rng = np.random.default_rng(0)
    x = sp.csr_matrix((rng.random((2000, 40)) < np.linspace(0, 1, 40)) * rng.integers(1, 300, 40))
    with CsrWriter(tmp_path / "m.zarr", n_vars=40, data_dtype=dtype) as store:
        store.append(x if dtype is None else x.astype(dtype))
    divide, numbers = gene_major._Segments.ranges, []

    def count_ranges(segments, limit):
        ranges = list(divide(segments, limit))
        numbers.append(len(ranges))
        return ranges

    monkeypatch.setattr(gene_major._Segments, "ranges", count_ranges)
    digests = set()
    for budget, threads in ((64_000, 1), (64_000, 4), (600_000, 2), ("256MB", 3)):
        with use_threads(threads):
            matrix, _ = sa.io.read_matrix(tmp_path / "m.zarr", compact=True, block_budget=budget)
            gene_major.write_csc(matrix, tmp_path / "X", block_budget=budget)
        digests.add(checksum(tmp_path / "X"))
    written = ad.io.read_elem(zarr.open_group(tmp_path / "X"))
    assert (written != x.tocsc()).nnz == 0
    assert len(digests) == 1
    assert numbers[1] > 40 > numbers[-1] == 1, "a premise: genes are divided, or all together"


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix, sp.csc_matrix, sp.csr_array])
def test_matrices_in_memory(kind):
    dense = counts("p1")
    adata = ad.AnnData(kind(dense), var=pd.DataFrame(index=GENES["p1"]))
    np.testing.assert_array_equal(sa.get.gene(adata, "g5"), dense[:, 5])
    with pytest.raises(InputError, match="adata: there is no gene 'g99' among its 12 genes"):
        sa.get.gene(adata, "g99")


def test_parts_and_changes_of_a_lazy_x_are_computed(made):
    lazy = sa.read_lazy(made / "atlas.zarr")
    np.testing.assert_array_equal(sa.get.gene(lazy[100:300], "g1"), expected("g1")[100:300])
    lazy.layers["twice"] = lazy.X * 2
    np.testing.assert_array_equal(sa.get.gene(lazy, "g1", layer="twice"), 2 * expected("g1"))
    lazy.X = lazy.X * 3
    np.testing.assert_array_equal(sa.get.gene(lazy, "g1"), 3 * expected("g1"))
    with pytest.raises(InputError, match="no gene 'g0' among its 4 genes"):
        sa.get.gene(lazy, "g0")
