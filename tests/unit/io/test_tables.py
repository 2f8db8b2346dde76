"""Tables that stay on disk are read as anndata reads them, and stored as whole ones are."""

from __future__ import annotations

import subprocess
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr
from anndata.io import read_elem, write_elem
from anndata.utils import make_index_unique
from hypothesis import given
from hypothesis import strategies as st

import scatlas.io.tables.column as columns
from scatlas.errors import InputError
from scatlas.io import CsrWriter
from scatlas.io.chunks.encoded_text import EncodedText
from scatlas.io.tables.cell_names import NumberedNames
from scatlas.io.tables.table import open_tables
from tests.helpers import plates
from tests.helpers.frames import assert_same_frame, writable
from tests.helpers.plates import array, attribute, spoiled

N = 57
FORMATS = ("h5ad", "zarr2", "zarr3")
quiet = pytest.mark.filterwarnings(
    "ignore:.*was written without encoding metadata",  # of anndata, for what old versions wrote
    "ignore:.*does not have a Zarr V3 specification",
)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Columns in pieces that are smaller than a table."""
    monkeypatch.setattr(columns, "ROWS", 10)


@contextmanager
def opened(path: Path, mode: str = "r+"):
    if path.suffix == ".h5ad":
        with h5py.File(path, mode) as file:
            yield file
    else:
        yield zarr.open_group(path, mode=mode, use_consolidated=False)


def write(obs: pd.DataFrame, folder: Path, kind: str) -> Path:
    """An AnnData file with this obs and nothing else of note."""
    path = folder / ("a.h5ad" if kind == "h5ad" else "a.zarr")
    adata = ad.AnnData(sp.csr_matrix((len(obs), 1), dtype=np.float32))
    plates.write(adata, path, 2 if kind == "h5ad" else int(kind[-1]))
    put_elem(path, "obs", obs, **({} if kind == "h5ad" else {"chunks": (7,)}))
    return path


def put_elem(path: Path, name: str, value: Any, **options: Any) -> None:
    """Replace an element, as anndata writes it."""
    with (
        warnings.catch_warnings(action="ignore"),
        ad.settings.override(allow_write_nullable_strings=True),
        opened(path) as root,
    ):
        del root[name]
        write_elem(root, name, value, dataset_kwargs=options)
        if path.suffix == ".zarr":
            zarr.consolidate_metadata(path)


def file_with(folder: Path, kind: str = "h5ad", names: Any = None, **columns: Any) -> Path:
    """A file with these columns of obs."""
    names = [f"c{i}" for i in range(N)] if names is None else names
    return write(pd.DataFrame(columns, index=names), folder, kind)


def put(path: Path, name: str, values: Any, **attributes: Any) -> None:
    """Replace a column in the file by an array, with these attributes."""
    with opened(path) as root:
        table = root["obs"]
        if name in table:
            del table[name]
        else:
            table.attrs["column-order"] = [*table.attrs["column-order"], name]
        if isinstance(table, h5py.Group):
            table[name] = values
        else:
            table.create_array(name, data=values)
        table[name].attrs.update({key.replace("_", "-"): v for key, v in attributes.items()})
        if not isinstance(root, h5py.File):
            with warnings.catch_warnings(action="ignore"):
                zarr.consolidate_metadata(path)


def in_memory(path: Path) -> pd.DataFrame:
    with opened(path, "r") as root:
        return read_elem(root["obs"])


def as_whole(obs: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """How a table that is in memory is made fit for storing, and the notices."""
    notices: list[str] = []
    names = obs.index.astype(str)
    if not names.is_unique:
        n = int(names.duplicated().sum())
        notices.append(f"obs had {n:,} repeated cell names: made unique by a number at the end")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            names = make_index_unique(names)
    obs = obs.set_axis(names.rename(obs.index.name))
    return writable(obs, "obs", notices.append), notices


def stored(path: Path, n_rows: int, obs: Any) -> pd.DataFrame:
    """What `anndata` reads of a store with this obs, a table or a function that writes it."""
    with CsrWriter(path, n_vars=1, obs=obs) as writer:
        writer.append(sp.csr_matrix((n_rows, 1), dtype=np.uint8))
    return ad.read_zarr(path).obs


def check_stored(path: Path, tmp_path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Store it in pieces and as a whole; return what both are, and the notices."""
    frame, wanted = as_whole(in_memory(path))
    expected = stored(tmp_path / "whole.zarr", len(frame), frame)
    notices: list[str] = []
    with open_tables(path) as (obs, _):
        table = obs.storable(notices.append)
        actual = stored(tmp_path / "pieces.zarr", len(frame), table.write)
        assert_same_frame(actual, expected)
        kept = np.flatnonzero(np.arange(len(frame)) % 3 != 1)
        cut = stored(tmp_path / "cut.zarr", len(kept), lambda f: table.write(f, rows=kept))
        first = [name for name in frame.columns if not has_text_gaps(frame[name])]
        assert_same_frame(
            cut[first], stored(tmp_path / "b.zarr", len(kept), frame.iloc[kept])[first]
        )
        assert list(cut.columns) == list(expected.columns)
        for row in (0, len(frame) - 1):
            assert table.name_of(row) == expected.index[row]
        notices[:0] = filter(None, [table.renamed()])
    assert notices == wanted
    return actual, notices


