"""The Parquet files of a release of cells: found, complete, and what their footers say."""

from __future__ import annotations

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from glob import glob, has_magic
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from natsort import natsorted

from scatlas._util.names import first_names
from scatlas.compute.threads import n_threads
from scatlas.errors import InputError
from scatlas.io.files.listing import file_stamp
from scatlas.io.files.read_errors import reading

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet as pq

GENES_FILE = "gene_metadata.parquet"
_SHARD = re.compile(r"(.+)-(\d+)-of-(\d+)\.parquet")
# What a user can do about a file that cannot be decoded.
DOWNLOAD = "download this file again"
_MAX_NAMED = 5


class RowGroup(NamedTuple):
    """Part of a file that is decoded at once."""

    file: int
    number: int  # of the row group in the file
    n_rows: int
    n_values: int  # entries of all lists
    low: str | None  # bounds of the column that names the plates, if they are known
    high: str | None

    def may_hold(self, value: str) -> bool:
        return self.low is None or self.high is None or self.low <= value <= self.high

    def n_taken(self, taken: np.ndarray | None) -> int:
        """Number of cells, or of those of a mask."""
        return self.n_rows if taken is None else int(taken.sum())

    @property
    def is_mixed(self) -> bool:
        """Whether it may hold several plates."""
        return self.low is None or self.low != self.high


class ListColumns(NamedTuple):
    """Columns of the lists, by their types without ``genes``; a first entry that is no gene."""

    genes: str | None = None
    counts: str | None = None
    marker: Sequence[float] | None = (1, -2)  # token and value, in Tahoe-100M


BY_TYPE = ListColumns()


