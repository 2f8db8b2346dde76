"""An obs or var table that stays on disk: read, mended and written column by column, as a plate's
obs takes up to 1.5 kB per cell as a data frame.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pandas as pd

from scatlas.errors import InputError
from scatlas.io.chunks.encoded_text import EncodedText
from scatlas.io.files.anndata_checks import (
    STRUCTURE,
    check_anndata,
    decode_text,
    frame_length,
    required_attribute,
)
from scatlas.io.files.anndata_file import Store, load_filters
from scatlas.io.files.read_errors import REMEDY, reading
from scatlas.io.tables.cell_names import NumberedNames
from scatlas.io.tables.column import Column, InMemoryColumn, aligned, open_column, pieces
from scatlas.io.tables.encodings import (
    NONE,
    OLD_CATEGORIES,
    TABLES,
    encoding_of,
    storable_names,
    text_notice,
)
from scatlas.io.zarr_writer.node_metadata import is_storable

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from scatlas.io.files.local_zarr import StoredGroup


logger = logging.getLogger(__name__)

# Names are read several times: to compare, to look up and to write them. Those of tables with at
# most this many rows, which take up to 10 MB, stay in memory.
_MAX_CACHED_NAMES = 2**17

# obs columns that the step `load` adds.
METRICS = ("total_counts", "n_genes_by_counts", "total_counts_mt", "pct_counts_mt")
# var columns that the step `load` adds.
GENE_METRICS = ("mt", "n_cells_by_counts", "total_counts")


@contextmanager
def open_tables(path: Path | str) -> Iterator[tuple[Table, Table]]:
    """Open obs and var of an AnnData file, without reading them or X.

    Parameters
    ----------
    path
        h5ad file or Zarr store (v2 or v3), a local path or a URL that fsspec opens.

    Yields
    ------
    obs and var, to be read while the file is open.

    Raises
    ------
    InputError
        The file does not exist, is no AnnData file, or a table's parts do not agree.
    """
    store = Store.find(path)
    with store.open() as root:
        with reading(store.path, STRUCTURE):
            check_anndata(store.path, root)
        yield Table.open(store.path, root, "obs"), Table.open(store.path, root, "var")


@dataclass(frozen=True)
class Writing:
    """A table that a thread is writing: see `Table.writing`."""

    _values: Future[Mapping[str, np.ndarray]]
    _written: Future[None]

    def __call__(self, columns: Mapping[str, np.ndarray]) -> None:
        """Write the further columns, and return when the table is written, or raise its error."""
        self._values.set_result(columns)
        self._written.result()

    def check(self) -> None:
        """Raise the error that stopped the thread, if there is one."""
        if self._written.done():
            self._written.result()


@dataclass(frozen=True)
class Table:
    """obs or var of an opened file, which `path` and `name` say in messages; columns in order."""

    path: str
    name: str
    n_rows: int
    index_name: str | None
    columns: Mapping[str, Column | InMemoryColumn]
    _index: Column | InMemoryColumn
    _numbered: NumberedNames | None = None
    _cached_names: dict[tuple[int, int], np.ndarray] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, path: Path | str, root: StoredGroup, name: str) -> Table:
        """Open ``obs`` or ``var`` of a file, which stays open while the table is in use."""
        path = str(path)
        n_rows = frame_length(path, root, name)
        with reading(path, name):
            table = root[name]
            load_filters(path, table)
            encoding = encoding_of(table)
            key = required_attribute(path, root, name, "_index")
            order = table.attrs.get("column-order")
            # SeuratDisk writes none, and R none of an empty vector.
            if order is None or isinstance(order, h5py.Empty):
                order = sorted(set(table) - {key, OLD_CATEGORIES})
            order = [order] if isinstance(order, str) else [*map(decode_text, order)]
        if encoding not in (*TABLES, NONE):
            msg = f"{path}: {name} is stored as {encoding[0]!r}, not as a data frame: {REMEDY}"
            raise InputError(msg)
        return cls(
            path=path,
            name=name,
            n_rows=n_rows,
            index_name=None if key == "_index" else key,
            columns={column: open_column(path, table, column, n_rows) for column in order},
            _index=open_column(path, table, key, n_rows),
        )

    def names(self, lo: int, hi: int) -> np.ndarray:
        """Names of rows ``lo`` to ``hi``, ``object`` array of ``str``."""
        if self._numbered is not None:
            return self._numbered.read(lo, hi).decode()
        return self._stored_names(lo, hi)

    def _stored_names(self, lo: int, hi: int) -> np.ndarray:
        if self.n_rows > _MAX_CACHED_NAMES:
            return self._read_names(lo, hi)
        if (lo, hi) not in self._cached_names:
            self._cached_names[lo, hi] = self._read_names(lo, hi)
        return self._cached_names[lo, hi].copy()

    def _encoded_names(self, lo: int, hi: int) -> EncodedText:
        """Names as they are stored, without Python strings where the file allows that."""
        index = self._index
        is_large = self.n_rows > _MAX_CACHED_NAMES
        if is_large and isinstance(index, Column) and index.is_whole_text(lo, hi):
            return index.encoded_text(lo, hi)
        return EncodedText.encode(self._stored_names(lo, hi))

    def _read_names(self, lo: int, hi: int) -> np.ndarray:
        index = self._index
        if isinstance(index, InMemoryColumn):
            names = index.series().iloc[lo:hi]
        elif index.is_whole_text(lo, hi):
            return index.values(lo, hi)
        else:
            names = index.array(lo, hi)
        with reading(self.path, index.element):
            return np.array(pd.Index(names).astype(str), dtype=object)

    def index(self) -> pd.Index:
        """Names of all rows, of 60 to 100 bytes each."""
        names = [self.names(lo, hi) for lo, hi in self.spans()]
        joined = np.concatenate([np.empty(0, object), *names])
        return pd.Index(joined, dtype=object, name=self.index_name)

    def name_of(self, row: int) -> str:
        return str(self.names(row, row + 1)[0])

    def spans(self) -> Iterator[tuple[int, int]]:
        """Ranges of rows whose names are read at once, in order."""
        return self._index.spans()

    def read(self, columns: Iterable[str] | None = None, *, index: bool = True) -> pd.DataFrame:
        """Read some columns, or all, as anndata does, except that row names are always text."""
        wanted = list(self.columns if columns is None else columns)
        rows = self.index() if index else pd.RangeIndex(self.n_rows)
        taken = {name: self.columns[name].take() for name in wanted}
        return pd.DataFrame(taken, index=rows, columns=wanted or None, copy=False)

    def for_query(self, names: Iterable[str]) -> pd.DataFrame:
        """Data frame with the columns that a query uses (see `query_columns`), and the index if it
        does. If a name is neither, it has all columns and no row: pandas then raises its error.
        """
        names = list(dict.fromkeys(names))
        index = {"index", "ilevel_0", self.index_name}
        columns = [name for name in names if name in self.columns]
        if any(name not in self.columns and name not in index for name in names):
            return pd.DataFrame(columns=list(self.columns))
        return self.read(columns, index=len(columns) < len(names))

    def storable(self, notify: Callable[[str], None], *, unique_names: bool = True) -> Table:
        """Table with the columns and names that AnnData can store; changes of columns are told,
        repeated row names by :meth:`renamed`. Reads only the dropped columns.
        """
        columns = dict(self.columns)
        for name, column in columns.items():
            if (
                isinstance(column, InMemoryColumn)
                and (dtype := column.dtype_made_text()) is not None
            ):
                notify(text_notice(self.name, name, dtype))
                columns[name] = replace(column, as_text=True)
        stored = storable_names(columns, self.name, notify)
        for name in columns:
            if name not in stored:
                _check(columns[name])
        named = (self.index_name or "").replace("/", "_")
        index_name = named if is_storable(named) else None
        numbered = NumberedNames(self._encoded_names, list(self.spans()))
        return replace(
            self,
            columns={fresh: columns[name] for name, fresh in stored.items()},
            index_name=index_name,
            _numbered=numbered if unique_names else None,
        )

    def text_columns(self) -> list[str]:
        """Columns of text, and of categories that are text."""
        return [name for name, column in self.columns.items() if column.is_text]

    def with_text_of(self, other: Table, notify: Callable[[str], None]) -> Table:
        """Add the columns of text that ``other`` alone has, by the names of the rows."""
        lacking = [name for name in other.text_columns() if name not in self.columns]
        if not lacking:
            return self
        rows = pd.Series(np.arange(other.n_rows), other.index())
        rows = rows[~rows.index.duplicated(keep=False)]
        rows = rows.reindex(self.index(), fill_value=-1).to_numpy()
        n_found = int((rows >= 0).sum())
        if not n_found:
            return self
        notify(
            f"{self.name} has no column {' or '.join(lacking)}: taken from {other.name} by the "
            f"names of {n_found:,} of {self.n_rows:,} rows"
        )
        added = {name: aligned(other.columns[name], rows) for name in lacking}
        return replace(self, columns={**self.columns, **added})

    def with_room_for(self, names: Iterable[str]) -> tuple[Table, list[str]]:
        """Rename columns that new ones replace, with the prefix ``source_``, and say which."""
        names, columns, notices = set(names), {}, []
        for name, column in self.columns.items():
            fresh = name
            while fresh in names or (fresh != name and fresh in self.columns):
                fresh = f"source_{fresh}"
            if fresh != name:
                notices.append(f"{self.name} had a column {name!r}: it is {fresh!r} now")
            columns[fresh] = column
        return replace(self, columns=columns), notices

    def renamed(self) -> str | None:
        """Sentence on repeated names that `storable` has made unique; None if there are none."""
        n = 0 if self._numbered is None else self._numbered.n_changed
        if not n:
            return None
        return f"{self.name} had {n:,} repeated cell names: made unique by a number at the end"

    def write(
        self,
        folder: Path,
        *,
        rows: np.ndarray | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the table, or some rows (int64, ascending), in AnnData's encoding for Zarr v3.

        ``extra`` columns, or functions called after all others are written, replace those of
        their names, which are read nevertheless: none may be damaged.
        """
        from scatlas.io.tables.column_writer import write_array
        from scatlas.io.zarr_writer.elements import DATAFRAME, create_group
        from scatlas.io.zarr_writer.sharded_array import encoding_pool

        extra = dict(extra or {})
        n_rows = self._check_rows(rows)
        order = [*self.columns, *(name for name in extra if name not in self.columns)]
        key = self._index_key(order, extra)
        with encoding_pool() as pool:
            self._write_names(folder / key, rows, pool)
            create_group(folder, {**DATAFRAME, "column-order": order, "_index": key})
            for name in order:
                if name in extra:
                    _check(self.columns.get(name))
                elif name != key:
                    self._write_column(name, folder, rows, pool)
            for name, given in extra.items():
                values = given() if callable(given) else given
                if len(values) != n_rows:
                    msg = f"{name} has {len(values)} values for {n_rows} rows of {self.name}"
                    raise ValueError(msg)
                write_array(folder, name, pd.Series(values, copy=False).array, pool)

    def write_groups(
        self,
        folders: Sequence[Path],
        groups: Sequence[np.ndarray] | None = None,
        *,
        all_categories: bool = False,
    ) -> None:
        """Write several tables, each of some rows in their order (None: all), and by default
        without the categories that these do not use; each column is read once, whole.
        """
        from scatlas.io.tables.column_writer import write_array
        from scatlas.io.zarr_writer.elements import DATAFRAME, create_group, writable_frame
        from scatlas.io.zarr_writer.sharded_array import encoding_pool

        order = [*self.columns]
        key = self._index_key(order, ())
        with encoding_pool() as pool:
            for folder in folders:
                create_group(folder, {**DATAFRAME, "column-order": order, "_index": key})
            for name in [key, *(name for name in order if name != key)]:
                column = self.index() if name == key else self.columns[name].take()
                whole = pd.Series(np.asarray(column) if name == key else column)
                for i, folder in enumerate(folders):
                    own = whole if groups is None else whole.iloc[groups[i]]
                    is_part = groups is not None and not all_categories
                    if is_part and isinstance(own.dtype, pd.CategoricalDtype):
                        own = own.cat.remove_unused_categories()
                    values = writable_frame(pd.DataFrame({name: own}))[name].array
                    write_array(folder, name, values, pool)

    @contextmanager
    def writing(
        self, folder: Path, *, deferred_columns: Iterable[str], rows: np.ndarray | None = None
    ) -> Iterator[Writing]:
        """Write in a thread; the yielded function takes deferred columns and raises its errors."""
        values: Future[Mapping[str, np.ndarray]] = Future()
        # The thread searches the table for columns of these names and writes all others before it
        # needs the values.
        extra = {name: partial(lambda n: values.result()[n], name) for name in deferred_columns}
        with ThreadPoolExecutor(1, "scatlas-obs") as thread:
            written = thread.submit(self.write, folder, rows=rows, extra=extra)
            try:
                yield Writing(values, written)
            finally:
                values.cancel()  # after an error the thread would wait for them

    def _write_names(self, path: Path, rows: np.ndarray | None, pool: ThreadPoolExecutor) -> None:
        from scatlas.io.tables.column_writer import ColumnWriter, Target

        text, numbered = Target("text", np.dtype(object)), self._numbered
        if rows is None and numbered is not None and not numbered.is_known:
            # Names hardly ever repeat. If they do, which shows here, they are written once more.
            with ColumnWriter(path, text, pool) as column:
                for names in numbered.stored():
                    column.append(names)
            if not numbered.n_changed:
                return
        with ColumnWriter(path, text, pool) as column:
            read = self._encoded_names if numbered is None else numbered.read
            for lo, hi, picked in pieces(self.spans(), rows):
                column.append(read(lo, hi)[picked])

    def _write_column(
        self, name: str, folder: Path, rows: np.ndarray | None, pool: ThreadPoolExecutor
    ) -> None:
        from scatlas.io.tables.column_writer import ColumnWriter, Target
        from scatlas.io.zarr_writer.elements import open_group_to_write, writable_frame, write_elem

        column = self.columns[name]
        if isinstance(column, InMemoryColumn):
            values = column.series()
            frame = pd.DataFrame({name: values if rows is None else values.iloc[rows]})
            write_elem(open_group_to_write(folder), name, writable_frame(frame)[name].values)
            return
        target = Target.narrowest_for([column])
        if column.kind == "text" and target.kind == "categorical":
            # Text with gaps: as pandas makes categories of it.
            target = Target.categorical(np.sort(target.categories))
        with ColumnWriter(folder / name, target, pool) as writer:
            writer.append_column(column, rows)

    def _check_rows(self, rows: np.ndarray | None) -> int:
        if rows is None:
            return self.n_rows
        if rows.size and (rows[0] < 0 or rows[-1] >= self.n_rows or (np.diff(rows) <= 0).any()):
            msg = f"rows have to ascend, without repeats, from 0 to at most {self.n_rows - 1}"
            raise ValueError(msg)
        return rows.size

    def _index_key(self, order: list[str], extra: Container[str]) -> str:
        """Element of the index. It may be a column as well only while both hold the same."""
        if self.index_name is None or self.index_name not in order:
            return self.index_name or "_index"
        column = self.columns.get(self.index_name)
        same = (
            self.index_name not in extra
            and isinstance(column, Column)
            and column.element == self._index.element
            and column.is_plain_text
            and not self.renamed()
        )
        return self.index_name if same else "_index"


def _check(column: Column | InMemoryColumn | None) -> None:
    """Refuse a column that is not written if it cannot be decoded."""
    if isinstance(column, Column):
        column.check()
