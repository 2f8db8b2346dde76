"""Zarr v3 stores, compared with zarr-python."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

from scatlas.errors import InputError
from scatlas.io import load_plate, read_lazy, read_matrix
from scatlas.io.files.local_zarr import (
    LocalArray,
    LocalGroup,
    RowArray,
    as_zarr_python,
    open_rows,
    open_store,
)
from scatlas.io.matrices.counts_source import what_elements_hold
from scatlas.io.tables.column_writer import write_frame
from scatlas.io.tables.table import open_tables
from scatlas.io.zarr_writer.elements import consolidate, create_group
from tests.helpers.frames import assert_same_frame

if TYPE_CHECKING:
    from pathlib import Path

N = 57

# anndata announces changes of its next version.
pytestmark = [
    pytest.mark.filterwarnings("ignore:zarr v3 autosharding"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata"),
]


@pytest.fixture(params=["consolidated", "scattered"])
def store(request, tmp_path) -> Path:
    path = tmp_path / "a.zarr"
    obs = pd.DataFrame(
        {"n": np.arange(N), "kind": pd.Categorical(["a", "b", "c"] * 19)},
        index=[f"cell{i}" for i in range(N)],
    )
    x = np.arange(N * 3, dtype=np.float32).reshape(N, 3)
    adata = ad.AnnData(X=x, obs=obs, obsm={"X_pca": x.astype(np.float64)})
    adata.uns["nothing"] = {}
    ad.io.write_elem(zarr.open_group(path, mode="w", zarr_format=3), "/", adata)
    if request.param == "consolidated":
        zarr.consolidate_metadata(path)
    return path


def test_groups(store):
    ours, theirs = open_store(store), zarr.open_group(store, mode="r")
    assert isinstance(ours, LocalGroup)
    assert sorted(ours) == sorted(theirs)
    assert dict(ours.attrs) == dict(theirs.attrs)
    for name in sorted(theirs):
        assert name in ours
        if isinstance(theirs[name], zarr.Group):
            assert isinstance(ours[name], LocalGroup)
            assert sorted(ours[name]) == sorted(theirs[name])
            assert dict(ours[name].attrs) == dict(theirs[name].attrs)
            assert ours[name].name == theirs[name].name
    assert "obs/kind/codes" in ours
    assert ours["obs/kind"]["codes"].name == ours["obs"]["kind/codes"].name == "/obs/kind/codes"
    assert "none" not in ours
    assert ours.get("none", 7) == 7
    with pytest.raises(KeyError, match="obs/none"):
        ours["obs"]["none"]


def test_arrays(store):
    ours, theirs = open_store(store), zarr.open_group(store, mode="r")
    for key in ("obs/n", "obs/kind/codes", "obs/_index", "obs/kind/categories"):
        mine, other = ours[key], theirs[key]
        assert isinstance(mine, LocalArray)
        assert (mine.shape, mine.ndim, mine.chunks) == (other.shape, other.ndim, other.chunks)
        assert mine.dtype == other.dtype
        assert mine.attrs == dict(other.attrs)
        for rows in (slice(None), slice(3, 9), slice(5, 5), slice(50, 99), slice(9, 3)):
            assert list(mine[rows]) == list(other[rows])
    assert isinstance(ours["X"], zarr.Array)  # of two dimensions
    assert_same_frame(ad.io.read_elem(as_zarr_python(ours["obs"])), ad.read_zarr(store).obs)
    assert ad.io.read_elem(as_zarr_python(ours["obs/n"])).tolist() == list(range(N))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), text=st.booleans(), sharded=st.booleans(), missing=st.booleans())
def test_any_array(tmp_path_factory, data, text, sharded, missing):
    path = tmp_path_factory.mktemp("z") / "a.zarr"
    n = data.draw(st.integers(1, 200))
    chunk = data.draw(st.integers(1, 60))
    if text:
        values = data.draw(st.lists(st.text(max_size=9), min_size=n, max_size=n))
        values = np.array(values, dtype=np.dtypes.StringDType())
    else:
        dtype = data.draw(st.sampled_from(["?", "i1", "<u2", ">i4", "<f4", ">f8", "u8"]))
        values = np.arange(n).astype(dtype)
    codecs = [[], [ZstdCodec()]] if text else [[], [ZstdCodec()], [GzipCodec()], [BloscCodec()]]
    codecs = [
        *data.draw(st.sampled_from(codecs)),
        *([Crc32cCodec()] if data.draw(st.booleans()) else []),
    ]
    root = zarr.open_group(path, mode="w")
    array = root.create_array(
        "a",
        shape=(n,),
        dtype=values.dtype,
        chunks=(chunk,),
        shards=(3 * chunk,) if sharded else None,
        compressors=codecs,
        fill_value="-" if text else 1,
    )
    written = slice(n // 2 if missing else 0, n)
    array[written] = values[written]
    ours = open_store(path)["a"]
    assert isinstance(ours, LocalArray)
    lo, hi = sorted((data.draw(st.integers(0, n)), data.draw(st.integers(0, n))))
    assert ours[lo:hi].tolist() == array[lo:hi].tolist()
    assert ours[:].dtype == (object if text else values.dtype.newbyteorder("="))
    assert ours.chunks == array.chunks
    assert ours.shards == array.shards


@pytest.mark.filterwarnings("ignore")
def test_layouts_that_zarr_python_reads(tmp_path):
    root = zarr.open_group(tmp_path / "a.zarr", mode="w")
    root.create_array("complex", data=np.ones(3, complex))
    root.create_array("times", data=np.zeros(3, "M8[s]"))
    root.create_array("two", data=np.ones((3, 3)))
    root.create_array("dots", data=np.ones(3), chunk_key_encoding={"name": "v2", "separator": "."})
    root.create_array(
        "text", data=np.array(["a"], np.dtypes.StringDType()), compressors=[GzipCodec()]
    )
    ours = open_store(tmp_path / "a.zarr")
    for name in ("complex", "times", "two", "dots", "text"):
        assert isinstance(ours[name], zarr.Array), name
        assert ours[name][...].tolist() == root[name][...].tolist()
    old = zarr.open_group(tmp_path / "b.zarr", mode="w", zarr_format=2)
    old.create_array("a", data=np.arange(3))
    assert isinstance(open_store(tmp_path / "b.zarr"), zarr.Group)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"separator": "/"', '"separator": "3"'),
        ('"separator": "/"', '"seqarator": "/"'),
        ('"endian": "little"', '"endian": "mittle"'),
        ('"endian": "little"', '"eodian": "little"'),
        ('"index_location": "end"', '"index_location": "enf"'),
        ('"index_location": "end"', '"indey_location": "start"'),
        ('"node_type": "array"', '"node_type": "brray"'),
        ('"fill_value"', '"full_value": 1, "fill_value"'),
    ],
)
def test_metadata_that_are_damaged(old, new, tmp_path):
    """Never guess: chunks at a wrong path would read as 0."""
    root = zarr.open_group(tmp_path / "a.zarr", mode="w")
    root.create_array("a", data=np.arange(8), chunks=(2,), shards=(4,))
    file = tmp_path / "a.zarr/a/zarr.json"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises((ValueError, TypeError, KeyError)):  # zarr-python's
        open_store(tmp_path / "a.zarr")["a"]


@pytest.mark.parametrize("consolidated", [True, False])
def test_a_data_type_of_a_newer_zarr_refuses_what_needs_it_alone(tmp_path, consolidated):
    """zarr 3.2 calls the type of tables in ``uns`` 'struct'."""
    path = tmp_path / "a.zarr"
    with ad.settings.override(zarr_write_format=3):
        ad.AnnData(np.eye(4, dtype=np.float32), uns={"scores": {"t": np.zeros(2)}}).write_zarr(path)
    file = path / "uns/scores/t/zarr.json"
    node = json.loads(file.read_bytes())
    node["data_type"] = {"name": "struct", "configuration": {"fields": []}}
    file.write_text(json.dumps(node))
    root = json.loads((path / "zarr.json").read_bytes())
    root["consolidated_metadata"]["metadata"]["uns/scores/t"] = node
    (path / "zarr.json").write_text(
        json.dumps(root if consolidated else root | {"consolidated_metadata": None})
    )

    for name in (str(path), f"file://{path}"):
        assert what_elements_hold(name) == {"X": "holds raw counts"}
        assert load_plate(name, tmp_path / "out.zarr", plate="p")["total_counts"] == 4
        assert read_matrix(name)[0].compute().sum() == 4
        with pytest.raises(InputError, match=r"uns cannot be read, as zarr does not .*: update"):
            read_lazy(name)


def test_metadata_that_may_be_left_out(tmp_path):
    root = zarr.open_group(tmp_path / "a.zarr", mode="w")
    root.create_array("a", data=np.arange(5))
    for file in tmp_path.rglob("zarr.json"):
        document = json.loads(file.read_text())
        for name in ("attributes", "storage_transformers", "consolidated_metadata"):
            document.pop(name, None)
        file.write_text(json.dumps(document))
    ours = open_store(tmp_path / "a.zarr")
    assert (dict(ours.attrs), dict(ours["a"].attrs)) == ({}, {})
    assert ours["a"][1:3].tolist() == [1, 2]


def test_damaged_text(tmp_path):
    """A wrong number of texts in a chunk, and a changed byte, which the checksum finds."""
    path = tmp_path / "a.zarr"
    create_group(path, {"encoding-type": "anndata", "encoding-version": "0.1.0"})
    for name in ("obs", "var"):
        write_frame(path / name, pd.DataFrame(index=[f"name{i}" for i in range(N)]))
    consolidate(path)
    (file,) = (path / "obs/_index/c").iterdir()
    raw = bytearray(file.read_bytes())
    raw[9] ^= 1
    file.write_bytes(raw)
    with open_tables(path) as (obs, _), pytest.raises(InputError, match=r"obs/_index .*crc32c"):
        obs.index()
    root = zarr.open_group(path, mode="r+")
    del root["obs/_index"]
    root["obs"].create_array(
        "_index", data=np.array(["a"] * N, np.dtypes.StringDType()), chunks=(N,)
    )
    short = json.loads((path / "obs/_index/zarr.json").read_text())
    short["shape"] = [30]
    short["chunk_grid"]["configuration"]["chunk_shape"] = [30]
    with pytest.raises(ValueError, match="does not hold 30 texts"):
        LocalArray(path, "obs/_index", short)[:]


# -- tables written without it -------------------------------------------------------------------

MIXED = {
    "whole": np.arange(4, dtype=np.int16),
    "share": np.array([0.5, np.nan, 1, 2], np.float32),
    "flag": np.array([True, False, True, True]),
    "text": np.array(["a", "", "µ", "b"], object),
    "kind": pd.Categorical(["x", None, "y", "x"], ["y", "x"], ordered=True),
    "numbers": pd.Categorical([3, 1, 3, 1]),
    "gaps": pd.array([1, None, 3, 4], dtype="Int64"),
    "maybe": pd.array([True, None, False, True], dtype="boolean"),
    "missing": np.array(["a", None, "b", "a"], object),
    "bins": pd.cut([1, 2, 3, 4], 2).rename_categories(["low", "high"]),
}


@pytest.mark.parametrize("name", [None, "gene"])
def test_tables_are_those_of_anndata(tmp_path, name):
    frame = pd.DataFrame(MIXED, index=pd.Index(["a", "b", "c", "d"], name=name))
    before = frame.copy(deep=True)
    create_group(tmp_path / "a.zarr", {})
    write_frame(tmp_path / "a.zarr/t", frame)
    pd.testing.assert_frame_equal(frame, before)
    found = ad.io.read_elem(zarr.open_group(tmp_path / "a.zarr", mode="r")["t"])
    theirs = zarr.open_group(tmp_path / "b.zarr", mode="w")
    ad.io.write_elem(theirs, "t", frame.assign(missing=pd.Categorical(frame["missing"])))
    assert_same_frame(found, ad.io.read_elem(theirs["t"]))


def test_an_index_that_is_a_column_too(tmp_path):
    frame = pd.DataFrame({"gene": ["a", "b"]}, index=pd.Index(["a", "b"], name="gene"))
    create_group(tmp_path / "a.zarr", {})
    write_frame(tmp_path / "a.zarr/t", frame)
    found = ad.io.read_elem(zarr.open_group(tmp_path / "a.zarr", mode="r")["t"])
    assert_same_frame(found, frame)
    with pytest.raises(ValueError, match="also used by a column"):
        write_frame(tmp_path / "a.zarr/u", frame.assign(gene=["b", "a"]))


@pytest.mark.parametrize("names", [["a", "a"], ["_index", "b"]])
def test_names_that_cannot_be_stored(tmp_path, names):
    create_group(tmp_path / "a.zarr", {})
    frame = pd.DataFrame(np.ones((2, 2)), columns=names, index=["x", "y"])
    with pytest.raises(ValueError, match=r"column names|reserved name"):
        write_frame(tmp_path / "a.zarr/t", frame)


def test_an_empty_table(tmp_path):
    create_group(tmp_path / "a.zarr", {})
    write_frame(tmp_path / "a.zarr/t", pd.DataFrame({"n": np.empty(0), "t": np.empty(0, object)}))
    assert ad.io.read_elem(zarr.open_group(tmp_path / "a.zarr", mode="r")["t"]).shape == (0, 2)


# -- rows of matrices and lists ------------------------------------------------------------------

ROWS = {
    "shards": {"chunks": (16, 7), "shards": (64, 7)},
    "chunks": {"chunks": (16, 7)},
    "dots": {"chunks": (16, 7), "chunk_key_encoding": {"name": "default", "separator": "."}},
    "one chunk": {"chunks": (1000, 7)},
    "cut columns": {"chunks": (16, 4)},
    "zarr 2": {"chunks": (16, 7)},
    "list": {"chunks": (16,)},
    "list in shards": {"chunks": (16,), "shards": (64,)},
}


def written_rows(path: Path, layout: str, dtype: str = "float32") -> np.ndarray:
    x = (1000 * np.random.default_rng(0).normal(size=(150, 7))).astype(dtype)
    x = x[:, 0] if "list" in layout else x
    group = zarr.open_group(path, mode="w", zarr_format=2 if layout == "zarr 2" else 3)
    group.create_array("x", shape=x.shape, dtype=x.dtype, **ROWS[layout])[:] = x
    return x


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
@pytest.mark.parametrize("layout", ROWS)
def test_rows(tmp_path, layout, dtype):
    x = written_rows(tmp_path / "a.zarr", layout, dtype)
    found = open_rows(tmp_path / "a.zarr", "x")
    assert isinstance(found, RowArray) == (layout not in ("cut columns", "zarr 2"))
    assert (found.shape, found.dtype) == (x.shape, x.dtype)
    for rows in (slice(0, 150), slice(10, 75), slice(149, 400), slice(64, 80), slice(30, 30)):
        np.testing.assert_array_equal(found[rows], x[rows])


def test_rows_of_lost_and_of_damaged_chunks(tmp_path):
    written_rows(tmp_path / "a.zarr", "chunks")
    (tmp_path / "a.zarr/x/c/1/0").unlink()  # as if never written: the fill value
    assert not open_rows(tmp_path / "a.zarr", "x")[16:32].any()
    written_rows(tmp_path / "b.zarr", "shards")
    file = tmp_path / "b.zarr/x/c/1/0"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"b\.zarr: x, rows 64 to 149"):
        open_rows(tmp_path / "b.zarr", "x")[64:150]