def has_text_gaps(column: pd.Series) -> bool:
    """Text with gaps becomes categories, which are those of all rows whatever is cut from it."""
    text = pd.api.types.is_string_dtype(column.dtype) or column.dtype == object
    return text and bool(column.isna().any())


def cycle(*values: Any) -> list[Any]:
    return [values[i % len(values)] for i in range(N)]


KINDS: dict[str, Any] = {
    **{
        str(np.dtype(d)): np.arange(N).astype(d)
        for d in ("i1", "i2", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "?")
    },
    "long": np.array(cycle(2**63 - 1, -(2**63), 2**53 + 1)),
    "nan": np.array(cycle(0.5, np.nan, -np.inf)),
    "text": cycle("a", "", "µ€😀", "a longer one, of more than fifteen bytes"),
    "categories": pd.Categorical(cycle("b", "a", "c"), ["c", "unused", "b", "a"]),
    "ordered": pd.Categorical(cycle("lo", None, "hi"), ["lo", "mid", "hi"], ordered=True),
    "whole categories": pd.Categorical(cycle(3, 1, None), [3, 2, 1]),
    "real categories": pd.Categorical(cycle(0.5, 1e300)),
    "true categories": pd.Categorical(cycle(True, False, None)),
    "many categories": pd.Categorical.from_codes(np.arange(N) * 5, [f"k{i}" for i in range(300)]),
    "no categories": pd.Categorical(np.array(cycle(None), object)),
    "nullable": pd.array(cycle(1, None, -(2**62)), "Int64"),
    "nullable small": pd.array(cycle(1, 2, 250), "UInt8"),
    "nullable bool": pd.array(cycle(True, None, False), "boolean"),
    "nullable text": pd.array(cycle("b", None, "a", ""), "string"),
    "nullable text, full": pd.array(cycle("b", "µ"), "string"),
    "nullable text, empty": pd.array(cycle(None), "string"),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_columns(tmp_path, kind):
    obs = pd.DataFrame(KINDS, index=pd.Index([f"c{i}" for i in range(N)], name="BARCODE"))
    path = write(obs, tmp_path, kind)
    with open_tables(path) as (table, var):
        assert (table.n_rows, var.n_rows) == (N, 1)
        assert all(isinstance(column, columns.Column) for column in table.columns.values())
        assert_same_frame(table.read(), in_memory(path))
        picked = ["text", "nan", "ordered"]
        assert_same_frame(table.read(picked), in_memory(path)[picked])
        numbered = table.read(["text"], index=False)
        assert list(numbered.index) == list(range(N))
    actual, notices = check_stored(path, tmp_path)
    assert notices == []
    assert actual.index.name == "BARCODE"
    assert list(actual.columns) == list(KINDS)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_table_without_columns(tmp_path, kind):
    path = file_with(tmp_path, kind)
    with open_tables(path) as (table, _):
        assert_same_frame(table.read(), in_memory(path))
    check_stored(path, tmp_path)


def test_bytes_do_not_depend_on_pieces(tmp_path, monkeypatch):
    from scatlas.io.files.checksums import checksum

    obs = pd.DataFrame(KINDS, index=[f"c{i % 50}" for i in range(N)])
    sums = set()
    for rows in (3, 10, 2**16):
        monkeypatch.setattr(columns, "ROWS", rows)
        path = write(obs, tmp_path, "h5ad")
        with open_tables(path) as (table, _):
            stored(tmp_path / "out.zarr", N, table.storable(lambda _: None).write)
        sums.add(checksum(tmp_path / "out.zarr"))
    assert len(sums) == 1


DAYS = np.arange(N).astype("M8[D]").astype("M8[ns]")
GAP = np.where(np.arange(N) % 4 == 1, np.datetime64("NaT"), DAYS)
ARRAY = {"encoding_type": "array", "encoding_version": "0.2.0"}
STRINGS = {"encoding_type": "string-array", "encoding_version": "0.2.0"}
OPAQUE = {name: h5py.opaque_dtype(np.dtype(name)) for name in ("M8[ns]", "m8[s]")}
TEXT = np.array(cycle("a", "", "µ€"), object)
# Arrays as other programs and old versions of anndata write them: values, attributes, whether
# they are read in pieces.
IN_HDF5: dict[str, tuple[Any, dict[str, str], bool]] = {
    "dates": (DAYS.astype(OPAQUE["M8[ns]"]), ARRAY, False),
    "dates with gaps": (GAP.astype(OPAQUE["M8[ns]"]), ARRAY, False),
    "times": (np.arange(N).astype("m8[s]").astype(OPAQUE["m8[s]"]), ARRAY, False),
    "complex": (np.arange(N) + 1j, ARRAY, False),
    "big-endian": (np.arange(N).astype(">f4"), ARRAY, True),
    "bytes": (np.array(cycle(b"x", b"longer")), ARRAY, False),
    "bytes that are no ASCII": (np.array(cycle("µ".encode(), b"\xff")), ARRAY, False),
    "strings as array": (TEXT.astype(h5py.string_dtype()), ARRAY, False),
    "fixed strings": (np.array(cycle(b"x", b"longer")), STRINGS, True),
    "no encoding: numbers": (np.arange(N), {}, True),
    "no encoding: strings": (TEXT.astype(h5py.string_dtype()), {}, True),
    "no encoding: fixed strings": (np.array(cycle(b"x", b"longer")), {}, True),
    "no encoding: fixed UTF-8": (
        np.array(cycle("µ".encode()), h5py.string_dtype("utf-8", 2)),
        {},
        True,
    ),
    "no encoding: ASCII": (
        np.array(cycle("x"), object).astype(h5py.string_dtype("ascii")),
        {},
        False,
    ),
}


@quiet
@pytest.mark.parametrize("name", IN_HDF5)
def test_columns_of_other_programs(tmp_path, name):
    values, attributes, in_pieces = IN_HDF5[name]
    path = file_with(tmp_path, k=0, last=1)
    put(path, "k", values, **attributes)
    with open_tables(path) as (table, _):
        assert isinstance(table.columns["k"], columns.Column) == in_pieces
        # In this machine's byte order.
        assert_same_frame(table.read(), in_memory(path), check_dtype=name != "big-endian")
    if name == "big-endian":
        frame = in_memory(path)
        with open_tables(path) as (table, _):
            actual = stored(tmp_path / "out.zarr", N, table.storable(print).write)
        np.testing.assert_array_equal(actual["k"], frame["k"])
        return
    _, notices = check_stored(path, tmp_path)
    text = ("dates", "times", "complex", "bytes", "strings as", "no encoding: ASCII")
    assert [n.split(" (")[0] for n in notices] == ["obs['k']"] * name.startswith(text)


@quiet
@pytest.mark.parametrize(
    "values, attributes",
    [
        (np.array(cycle("x", "µ")), STRINGS),
        (np.array(cycle("x", "µ")), ARRAY),
        (np.array(cycle(b"x", b"yz")), ARRAY),
        (np.array(cycle(b"x", b"yz")), {}),
        (np.array(cycle("x", "µ")), {}),
        (np.arange(N), {}),
        (DAYS, ARRAY),
        (np.arange(N) + 1j, ARRAY),
    ],
)
def test_columns_of_other_programs_in_zarr(tmp_path, values, attributes):
    path = file_with(tmp_path, "zarr3", k=0, last=1)
    put(path, "k", values, **attributes)
    with open_tables(path) as (table, _):
        assert_same_frame(table.read(), in_memory(path))
    check_stored(path, tmp_path)


@quiet
@pytest.mark.parametrize("kind", ["h5ad", "zarr2"])
def test_tables_of_anndata_0_7(tmp_path, kind):
    """A separate group holds the categories, and the codes refer to them."""
    n = np.arange(N)
    obs = pd.DataFrame({"n": n, "text": TEXT}, index=pd.Index([f"c{i}" for i in n], name="cell"))
    path = write(obs, tmp_path, kind)
    labels = {"drug": ["b", "unused", "a"], "dose": np.array([0.5, 2.0])}
    with opened(path) as root:
        table = root["obs"]
        for name in ("cell", "n", "text"):
            for key in ("encoding-type", "encoding-version"):
                del table[name].attrs[key]
        for name, values in labels.items():
            text = isinstance(values, list)
            codes = np.where(n % 4 == 3, -1, n % 2 * (len(values) - 1)).astype(np.int8)
            if kind == "h5ad":
                made = table.create_dataset(
                    f"__categories/{name}", data=values, dtype=h5py.string_dtype() if text else None
                )
                table[name] = codes
                table[name].attrs["categories"] = made.ref
            else:
                made = table.create_array(
                    f"__categories/{name}", shape=(len(values),), dtype=str if text else "f8"
                )
                made[:] = np.array(values)
                table.create_array(name, data=codes)
                table[name].attrs["categories"] = f"__categories/{name}"
            made.attrs["ordered"] = name == "dose"
        table.attrs["encoding-version"] = "0.1.0"
        table.attrs["column-order"] = ["drug", "n", "dose", "text"]
        if kind != "h5ad":
            with warnings.catch_warnings(action="ignore"):
                zarr.consolidate_metadata(path)
    with open_tables(path) as (table, _):
        assert all(isinstance(column, columns.Column) for column in table.columns.values())
        read = table.read()
        assert list(read["drug"].cat.categories) == labels["drug"]
        assert read["dose"].cat.ordered
        assert list(read["drug"][:4].astype(object).fillna("-")) == ["b", "a", "b", "-"]
        if kind == "h5ad":  # anndata 0.12 does not find the categories in Zarr
            assert_same_frame(read, in_memory(path))
    if kind == "h5ad":
        check_stored(path, tmp_path)


@quiet
def test_categories_that_are_no_text(tmp_path):
    """Of dates they become text, without those that no row has, and sorted."""
    days = pd.Categorical.from_codes(cycle(2, 0, -1), pd.to_datetime(["2020", "1990", "1980"]))
    path = file_with(tmp_path, day=pd.Categorical(cycle("x", "y")))
    labels = days.categories.to_numpy().astype(OPAQUE["M8[ns]"])
    spoiled(
        path,
        array("obs/day/codes", days.codes),
        array("obs/day/categories", labels),
        attribute("obs/day/categories", "encoding-type", "array"),
    )
    actual, notices = check_stored(path, tmp_path)
    assert notices == ["obs['day'] (category) cannot be stored: made text"]
    assert list(actual["day"].cat.categories) == ["1980-01-01 00:00:00", "2020-01-01 00:00:00"]


# -- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "order, final, notices",
    [
        (["dose/uM", "x"], ["dose_uM", "x"], ["obs['dose/uM'] was renamed to 'dose_uM'"]),
        (["a/b", "a_b"], ["a_b"], ["obs['a/b'] was dropped: its name cannot be stored and 'a_b'"]),
        (
            ["a/b/c", "a/b_c"],
            ["a_b_c"],
            ["obs['a/b/c'] was renamed to 'a_b_c'", "obs['a/b_c'] was dropped"],
        ),
        (["x", "zarr.json"], ["x"], ["obs['zarr.json'] was dropped: its name cannot be stored"]),
        (["_index", "x"], ["x"], ["obs['_index'] was dropped: its name cannot be stored"]),
        (["é" * 128, "x"], ["é" * 127, "x"], ["obs['ééé"]),  # 256 bytes: no name of a folder
        (["x" * 300, "x" * 301], ["x" * 255], ["obs['xxx", "obs['xxx"]),
        (["x" * 255], ["x" * 255], []),
    ],
)
def test_names_that_cannot_be_stored(tmp_path, order, final, notices):
    path = file_with(tmp_path)
    with opened(path) as root:
        for i, name in enumerate(order):
            if name != "_index":
                column = root["obs"].create_dataset(name, data=np.arange(N) + i)
                column.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
        root["obs"].attrs["column-order"] = order
    actual, found = check_stored(path, tmp_path)
    assert list(actual.columns) == final
    assert [n.startswith(w) for n, w in zip(found, notices, strict=True)] == [True] * len(notices)