@dataclass(frozen=True)
class CellFiles:
    """Files of one release."""

    path: str  # as given: a folder, a pattern, or one file
    files: tuple[Path, ...]  # in natural order
    metadata: Path  # folder of gene_metadata.parquet
    columns: dict[str, Any]  # all columns with their types, in order
    _footers: dict[str | None, list[RowGroup]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @classmethod
    def find(cls, path: Path | str) -> CellFiles | None:
        """Find a release's files; None if it is no release, InputError for other files."""
        files = _files(str(path))
        if not files:
            return None
        _check_complete(str(path), files)
        places = (
            files[0].parent,
            files[0].parent / "metadata",
            files[0].parent.parent / "metadata",
        )
        metadata = next((place for place in places if (place / GENES_FILE).exists()), None)
        if metadata is None:
            raise InputError(
                f"{path}: there is no {GENES_FILE}, which says what gene a token is, in "
                f"{', '.join(map(str, places))}: download it to one of these folders"
            )
        with reading_parquet(files[0], "the footer"):
            import pyarrow.parquet as pq

            schema = pq.read_schema(files[0])
        columns = {name: schema.field(name).type for name in schema.names}
        return cls(str(path), tuple(files), metadata, columns)

    def lists(self, given: ListColumns = BY_TYPE) -> ListColumns:
        """Columns of the lists: those that are given, or the ones of the right types."""
        import pyarrow as pa

        kinds = {name: kind.value_type for name, kind in self.columns.items() if _is_list(kind)}
        tokens = [name for name, kind in kinds.items() if pa.types.is_integer(kind)]
        values = [name for name, kind in kinds.items() if pa.types.is_floating(kind)]
        found = ", ".join(f"{name} (of {kind})" for name, kind in kinds.items()) or "no lists"
        if given.genes is None and (len(tokens), len(values)) != (1, 1):
            raise InputError(
                f"{self.path}: one column of lists of whole numbers (gene tokens) and one of "
                f"floating point (counts) are needed, and there are {found}: name them in the "
                "config, as source: {genes: NAME, counts: NAME}"
            )
        lists = given if given.genes else ListColumns(tokens[0], values[0], given.marker)
        for key, name, fitting in (
            ("genes", lists.genes, tokens),
            ("counts", lists.counts, {*tokens, *values} - {lists.genes}),
        ):
            if name not in fitting:
                what = f"{'whole' if key == 'genes' else 'other'} numbers; the lists are {found}"
                raise InputError(
                    f"{self.path}: {name!r} (source.{key}) is no column of lists of {what}: "
                    f"correct source.{key}"
                )
        return lists

    def footers(self, by: str | None) -> list[RowGroup]:
        """Row groups of all files, in order; ``by`` is the column that names the plates, if any."""
        if by not in self._footers:
            # Footers are parsed without the interpreter's lock.
            with ThreadPoolExecutor(min(16, 2 * n_threads())) as pool:
                parts = pool.map(lambda i: self._footer(i, by), range(len(self.files)))
                self._footers[by] = [*chain.from_iterable(parts)]
        return self._footers[by]

    def _footer(self, file: int, by: str | None) -> list[RowGroup]:
        path = self.files[file]
        with reading_parquet(path, "the footer"):
            footer = read_footer(path)
            roots = _roots(footer)
        if missing := [name for name in self.columns if name not in roots]:
            raise InputError(
                f"{path}: it has no column {missing[0]!r}, which {self.files[0].name} has: it is "
                "of another release; leave it out"
            )
        names = {name for name, kind in self.columns.items() if _is_list(kind)}
        lists = [i for i, name in enumerate(roots) if name in names]
        groups = []
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            low = high = None
            if by is not None:
                low, high = text_bounds(group.column(roots.index(by)).statistics)
            n_values = max((group.column(i).num_values for i in lists), default=0)
            groups.append(RowGroup(file, number, group.num_rows, n_values, low, high))
        return groups

    def read(self, groups: Sequence[RowGroup], columns: list[str]) -> pa.Table:
        """Some columns of row groups of one file; text columns as dictionaries."""
        with self._opened(groups, columns) as file:
            numbers = [group.number for group in groups]
            table = file.read_row_groups(numbers, columns=columns, use_threads=False)
        if table.num_rows != sum(group.n_rows for group in groups):
            raise self.differs_from_footer(groups)
        return table

    def read_lists(
        self, group: RowGroup, columns: list[str]
    ) -> list[tuple[np.ndarray, np.ndarray]] | None:
        """Entries and offsets of columns of lists; None if :meth:`read` has to decode them."""
        import numpy as np

        from scatlas.io.chunks.parquet_pages import read_lists  # imports Numba

        path = self.files[group.file]
        found: list[tuple[np.ndarray, np.ndarray]] = []
        with reading_parquet(path, f"{_numbered([group])}, {_named(columns)},"):
            footer = read_footer(path)
            for number in map(_roots(footer).index, columns):
                column = footer.row_group(group.number).column(number)
                with path.open("rb", buffering=0) as file:
                    file.seek(column.dictionary_page_offset or 0)
                    content = file.read(column.total_compressed_size)
                kind = np.dtype(self.columns[columns[len(found)]].value_type.to_pandas_dtype())
                schema = footer.schema.column(number)
                lists = read_lists(content, column, schema, kind, group.n_rows)
                if lists is None:
                    return None
                found.append(lists)
        return found

    @contextmanager
    def _opened(self, groups: Sequence[RowGroup], columns: list[str]) -> Iterator[pq.ParquetFile]:
        import pyarrow.parquet as pq

        path = self.files[groups[0].file]
        with reading_parquet(path, f"{_numbered(groups)}, {_named(columns)},"):
            texts = [
                name for name in columns if name in self.columns and is_text(self.columns[name])
            ]
            with pq.ParquetFile(path, metadata=read_footer(path), read_dictionary=texts) as file:
                yield file

    def differs_from_footer(self, groups: Sequence[RowGroup]) -> InputError:
        n_rows, n_values = sum(g.n_rows for g in groups), sum(g.n_values for g in groups)
        msg = (
            f"{self.files[groups[0].file]}: {_numbered(groups)}: not the {n_rows:,} cells and "
            f"{n_values:,} entries of the footer: {DOWNLOAD}"
        )
        return InputError(msg)


def _roots(footer: pq.FileMetaData) -> list[str]:
    return [footer.schema.column(i).path.partition(".")[0] for i in range(footer.num_columns)]


def _numbered(groups: Sequence[RowGroup]) -> str:
    first, last = groups[0].number, groups[-1].number
    return f"row group {first}" if first == last else f"row groups {first} to {last}"


def _named(columns: list[str]) -> str:
    return f"column{'s' * (len(columns) != 1)} {', '.join(columns)}"


def is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


@contextmanager
def reading_parquet(path: Path, element: str) -> Iterator[None]:
    """Turn a failure of the decoder into a sentence that names file and element."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, MemoryError) as error:
        # The system's own errors have a number; Arrow's about bytes have none.
        if isinstance(error, MemoryError) or getattr(error, "errno", None):
            with reading(str(path), element):
                raise
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: {element} cannot be decoded ({reason}): {DOWNLOAD}") from error


def text_bounds(statistics: Any) -> tuple[str, str] | tuple[None, None]:
    """Least and greatest text of a part of a column; None where the footer does not tell."""
    if statistics is None or not (statistics.has_min_max and statistics.has_null_count):
        return None, None
    low, high = statistics.min, statistics.max
    tells = isinstance(low, str) or (type(low) is int and low == high)
    return (str(low), str(high)) if tells and not statistics.null_count else (None, None)


def read_footer(path: Path) -> pq.FileMetaData:
    """Footer of a file, which the blocks of the file share."""
    return _read_footer(path, file_stamp(path))


@lru_cache(maxsize=64)
def _read_footer(path: Path, stamp: str) -> pq.FileMetaData:  # noqa: ARG001
    import pyarrow.parquet as pq

    return pq.read_metadata(path)


def _files(path: str) -> list[Path]:
    """Parquet files of a folder, of its folder ``data``, of a pattern, or the one given."""
    given = Path(path)
    if "://" in path:
        return []
    if given.is_dir():
        found = [*(given / "data").glob("*.parquet")] or [*given.glob("*.parquet")]
    elif has_magic(path):
        found = [Path(name) for name in glob(path, recursive=True)]  # noqa: PTH207
        found = found if all(file.suffix == ".parquet" for file in found) else []
    else:
        found = [given] if given.suffix == ".parquet" and given.is_file() else []
    return natsorted(file for file in found if not file.name.endswith("_metadata.parquet"))


def _check_complete(path: str, files: list[Path]) -> None:
    """Refuse a release of which a file is missing, repeated, or not of it."""
    parts = {file: _SHARD.fullmatch(file.name) for file in files}
    of = {(match[1], match[3]) for match in parts.values() if match}
    if not of:
        return
    (first, n_files) = next(match.group(1, 3) for match in parts.values() if match)
    foreign = [f.name for f, m in parts.items() if not m or m.group(1, 3) != (first, n_files)]
    if foreign:
        raise InputError(
            f"{path}: {first_names(foreign, _MAX_NAMED)} {'is' if len(foreign) == 1 else 'are'} "
            f"not of the {int(n_files):,} files {first}-*-of-{n_files}.parquet: remove them from "
            "this folder"
        )
    width = len(n_files)
    there = Counter(int(match[2]) for match in parts.values() if match)
    if repeated := [number for number, n in there.items() if n > 1]:
        names = [f.name for f, m in parts.items() if m and int(m[2]) in repeated]
        raise InputError(
            f"{path}: {first_names(names, _MAX_NAMED)} are the same part: remove one of them"
        )
    missing = sorted({*range(int(n_files))} - {*there})
    if missing:
        names = [f"{first}-{number:0{width}}-of-{n_files}.parquet" for number in missing]
        raise InputError(
            f"{path}: {len(missing):,} of {int(n_files):,} files are missing, "
            f"{first_names(names, _MAX_NAMED)}: download them"
        )


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
