"""The product opens anywhere, shares its chunks, and its cells are read in storage order."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from types import SimpleNamespace

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr
from anndata.io import read_elem

import scatlas.io.matrices.subset as subset
import scatlas.io.tables.column as columns
import scatlas.io.zarr_writer.sharded_array as shards
from scatlas.errors import InputError
from scatlas.io.files.checksums import checksum
from scatlas.io.files.local_zarr import RowArray
from scatlas.io.matrices.csr_writer import CsrWriter
from scatlas.io.matrices.subset import read_subset
from scatlas.io.products.assemble_atlas import assemble
from scatlas.io.products.embeddings import component_blocks, write_embedding, write_map, write_pca
from tests.helpers.frames import assert_same_frame

N, GENES, COMPS = 120, 30, 6
UNS = {"consensus": {"min_plates": 3}}


@pytest.fixture(scope="module", autouse=True)
def small_pieces():
    """Everything in pieces that are smaller than the store, and that cut rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "CHUNK_VALUES", 64)
        patch.setattr(shards, "SHARD_VALUES", 256)
        patch.setattr(columns, "ROWS", 17)
        patch.setattr(subset, "_OFFSETS", 23)
        yield


def matrix(seed=0):
    rng = np.random.default_rng(seed)
    x = sp.random(N, GENES, 0.4, format="csr", rng=rng, dtype=np.float32)
    dense = x.toarray()
    dense[[0, 7, 8, N - 1]] = 0  # empty cells, at both ends
    return sp.csr_matrix(dense)


def names():
    return [f"g{i}" for i in range(GENES)]


def components():
    rng = np.random.default_rng(1)
    return SimpleNamespace(
        mean=rng.random(GENES),
        PCs=rng.random((GENES, COMPS)),
        variance=np.arange(COMPS, 0, -1.0),
        variance_ratio=np.arange(COMPS, 0, -1.0) / 30,
    )


def projected():
    return np.random.default_rng(2).random((N, COMPS)).astype(np.float32)