def test_a_name_of_the_index_that_is_too_long_for_a_folder_is_left_out(tmp_path):
    obs = pd.DataFrame(index=pd.Index([f"c{i}" for i in range(N)], name="x" * 256))
    with open_tables(write(obs, tmp_path, "h5ad")) as (table, _):
        assert table.storable(lambda _: None).index_name is None


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    "names",
    [
        np.arange(N),
        np.arange(N) / 3,
        pd.Categorical(cycle("b", "a")),
        pd.array(cycle("b", None), "string"),
        np.arange(N) % 2 == 0,
    ],
)
def test_names_that_are_no_text(tmp_path, kind, names):
    path = file_with(tmp_path, kind, k=1)
    put_elem(path, "obs/_index", names)
    actual, _ = check_stored(path, tmp_path)
    assert list(actual.index[:1]) == [str(pd.Index(names).astype(str)[0])]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("n_gaps", [0, 1])
def test_names_with_a_mask_need_python_strings_for_gaps_alone(tmp_path, monkeypatch, kind, n_gaps):
    """AnnData writes text of pandas with a mask. Names of a large table are not decoded."""
    names = pd.array([f"cµ{i}" for i in range(N)], "string")
    names[:n_gaps] = pd.NA
    path = file_with(tmp_path, kind, k=1)
    put_elem(path, "obs/_index", names)
    monkeypatch.setattr("scatlas.io.tables.table._MAX_CACHED_NAMES", 0)
    decoded = []
    encode = EncodedText.encode
    monkeypatch.setattr(EncodedText, "encode", lambda text: decoded.append(text) or encode(text))
    with open_tables(path) as (table, _):
        actual = stored(tmp_path / "o.zarr", N, table.write)
    assert list(actual.index) == list(pd.Index(names).astype(str))
    if kind == "zarr3":  # in the others Python reads such text
        assert bool(decoded) == bool(n_gaps)


