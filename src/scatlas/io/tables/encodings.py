"""How AnnData stores a column of a table, now and in old versions; names and types it can write."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import h5py
import numpy as np
import pandas as pd

from scatlas.io.files.anndata_checks import attribute, for_anndata
from scatlas.io.files.chunk_locations import read_without_plugins
from scatlas.io.zarr_writer.node_metadata import MAX_NAME, is_storable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scatlas.io.chunks.chunked_array import ChunkedArray
    from scatlas.io.chunks.encoded_text import EncodedText
    from scatlas.io.files.local_zarr import StoredGroup

Kind = Literal["number", "text", "categorical", "nullable"]

# Encoding and version of an element; elements written before anndata 0.8 have none.
NONE = ("", "")
_ARRAY = ("array", "0.2.0")
_STRINGS = ("string-array", "0.2.0")
_CATEGORICAL = ("categorical", "0.2.0")
# Encodings of nullable columns: the kinds of NumPy's dtypes of their values.
_NULLABLE = {
    ("nullable-integer", "0.1.0"): "iu",
    ("nullable-boolean", "0.1.0"): "b",
    ("nullable-string-array", "0.1.0"): "O",
}
# Encodings of anndata 0.7 and of later versions.
TABLES = (("dataframe", "0.1.0"), ("dataframe", "0.2.0"))
# Group of a table with the labels of its categories, before anndata 0.8.
OLD_CATEGORIES = "__categories"


# Up to this number of texts libhdf5 is as fast.
_FEW = 1000


NO_CATEGORIES = np.empty(0, object)


class Stored(NamedTuple):
    """Place and type of a column's values; the rest is as in `scatlas.io.tables.column.Column`."""

    kind: Kind
    dtype: np.dtype
    n_rows: int
    values: Any  # what to slice for numbers, text, or codes
    chunk: int  # rows that the file decodes at once; 1 where any range can be read
    mask: Any = None  # what to slice for the gaps, bool; None where these are marked otherwise
    categories: np.ndarray = NO_CATEGORIES
    ordered: bool = False

    @classmethod
    def find(cls, table: StoredGroup, name: str) -> Stored | None:
        """Look at a column of an ``h5py.Group`` or ``zarr.Group``; None for another kind."""
        elem = table[name]
        encoding = encoding_of(elem)
        if (old := _old_labels(table, name)) is not None or encoding == _CATEGORICAL:
            codes, labels, ordered = _categorical(elem, old)
            codes, labels = cls._one_dimensional(codes), cls._one_dimensional(labels)
            if codes is None or labels is None or codes.dtype.kind not in "iu":
                return None
            categories = np.asarray(labels.values[:]).astype(labels.dtype, copy=False)
            pd.Categorical.from_codes(np.empty(0, np.int8), categories, ordered=ordered)
            return codes._replace(kind="categorical", categories=categories, ordered=ordered)
        if encoding in _NULLABLE:
            values, mask = cls._one_dimensional(elem["values"]), cls._one_dimensional(elem["mask"])
            if values is None or values.dtype.kind not in _NULLABLE[encoding]:
                return None
            if mask is None or mask.dtype != bool or mask.n_rows != values.n_rows:
                return None
            kind: Kind = "text" if values.kind == "text" else "nullable"
            return values._replace(kind=kind, mask=mask.values)
        return cls._one_dimensional(elem)

    @classmethod
    def _one_dimensional(cls, elem: Any) -> Stored | None:
        """Arrays that anndata reads as one-dimensional numbers or text."""
        encoding = encoding_of(elem)
        if getattr(elem, "ndim", None) != 1 or encoding not in {_ARRAY, _STRINGS, NONE}:
            return None
        text = _is_text(elem, encoding)
        if text:
            dtype = np.dtype(object)
        # Zarr has no wider numbers.
        elif encoding != _STRINGS and elem.dtype.kind in "biuf" and elem.dtype.itemsize <= 8:
            # Without HDF5's metadata of enumerations, and in this machine's byte order.
            dtype = np.dtype(elem.dtype.str).newbyteorder("=")
        else:
            return None
        in_hdf5 = isinstance(elem, h5py.Dataset)
        return cls(
            kind="text" if text else "number",
            dtype=dtype,
            n_rows=int(elem.shape[0]),
            values=InHDF5(elem.file, elem.name, text) if in_hdf5 else elem,
            chunk=int((elem.chunks or (1,))[0]),
        )


