"""The obs table of an AnnData file, one column and one range of rows at a time, as values or codes:
the table of an atlas does not fit where its blocks do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from scatlas.errors import InputError
from scatlas.io.chunks.encoded_text import EncodedText
from scatlas.io.files.anndata_checks import attribute
from scatlas.io.files.local_zarr import LocalArray
from scatlas.io.files.read_errors import REMEDY, reading
from scatlas.io.tables.encodings import (
    NO_CATEGORIES,
    InHDF5,
    Stored,
    as_text,
    element_of,
    read_column,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from scatlas.io.files.local_zarr import StoredGroup
    from scatlas.io.tables.encodings import Kind

# Rows in memory at once, or one chunk of the file if that is more: 2^15 names take about 2.5 MB as
# Python strings. Numbers take an eighth of that per row.
ROWS = 2**15
_NUMBERS = 8

# Code of a missing category in files of SeuratDisk.
_R_MISSING = -(2**31)

# Float64 holds all whole numbers up to here.
_EXACT = 2**53


@dataclass(frozen=True)
class Column:
    """A column of an AnnData table on disk; path and element are for messages."""

    path: str
    element: str
    kind: Kind  # text may have gaps, too
    dtype: np.dtype  # of the numbers or of the codes of categories; ``object`` for text
    n_rows: int
    _values: Any
    _chunk: int
    _mask: Any = None
    categories: np.ndarray = field(default_factory=lambda: NO_CATEGORIES)
    ordered: bool = False

    @classmethod
    def open(cls, path: Path | str, table: StoredGroup, name: str) -> Column:
        """Open a column that is to be merged; one of another kind is refused."""
        column = cls.find(path, table, name)
        if column is None:
            encoding = attribute(table[name], "encoding-type")
            raise InputError(
                f"{path}: obs column {name!r} is stored as {encoding!r}, which cannot be merged: "
                "remove the column or make it numbers, text or categories"
            )
        return column

    @classmethod
    def find(cls, path: Path | str, table: StoredGroup, name: str) -> Column | None:
        """Open a column of an ``h5py.Group`` or ``zarr.Group``; None if it is of another kind."""
        element = element_of(table, name)
        if name not in table:
            raise InputError(
                f"{path}: there is no {element}, which its attribute column-order names: take the "
                "name out of it, or write the table again"
            )
        with reading(str(path), element):
            stored = Stored.find(table, name)
        return None if stored is None else cls(str(path), element, *stored)

    @property
    def is_text(self) -> bool:
        """Whether the values are text, or categories that are text."""
        is_labelled = self.kind == "categorical" and self.categories.dtype == object
        return self.kind == "text" or is_labelled

    def values(self, lo: int, hi: int) -> np.ndarray:
        """Rows ``lo`` to ``hi``: numbers, text as ``object``, codes of categories (-1: a gap)."""
        with reading(self.path, self.element):
            values = np.asarray(self._values[lo:hi]).astype(self.dtype, copy=False)
            if self.kind == "categorical" and values.size:
                low, high = int(values.min()), int(values.max())
                if low == _R_MISSING:
                    values = np.where(values == low, -1, values)
                    low = int(values.min())
                if low < -1 or high >= len(self.categories):
                    wrong = low if low < -1 else high
                    msg = f"its codes hold {wrong}, of {len(self.categories)} categories"
                    raise ValueError(msg)
        return values

    def gaps(self, lo: int, hi: int) -> np.ndarray:
        """Mask of the rows without a value; NaN is a gap, too."""
        if self._mask is not None:
            with reading(self.path, self.element):
                return np.asarray(self._mask[lo:hi])
        if self.kind == "categorical":
            return self.values(lo, hi) < 0
        if self.dtype.kind == "f":
            return np.isnan(self.values(lo, hi))
        return np.zeros(hi - lo, bool)

    def text(self, lo: int, hi: int) -> np.ndarray:
        """The rows as ``object`` array of ``str``; ``""`` where there is a gap."""
        values = self.values(lo, hi)
        if self.kind == "categorical":
            labels = np.append(self.categories.astype(str).astype(object), "")
            return labels[values]
        out = values if self.kind == "text" else values.astype(str).astype(object)
        gaps = self.gaps(lo, hi)
        if gaps.any():
            out[gaps] = ""
        return out

    def encoded_text(self, lo: int, hi: int) -> EncodedText:
        """As :meth:`text`, without Python strings where the file allows that."""
        texts = None
        has_encoded = isinstance(self._values, LocalArray | InHDF5)
        if has_encoded and self.is_whole_text(lo, hi):
            with reading(self.path, self.element):
                texts = self._values.encoded_text(lo, hi)
        return EncodedText.encode(self.text(lo, hi)) if texts is None else texts

    def check(self) -> None:
        for lo, hi in self.spans(wide=True):
            self.values(lo, hi)
            if self._mask is not None:
                self.gaps(lo, hi)

    def spans(self, *, wide: bool = False) -> Iterator[tuple[int, int]]:
        """Ranges of rows read at once; no chunk is in two. ``wide``: no text is made of them."""
        rows = ROWS if self.kind == "text" or not wide else ROWS * _NUMBERS
        step = max(1, rows // self._chunk) * self._chunk
        return ((lo, min(lo + step, self.n_rows)) for lo in range(0, self.n_rows, step))

    @property
    def is_plain_text(self) -> bool:
        """Whether the column is text without a mask for gaps."""
        return self.kind == "text" and self._mask is None

    def is_whole_text(self, lo: int, hi: int) -> bool:
        """Whether the column is text without a gap in rows ``lo`` to ``hi``."""
        return self.is_plain_text or (self.kind == "text" and not self.gaps(lo, hi).any())

    @property
    def has_gaps(self) -> bool:
        """Whether a row has no value; reads the column."""
        if self.kind in {"number", "text"} and self._mask is None and self.dtype.kind != "f":
            return False
        return any(self.gaps(lo, hi).any() for lo, hi in self.spans(wide=True))

    def fits(self, dtype: np.dtype) -> bool:
        """Whether a common dtype of numbers holds all of them; reads 64-bit whole numbers."""
        if dtype.kind != "f" or self.dtype.kind not in "iu" or self.dtype.itemsize < 8:
            return True
        for lo, hi in self.spans(wide=True):
            values = self.values(lo, hi)[~self.gaps(lo, hi)]
            if ((values > _EXACT) | (values < -_EXACT)).any():
                return False
        return True

    def take(self, rows: np.ndarray | None = None) -> Any:
        """Rows (sorted, int64; all by default) as the array that pandas keeps in a column."""
        if self.is_plain_text and rows is not None:
            # Few rows of many become Python strings.
            texts = (self.encoded_text(lo, hi)[at] for lo, hi, at in pieces(self.spans(), rows))
            return EncodedText.join([EncodedText.encode(np.empty(0, object)), *texts]).decode()
        values, gaps = [np.empty(0, self.dtype)], [np.empty(0, bool)]
        for lo, hi, picked in pieces(self.spans(wide=True), rows):
            values.append(self.values(lo, hi)[picked])
            if self._mask is not None:
                gaps.append(self.gaps(lo, hi)[picked])
        return self._as_pandas(np.concatenate(values), np.concatenate(gaps))

    def array(self, lo: int, hi: int) -> Any:
        """Rows ``lo`` to ``hi``, as `take` returns them."""
        gaps = np.empty(0, bool) if self._mask is None else self.gaps(lo, hi)
        return self._as_pandas(self.values(lo, hi), gaps)

    def _as_pandas(self, values: np.ndarray, gaps: np.ndarray) -> Any:
        if self.kind == "categorical":
            return pd.Categorical.from_codes(values, self.categories, ordered=self.ordered)
        if self._mask is None:
            return values
        if self.kind == "nullable":
            masked = pd.arrays.BooleanArray if self.dtype == bool else pd.arrays.IntegerArray
            return masked(values, gaps)
        values[gaps] = pd.NA
        return pd.array(values, dtype=pd.StringDtype())


def texts(column: Column | InMemoryColumn) -> Iterable[str]:
    """All rows of a column as text; ``""`` where there is a gap."""
    if isinstance(column, InMemoryColumn):
        return column.series().astype(object).fillna("").astype(str)
    return np.concatenate([np.empty(0, object), *(column.text(*span) for span in column.spans())])


def pieces(
    spans: Iterator[tuple[int, int]], rows: np.ndarray | None
) -> Iterator[tuple[int, int, slice | np.ndarray]]:
    """Ranges with any of ``rows`` (sorted, int64; None wants all), each with an index of these."""
    for lo, hi in spans:
        if rows is None:
            yield lo, hi, slice(None)
            continue
        first, last = np.searchsorted(rows, [lo, hi])
        if first < last:
            yield lo, hi, rows[first:last] - lo


@dataclass(frozen=True)
class InMemoryColumn:
    """A column of a type that anndata must read as a whole: dates, bytes and rarer types."""

    path: str
    element: str
    n_rows: int
    _read: Callable[[], Any]
    as_text: bool = False
    is_text: bool = False

    def spans(self) -> Iterator[tuple[int, int]]:
        return iter([(0, self.n_rows)] if self.n_rows else [])

    def series(self) -> pd.Series:
        """All rows, as anndata reads them in a data frame."""
        with reading(self.path, self.element):
            values = self._read()
            series = pd.DataFrame({0: values}, index=range(self.n_rows))[0]
        return as_text(series) if self.as_text else series

    def dtype_made_text(self) -> Any:
        """Return pandas' dtype, if AnnData can write the column only as text."""
        series = self.series()
        return None if as_text(series) is None else series.dtype

    def take(self) -> Any:
        return self.series().array