@quiet
def test_names_that_are_read_whole(tmp_path):
    path = file_with(tmp_path, k=1)
    names = np.array([f"c{i % 50}".encode() for i in range(N)])
    spoiled(path, array("obs/_index", names), attribute("obs/_index", "encoding-type", "array"))
    actual, notices = check_stored(path, tmp_path)
    assert list(actual.index[49:52]) == ["c49", "c0-1", "c1-1"]
    assert len(notices) == 1


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("kind", FORMATS)
def test_index_that_is_a_column_as_well(tmp_path, kind, repeated):
    """One element on disk; two when the names had to be changed."""
    names = pd.Index([f"c{i % (50 if repeated else N)}" for i in range(N)], name="cell")
    path = file_with(tmp_path, kind, names, x=1, cell=names)
    with open_tables(path) as (table, _):
        table = table.storable(lambda _: None)
        actual = stored(tmp_path / "o.zarr", N, table.write)
        cut = stored(tmp_path / "c.zarr", 2, lambda f: table.write(f, rows=np.array([0, 51])))
        extra = {"cell": np.arange(N)}
        replaced = stored(tmp_path / "e.zarr", N, lambda f: table.write(f, extra=extra))
    assert list(actual["cell"]) == list(names)
    assert actual.index.is_unique
    assert actual.index.name == (None if repeated else "cell")
    assert list(actual.columns) == ["x", "cell"]
    assert list(cut["cell"]) == list(names[[0, 51]])
    assert list(cut.index) == list(actual.index[[0, 51]])
    assert list(replaced["cell"]) == list(range(N))
    assert list(replaced.index) == list(actual.index)