def table():
    i = np.arange(N)
    return pd.DataFrame(
        {
            "n": i,
            "gap": pd.array([None if k % 5 == 0 else k for k in i], dtype="Int64"),
            "yes": pd.array([None if k % 5 == 0 else k % 2 == 0 for k in i], dtype="boolean"),
            "plate": pd.Categorical.from_codes(i // 40, ["b", "a", "c"]),
            "drug": pd.Categorical.from_codes(i % 4 - 1, ["z", "y", "x"]),
            "name": [f"µ{k}" for k in i],
        },
        index=pd.Index([f"cell{k}" for k in i], name="BARCODE"),
    )


def write_merged(path, x=None):
    with CsrWriter(path, n_vars=GENES, data_dtype=np.float32) as store:
        store.append(matrix() if x is None else x)
        store.obs = table()
        store.var = pd.DataFrame({"mt": False, "means": 0.0}, index=names())
    return path


def write_components(path, *, step=7, n_cells=N, genes=None):
    x = projected()
    write_pca(
        path,
        x_pca=(x[i : i + step] for i in range(0, N, step)),
        n_cells=n_cells,
        components=components(),
        genes=names() if genes is None else genes,
        params={"zero_center": False, "use_highly_variable": True},
    )
    return path


def gene_facts():
    # In another order and with another gene: facts go by name.
    facts = pd.DataFrame(
        {"means": np.arange(GENES + 1.0), "n_plates": np.arange(GENES + 1)},
        index=[*names(), "other"],
    )
    return facts.iloc[::-1]


def build(folder):
    merged = write_merged(folder / "merged.zarr")
    pca = write_components(folder / "pca.zarr")
    atlas = folder / "atlas.zarr"
    facts = assemble(merged, pca, atlas, var=gene_facts(), uns=UNS)
    assert facts == {"n_cells": N, "n_genes": GENES, "n_comps": COMPS}
    return SimpleNamespace(merged=merged, pca=pca, atlas=atlas)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Stores that no test changes."""
    return build(tmp_path_factory.mktemp("built"))


def assert_is_atlas(adata):
    x = matrix()
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(adata.X, part), getattr(x, part))
    assert_same_frame(adata.obs, table())
    assert list(adata.var_names) == names()
    assert list(adata.var["means"]) == list(adata.var["n_plates"]) == list(range(GENES))
    assert list(adata.var["mt"]) == [False] * GENES
    np.testing.assert_array_equal(adata.obsm["X_pca"], projected())
    np.testing.assert_array_equal(adata.varm["PCs"], components().PCs)
    assert adata.uns["consensus"] == UNS["consensus"]
    pca = adata.uns["pca"]
    assert set(pca) == {"params", "variance", "variance_ratio"}
    np.testing.assert_array_equal(pca["variance"], components().variance)
    np.testing.assert_array_equal(pca["variance_ratio"], components().variance_ratio)
    assert pca["params"] == {"zero_center": False, "use_highly_variable": True}


@pytest.mark.parametrize("n_comps", [None, 1, 4, COMPS])
def test_components_are_read_in_pieces(built, n_comps, monkeypatch):
    monkeypatch.setattr("scatlas.io.products.embeddings._VALUES_AT_ONCE", 5)
    firsts, pieces = zip(*component_blocks(built.pca, n_comps), strict=True)
    assert list(firsts) == [0, *np.cumsum([len(piece) for piece in pieces])[:-1]]
    np.testing.assert_array_equal(np.concatenate(pieces), projected()[:, :n_comps])


def map_parts(size):
    """Places and columns of all cells, ``size`` at a time."""
    rng = np.random.default_rng(3)
    places = rng.normal(size=(N, 2)).astype(np.float32)
    columns = {
        "leiden": np.array([1, 2, 1, 0])[np.arange(N) % 4],
        "drug": rng.random(N),
        "map_distance": rng.random(N),
    }
    for i in range(0, N, size):
        part = slice(i, i + size)
        yield places[part], {name: values[part] for name, values in columns.items()}


def test_the_map_of_all_cells_is_a_part_of_the_atlas(built, tmp_path, caplog):
    """Its columns replace those of the same names; the merged store keeps its own."""
    stores = [tmp_path / "map7.zarr", tmp_path / "map.zarr"]
    for store, size in zip(stores, (7, N), strict=True):
        uns = {"umap": {"params": {"a": 0.5}}, "map": {"method": "project"}}
        numbers = write_map(store, map_parts(size), clusters=["0", "1", "2"], uns=uns)
        assert numbers == [1, 0, 2], "by size, the first of equal ones before"
    assert checksum(stores[0]) == checksum(stores[1]), "bytes depend on the parts"
    before = checksum(built.merged)
    out = tmp_path / "atlas.zarr"
    with caplog.at_level("INFO"):
        assemble(built.merged, built.pca, out, var=gene_facts(), cell_map=stores[0])
    assert "obs['drug'] of the plates gives way to that of the map" in caplog.text
    ((places, columns),) = map_parts(N)
    adata = ad.read_zarr(out)
    np.testing.assert_array_equal(adata.obsm["X_umap"], places)
    assert list(adata.obs["leiden"].cat.categories) == ["0", "1", "2"]
    by_size = np.array(numbers)[columns["leiden"]]
    np.testing.assert_array_equal(adata.obs["leiden"].cat.codes, by_size)
    for name in ("drug", "map_distance"):
        np.testing.assert_array_equal(adata.obs[name], columns[name].astype(np.float32))
    rest = [name for name in table() if name != "drug"]
    assert_same_frame(adata.obs[rest], table()[rest])
    assert adata.uns["umap"]["params"]["a"] == 0.5
    assert adata.uns["map"]["method"] == "project"
    assert checksum(built.merged) == before


def test_a_map_of_other_cells_is_refused(built, tmp_path):
    store = tmp_path / "map.zarr"
    parts = [(np.zeros((N - 1, 2), np.float32), {"leiden": np.zeros(N - 1, np.int64)})]
    write_map(store, parts, clusters=["0"], uns={})
    with pytest.raises(InputError, match=f"holds {N - 1} cells"):
        assemble(built.merged, built.pca, tmp_path / "new.zarr", var=gene_facts(), cell_map=store)
    assert not (tmp_path / "new.zarr").exists()


def test_further_coordinates_are_a_part_of_the_atlas(built, tmp_path):
    moved = projected()[:, ::-1][:, :4].copy()
    write_embedding(tmp_path / "harmony.zarr", "X_moved", moved)
    out = tmp_path / "atlas.zarr"
    obsm = {"X_moved": tmp_path / "harmony.zarr"}
    options = {"var": gene_facts(), "uns": UNS}
    assemble(built.merged, built.pca, out, obsm=obsm, **options)
    adata = ad.read_zarr(out)
    assert_is_atlas(adata)
    np.testing.assert_array_equal(adata.obsm["X_moved"], moved)
    write_embedding(tmp_path / "harmony.zarr", "X_moved", moved[1:])
    with pytest.raises(InputError, match=r"harmony.zarr holds 119 cells, .* 120"):
        assemble(built.merged, built.pca, tmp_path / "other.zarr", obsm=obsm, **options)


def test_anndata_opens_the_atlas(built):
    """Warnings are errors: none is given."""
    assert_is_atlas(ad.read_zarr(built.atlas))
    assert_is_atlas(ad.experimental.read_lazy(built.atlas).to_memory())


def chunk_files(store):
    return sorted(p for p in store.rglob("*") if p.is_file() and p.name != "zarr.json")


def test_chunks_are_linked_and_metadata_are_not(built):
    pairs = {
        here: source / here.relative_to(built.atlas / cut)
        for part, source, cut in (
            *(("X", built.merged, ""), ("obs", built.merged, "")),
            ("obsm", built.pca, "obsm"),
        )
        for here in chunk_files(built.atlas / part)
    }
    assert len(pairs) > 20
    assert all(here.samefile(there) for here, there in pairs.items())
    for file in built.atlas.rglob("zarr.json"):
        assert file.stat().st_nlink == 1


def test_atlas_survives_its_sources(tmp_path):
    built = build(tmp_path)
    before = checksum(built.atlas)
    other = matrix(9)
    write_merged(built.merged, other)  # written again
    assert (other != ad.read_zarr(built.merged).X).nnz == 0
    assert checksum(built.atlas) == before
    shutil.rmtree(built.merged)
    shutil.rmtree(built.pca)
    assert_is_atlas(ad.read_zarr(built.atlas))


class _Os:
    """The os module of one module alone (zarr makes links, too), where links fail."""

    def __init__(self, code):
        self._code = code

    def __getattr__(self, name):
        return getattr(os, name)

    def link(self, *_):
        raise OSError(self._code, os.strerror(self._code))


def test_copies_where_links_are_impossible(built, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("scatlas._util.operating_system.os", _Os(errno.EXDEV))
    with caplog.at_level(logging.INFO, "scatlas"):
        assemble(built.merged, built.pca, tmp_path / "copied.zarr", var=gene_facts(), uns=UNS)
    assert checksum(tmp_path / "copied.zarr") == checksum(built.atlas)
    assert not chunk_files(tmp_path / "copied.zarr")[0].samefile(chunk_files(built.atlas)[0])
    # One line for each store, not for each file.
    assert caplog.text.count("copied, not linked: Invalid cross-device link") == 2


def test_other_errors_of_links_are_not_hidden(built, tmp_path, monkeypatch):
    monkeypatch.setattr("scatlas._util.operating_system.os", _Os(errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        assemble(built.merged, built.pca, tmp_path / "new.zarr", var=gene_facts())
    assert not (tmp_path / "new.zarr").exists()


def test_components_of_something_else_are_refused(built, tmp_path):
    wrong_genes = write_components(tmp_path / "g.zarr", genes=[*names()[:-1], "x"])
    with pytest.raises(InputError, match="other genes"):
        assemble(built.merged, wrong_genes, tmp_path / "new.zarr", var=gene_facts())
    with CsrWriter(tmp_path / "few.zarr", n_vars=GENES, data_dtype=np.float32) as store:
        store.append(matrix()[:5])
        store.var = pd.DataFrame(index=names())
    with pytest.raises(InputError, match="holds 120 cells"):
        assemble(tmp_path / "few.zarr", built.pca, tmp_path / "new.zarr", var=gene_facts())
    with pytest.raises(InputError, match="gene 'g4' is not in the table"):
        assemble(built.merged, built.pca, tmp_path / "new.zarr", var=gene_facts().drop("g4"))


def test_pca_store(tmp_path):
    one = write_components(tmp_path / "one.zarr", step=1)
    all_ = write_components(tmp_path / "all.zarr", step=N)
    assert checksum(one) == checksum(all_)
    found = read_elem(zarr.open_group(one, mode="r"))
    np.testing.assert_array_equal(found["X_pca"], projected())
    assert found["X_pca"].dtype == np.float32
    for name, value in vars(components()).items():
        np.testing.assert_array_equal(found[name], value)
    assert list(found["genes"]) == names()
    array = zarr.open_array(one / "X_pca", mode="r")
    assert array.chunks == (8, COMPS)  # whole rows, at most 64 values
    assert array.shards == (32, COMPS)


def test_pca_of_too_few_cells_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="120 cells were projected, 121 are due"):
        write_components(tmp_path / "pca.zarr", n_cells=121)
    with pytest.raises(ValueError, match="29 gene names for loadings of 30"):
        write_components(tmp_path / "pca.zarr", genes=names()[:-1])
    assert list(tmp_path.iterdir()) == []


CHOSEN = {
    "some": np.sort(np.random.default_rng(3).choice(N, 40, replace=False)),
    "few": np.array([8, 70]),
    "empty cells": np.array([0, 7, 8, N - 1]),
    "all": np.arange(N),
    "run": np.arange(50, 90, dtype=np.uint32),
    "none": np.array([], int),
}


@pytest.mark.parametrize("budget", ["1kB", "20kB", "256MB"])
@pytest.mark.parametrize("rows", CHOSEN.values(), ids=CHOSEN)
def test_subset_equals_indexing(built, rows, budget):
    actual = read_subset(built.atlas, rows, block_budget=budget)
    expected = ad.read_zarr(built.atlas)[rows].copy()
    np.testing.assert_array_equal(actual.X.toarray(), expected.X.toarray())
    assert actual.X.dtype == np.float32
    assert actual.X.indices.dtype == actual.X.indptr.dtype == np.int32
    assert actual.X.has_canonical_format
    assert_same_frame(actual.obs, expected.obs)
    assert_same_frame(actual.var, expected.var)
    np.testing.assert_array_equal(actual.obsm["X_pca"], expected.obsm["X_pca"])
    np.testing.assert_array_equal(actual.varm["PCs"], expected.varm["PCs"])
    assert set(actual.uns) == set(expected.uns)


def test_subset_decodes_each_chunk_once(built, monkeypatch):
    """No chunk is in two of the pieces that are read."""
    from collections import defaultdict
    from itertools import pairwise

    spans = defaultdict(list)
    read_rows = RowArray.__getitem__

    def recorded(self, rows):
        spans[self._key].append((rows.start, rows.stop, self.chunks[0]))
        return read_rows(self, rows)

    monkeypatch.setattr(RowArray, "__getitem__", recorded)
    read_subset(built.atlas, np.arange(0, N, 2), block_budget="20kB")
    assert set(spans) == {"X/data", "X/indices", "obsm/X_pca"}
    for pieces in spans.values():
        assert len(pieces) > 1
        chunks = sorted((start // chunk, (stop - 1) // chunk) for start, stop, chunk in pieces)
        assert all(before[1] < after[0] for before, after in pairwise(chunks))


@pytest.mark.parametrize(
    "rows", [[3, 2], [2, 2], [-1, 2], [0, N], np.ones(N, bool), [[1, 2]], [0.5]]
)
def test_subset_refuses_other_indices(built, rows):
    with pytest.raises(ValueError, match="index"):
        read_subset(built.atlas, rows)