def aligned(column: Column | InMemoryColumn, rows: np.ndarray) -> InMemoryColumn:
    """Some rows of a column of text, -1 for a gap, as a column of another table."""

    def read() -> Any:
        return pd.api.extensions.take(column.take(), rows, allow_fill=True)

    return InMemoryColumn(column.path, column.element, len(rows), read, is_text=True)


def open_column(path: str, table: StoredGroup, name: str, n_rows: int) -> Column | InMemoryColumn:
    """Open a column of a table with ``n_rows`` rows; one of another length is refused."""
    column = Column.find(path, table, name)
    if column is None:
        read = partial(read_column, table, name)
        return InMemoryColumn(path, element_of(table, name), n_rows, read)
    if column.n_rows != n_rows:
        raise InputError(
            f"{path}: {column.element} has {column.n_rows:,} rows, but the index of "
            f"{table.name.strip('/')} has {n_rows:,}: {REMEDY}"
        )
    return column


@dataclass(frozen=True)
class ColumnCodes:
    """A column as codes of ``names``: categories in their order, or other values ascending."""

    column: Column
    names: list[str]
    _values: pd.Index | None  # None: the column stores codes itself

    @classmethod
    def open(cls, column: Column, *, most: int | None = None) -> ColumnCodes | None:
        """Find the distinct values, for which other columns than categories are read once; None if
        such a column has more than ``most`` values.
        """
        if column.kind == "categorical":
            return cls(column, column.categories.astype(str).tolist(), None)
        found = pd.Index([], dtype=column.dtype)
        for lo, hi in column.spans(wide=True):
            values = column.values(lo, hi)[~column.gaps(lo, hi)]
            found = found.append(pd.Index(pd.unique(values))).unique()
            if most is not None and len(found) > most:
                return None
        found = found.sort_values()
        return cls(column, found.astype(str).tolist(), found)

    def read(self, lo: int, hi: int) -> NDArray[np.int64]:
        """Codes of rows ``lo`` to ``hi``, int64; -1 where there is no value."""
        values = self.column.values(lo, hi)
        if self._values is None:
            return values.astype(np.int64)
        codes = self._values.get_indexer(values).astype(np.int64)
        codes[self.column.gaps(lo, hi)] = -1
        return codes