def test_index_named_as_a_column_of_numbers(tmp_path):
    path = spoiled(file_with(tmp_path, x=1), attribute("obs", "_index", "x"))
    with open_tables(path) as (table, _):
        actual = stored(tmp_path / "o.zarr", N, table.storable(lambda _: None).write)
    assert list(actual["x"]) == [1] * N
    assert list(actual.index[:3]) == ["1", "1-1", "1-2"]


@given(
    st.lists(st.sampled_from(["a", "b", "a-1", "a-2", "a-01", "a-1-1", "a-", "-1", "b-¹", "a-x"])),
    st.integers(1, 7),
)
def test_repeated_names_take_anndatas_numbers(names, step):
    array = np.array(names, object)
    spans = [(lo, min(lo + step, len(names))) for lo in range(0, len(names), step)]
    numbered = NumberedNames(lambda lo, hi: EncodedText.encode(array[lo:hi]), spans)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = make_index_unique(pd.Index(array, dtype=object))
    actual = [name for lo, hi in spans for name in numbered.read(lo, hi).decode()]
    assert actual == list(expected)
    assert list(array) == names
    assert numbered.n_changed == int(pd.Series(names, dtype=object).duplicated().sum())


def test_names_of_one_hash_are_told_apart(monkeypatch):
    monkeypatch.setattr(EncodedText, "hashes", lambda self: np.full(len(self), 7, np.uint64))
    names = np.array([*"abcabd"], object)
    spans = [(0, 4), (4, 6)]
    numbered = NumberedNames(lambda lo, hi: EncodedText.encode(names[lo:hi]), spans)
    found = [name for span in spans for name in numbered.read(*span).decode()]
    assert found == ["a", "b", "c", "a-1", "b-1", "d"]