@dataclass(frozen=True)
class InHDF5:
    """A dataset that is open only while it is read: HDF5 keeps 8 MB per open dataset."""

    file: h5py.File
    name: str
    text: bool

    @cached_property
    def _references(self) -> ChunkedArray | None:
        from scatlas.io.tables.hdf5_strings import references_of

        return references_of(self.file[self.name])

    def __getitem__(self, rows: slice) -> np.ndarray:
        elem = self.file[self.name]
        if not self.text:
            return read_without_plugins(elem, rows) if elem.dtype.kind in "biuf" else elem[rows]
        texts = self.encoded_text(*rows.indices(elem.shape[0])[:2])
        return elem.asstr()[rows] if texts is None else texts.decode()

    def encoded_text(self, lo: int, hi: int) -> EncodedText | None:
        """Texts ``lo`` to ``hi`` without Python strings; None if they are few, or unusual."""
        if hi - lo <= _FEW or self._references is None:
            return None
        # Imports Numba, half a second, which Zarr stores do not need.
        from scatlas.io.tables.hdf5_strings import read_strings

        return read_strings(self._references, self.file.filename, lo, hi)


def _is_text(elem: Any, encoding: tuple[str, str]) -> bool:
    """Whether anndata reads an array as text, and not as bytes."""
    if not isinstance(elem, h5py.Dataset):
        return elem.dtype.kind in "TU"
    found = h5py.check_string_dtype(elem.dtype)
    if found is None or encoding != NONE:
        return found is not None and encoding == _STRINGS
    return found.encoding == "utf-8" or found.length is not None


def encoding_of(elem: Any) -> tuple[str, str]:
    """Encoding and version of an element; empty if it has none."""
    return attribute(elem, "encoding-type"), attribute(elem, "encoding-version")


def element_of(table: StoredGroup, name: str) -> str:
    """Path of a column in its file, for messages."""
    return f"{table.name.strip('/')}/{name}"


def read_column(table: StoredGroup, name: str) -> Any:
    """Read a column as a whole, of any type that anndata reads."""
    from anndata.io import read_elem

    elem, old = table[name], _old_labels(table, name)
    if old is None:
        return read_elem(for_anndata(elem))
    codes, labels, ordered = _categorical(elem, old)
    codes, labels = read_elem(for_anndata(codes)), read_elem(for_anndata(labels))
    return pd.Categorical.from_codes(codes, labels, ordered=ordered)


def _old_labels(table: StoredGroup, name: str) -> Any:
    """Labels of a column of codes, as anndata before 0.8 stores them; None for other columns."""
    if encoding_of(table) == TABLES[1]:
        return None
    # anndata writes a reference to them, in Zarr a path; SeuratDisk none.
    if "categories" in table[name].attrs:
        return table[table[name].attrs["categories"]]
    return table.get(f"{OLD_CATEGORIES}/{name}")


def _categorical(elem: Any, old: Any) -> tuple[Any, Any, bool]:
    """Codes, categories, and whether these are in order."""
    if old is None:
        return elem["codes"], elem["categories"], attribute(elem, "ordered") in ("True", "1")
    return elem, old, bool(old.attrs.get("ordered", False))


def storable_names(
    columns: Iterable[Any], name: str, notify: Callable[[str], None]
) -> dict[Any, str]:
    """Names under which columns of a table are stored; those that cannot be are left out."""
    columns = list(columns)
    names = {column: _shortened(str(column).replace("/", "_")) for column in columns}
    taken = set(columns)
    for old, fresh in list(names.items()):
        if not is_storable(fresh):
            del names[old]
            notify(f"{name}[{old!r}] was dropped: its name cannot be stored")
        elif fresh != old and fresh in taken:
            del names[old]
            notify(f"{name}[{old!r}] was dropped: its name cannot be stored and {fresh!r} exists")
        elif fresh != old:
            taken.add(fresh)
            notify(f"{name}[{old!r}] was renamed to {fresh!r}: AnnData stores no such names")
    return names


def _shortened(name: str) -> str:
    """The beginning of a name that is too long for a folder."""
    encoded = os.fsencode(name)
    return name if len(encoded) <= MAX_NAME else encoded[:MAX_NAME].decode(errors="ignore")


def text_notice(name: str, column: Any, dtype: Any) -> str:
    return f"{name}[{column!r}] ({dtype}) cannot be stored: made text"


def as_text(column: pd.Series) -> pd.Series | None:
    """Column as text when AnnData cannot write it as it is, else None; gaps stay gaps."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        if as_text(pd.Series(column.cat.categories)) is None:
            return None
        return column.astype(object).map(str, na_action="ignore").astype("category")
    if column.dtype == object:
        if pd.api.types.infer_dtype(column, skipna=True) in ("string", "empty"):
            return None
        return column.map(_text, na_action="ignore")
    if column.dtype.kind in "mMc" or isinstance(
        column.dtype, pd.DatetimeTZDtype | pd.PeriodDtype | pd.IntervalDtype
    ):
        return column.astype(object).map(str, na_action="ignore")
    return None


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