# -- rows, further columns, queries --------------------------------------------------------------


def test_rows_and_further_columns(tmp_path):
    obs = pd.DataFrame(KINDS, index=pd.Index([f"c{i}" for i in range(N)], name="cell"))
    path = write(obs, tmp_path, "zarr3")
    rows = np.array([0, 3, 4, 11, 40, 56])
    extra = {"nan": np.arange(6) > 2, "new": np.linspace(0, 1, 6), "whole": np.arange(6)}
    with open_tables(path) as (table, _):
        actual = stored(tmp_path / "o.zarr", 6, lambda f: table.write(f, rows=rows, extra=extra))
        empty = stored(tmp_path / "0.zarr", 0, lambda f: table.write(f, rows=rows[:0]))
    whole = as_whole(in_memory(path))[0]
    gaps = [name for name in whole if has_text_gaps(whole[name])]
    expected = whole.iloc[rows].assign(**extra)
    assert_same_frame(
        actual.drop(columns=gaps),
        stored(tmp_path / "w.zarr", 6, expected).drop(columns=gaps),
    )
    assert list(actual.columns) == [*obs.columns, "new", "whole"]
    assert list(actual["nullable text"].astype(object).fillna("-")) == ["b", "", "b", "", "b", "b"]
    assert len(empty) == 0
    assert list(empty.columns) == list(obs.columns)


def test_misuse(tmp_path):
    path = file_with(tmp_path, x=1)
    with open_tables(path) as (table, _):
        for rows in ([0, N], [-1, 2], [3, 2], [2, 2]):
            with pytest.raises(ValueError, match="rows have to ascend"):
                table.write(tmp_path / "o", rows=np.array(rows))
        with pytest.raises(ValueError, match="y has 3 values for 57 rows of obs"):
            table.write(tmp_path / "o", extra={"y": np.arange(3)})


def test_for_query(tmp_path):
    obs = pd.DataFrame(KINDS, index=pd.Index([f"c{i}" for i in range(N)], name="cell"))
    with open_tables(write(obs, tmp_path, "h5ad")) as (table, _):
        frame = table.for_query(["text", "nan", "text"])
        assert list(frame.columns) == ["text", "nan"]
        assert isinstance(frame.index, pd.RangeIndex)
        assert list(table.for_query(["index"]).query("index == 'c5'").index) == ["c5"]
        assert list(table.for_query(["cell", "nan"]).query("cell == 'c6'")["nan"]) == [0.5]
        unknown = table.for_query(["text", "nothing"])
        assert list(unknown.columns) == list(obs.columns)
        assert len(unknown) == 0


# -- refusals ------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path) -> Path:
    """A good file, for the test to spoil."""
    drug, gap = pd.Categorical(cycle("a", "b")), pd.array(cycle(1, None), "Int64")
    return file_with(tmp_path, drug=drug, n=np.arange(N), gap=gap)


def refused(path: Path) -> str:
    out = path.with_name("out")
    with pytest.raises(InputError) as caught, open_tables(path) as (obs, _):
        obs.storable(print).write(out)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


@quiet
@pytest.mark.parametrize(
    "spoil, sentence",
    [
        (array("obs/n"), "there is no obs/n, which its attribute column-order names: take"),
        (array("obs/drug/categories"), "obs/drug cannot be read ("),
        (array("obs/_index"), "the index of obs cannot be read ("),
        (attribute("obs/drug", "encoding-type", "none-such"), "obs/drug cannot be read, as"),
        (attribute("obs/drug/codes", "encoding-type", "x"), "obs/drug cannot be read, as"),
        (attribute("obs", "encoding-type", "dict"), "obs is stored as 'dict', not as a data frame"),
        (attribute("obs", "column-order", 3), "obs cannot be read ("),
        (array("obs/n", np.arange(N - 1)), "obs/n has 56 rows, but the index of obs has 57: copy"),
        (array("obs/gap/mask", np.ones(3, bool)), "obs/gap cannot be read ("),
        (array("obs/gap/mask", np.ones(N)), "obs/gap cannot be read ("),
        (array("obs/n", np.ones((N, 2))), "obs/n cannot be read ("),
        (array("obs/drug/codes", np.full(N, 2, np.int8)), "obs/drug cannot be read (its codes"),
        (array("obs/drug/codes", np.full(N, -2, np.int8)), "obs/drug cannot be read (its codes"),
        (array("obs/drug/codes", np.full(N, 0.5)), "obs/drug cannot be read (codes need"),
        (array("obs/drug/categories", np.array(["a", "a"], object)), "obs/drug cannot be read (C"),
        (array("obs/drug/categories", np.array([1, 2])), "obs/drug cannot be read (dset.asstr"),
    ],
)
def test_damaged_tables(path, spoil, sentence):
    assert refused(spoiled(path, spoil)).startswith(sentence)


@pytest.mark.parametrize("name", ["n", "_index", "drug"])
def test_damaged_chunk(path, name):
    """Found in a piece that is not the first."""
    key = "obs/drug/codes" if name == "drug" else f"obs/{name}"
    with opened(path) as root:
        values, attributes = root[key][:], dict(root[key].attrs)
        dtype = root[key].dtype
        del root[key]
        root.create_dataset(key, data=values, dtype=dtype, chunks=(10,), compression="gzip")
        root[key].attrs.update(attributes)
        place = root[key].id.get_chunk_info(4)
    plates.flip(path, place.byte_offset + 2, 4)
    assert refused(path).startswith(f"obs/{name} cannot be read (")


def test_text_that_is_no_utf8(path):
    put(path, "n", np.array(cycle("x", "y"), object).astype(h5py.string_dtype()), **STRINGS)
    with opened(path) as root:
        root["obs/n"][40] = b"\xff\xfe"
    assert refused(path).startswith("obs/n cannot be read ('utf-8' codec")


# -- chunks, memory, imports ---------------------------------------------------------------------


@pytest.mark.parametrize("chunk, step", [(3, 9), (10, 10), (7, 7), (25, 25), (57, 57)])
def test_no_chunk_is_in_two_pieces(tmp_path, chunk, step):
    path = file_with(tmp_path, n=np.arange(N))
    put_elem(path, "obs/n", np.arange(N), chunks=(chunk,))
    with open_tables(path) as (obs, _):
        assert next(iter(obs.columns["n"].spans())) == (0, step)
        assert list(obs.read()["n"]) == list(range(N))


MEMORY = r"""
import re, sys
from pathlib import Path
import h5py
import scatlas.io.tables.column_writer
from scatlas.io.tables.table import Table

def peak():
    # Not getrusage, which counts the process that has started this one.
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1e3

import dask
dask.config.set(num_workers=2)
with h5py.File(sys.argv[1]) as file:
    Table.open(sys.argv[1], file, "obs").names(0, 2_000)  # loads a kernel
    start = peak()
    Table.open(sys.argv[1], file, "obs").storable(print).write(Path(sys.argv[2]))
print(peak() - start)
"""


def test_memory_does_not_grow_with_the_rows(tmp_path):
    """Resident, with what HDF5 keeps: read whole, each half of this table takes 88 MB more.

    A process takes some 15 MB more or less than another at the same work.
    """
    from scatlas.datasets import tahoe_obs

    n = 500_000
    rng = np.random.default_rng(0)
    total = rng.integers(500, 5_000, n)
    obs = tahoe_obs(
        rng,
        plate=1,
        line=rng.integers(0, 50, n),
        well=rng.integers(0, 96, n),
        phase=rng.choice(3, n),
        full=rng.random(n) < 0.95,
        total=total,
        n_genes=total // 2,
        mt_total=total // 20,
        n_lines=50,
        n_drugs=94,
    )
    assert obs.shape[1] == 16
    grown = {}
    for rows in (n // 2, n):
        path = tmp_path / f"{rows}.h5ad"
        with h5py.File(path, "w") as file:
            write_elem(file, "obs", obs.iloc[:rows], dataset_kwargs={"compression": "lzf"})
        run = [sys.executable, "-c", MEMORY, str(path), str(tmp_path / f"{rows}.zarr")]
        grown[rows] = float(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
    assert grown[n] < 80, grown  # MB
    assert grown[n] - grown[n // 2] < 40, grown
    read = read_elem(zarr.open_group(tmp_path / f"{n}.zarr", mode="r"))
    some = np.r_[:1000, n - 1000 : n]
    assert_same_frame(read.iloc[some], obs.iloc[some])
    assert list(read.index) == list(obs.index)
    assert read["pcnt_mito"].to_numpy().tobytes() == obs["pcnt_mito"].to_numpy().tobytes()


def test_reading_needs_no_anndata(path):
    """It takes a second to import."""
    code = f"""
import sys
from scatlas.io.tables.table import open_tables
with open_tables({str(path)!r}) as (obs, var):
    obs.storable(print).read()
assert "anndata" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_columns_give_way_to_others_of_their_names(tmp_path):
    frame = pd.DataFrame({name: [i] for i, name in enumerate(["a", "b", "source_b", "c"])}, ["x"])
    ad.AnnData(obs=frame).write_h5ad(tmp_path / "t.h5ad")
    with open_tables(tmp_path / "t.h5ad") as (obs, _):
        table, notices = obs.with_room_for(["b", "c", "d"])
        found = table.read()
        same, none = obs.with_room_for(["d"])
    assert list(found.columns) == ["a", "source_source_b", "source_b", "source_c"]
    assert found.iloc[0].tolist() == [0, 1, 2, 3]
    assert notices == [
        "obs had a column 'b': it is 'source_source_b' now",
        "obs had a column 'c': it is 'source_c' now",
    ]
    assert (list(same.columns), none) == (list(frame), [])
