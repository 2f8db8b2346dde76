"""Counts of cells in Parquet files, read block by block where they are: no copy is made."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from scatlas.blocks import csr
from scatlas.compute.block_sizes import BYTES_PER_VALUE, block_bytes
from scatlas.errors import InputError
from scatlas.io.files.cell_files import BY_TYPE, DOWNLOAD, CellFiles, ListColumns, RowGroup
from scatlas.io.files.local_zarr import open_store
from scatlas.io.files.stamps import file_stamp
from scatlas.io.tables.column_writer import write_frame
from scatlas.io.tables.parquet_tables import read_genes, write_obs
from scatlas.io.tables.table import Table
from scatlas.io.zarr_writer.elements import create_group
from scatlas.kernels.counts.ragged_cpu import Lists, Marker, RaggedToCsr

if TYPE_CHECKING:
    from collections.abc import Callable

    import scipy.sparse as sp

# Most bytes of a block per entry: as it is decoded, as a count, and as that is encoded.
_BYTES_PER_ENTRY = 2 * BYTES_PER_VALUE


class _Matrix(NamedTuple):
    """How the counts are stored, for messages and for readers that ask."""

    key: str
    dtype: np.dtype
    format: str = "lists"


class Sample(NamedTuple):
    """The cells of one plate: the column that names the plates, and the plate's name there."""

    by: str
    name: str


class ParquetSource:
    """Counts of a release of Parquet files, or of one of its plates.

    The same face as :class:`scatlas.io.matrices.counts_source.CountsSource`.
    """

    kind = "parquet"

    def __init__(
        self,
        files: CellFiles,
        sample: Sample | None = None,
        lists: ListColumns = BY_TYPE,
        scratch: Path | None = None,
    ) -> None:
        self._files, self._sample, self._columns = files, sample, files.lists(lists)
        self._stack = ExitStack()
        self.path = files.path
        if sample is not None and sample.by not in files.columns:
            msg = (
                f"{files.path}: there is no column {sample.by!r}; it has {', '.join(files.columns)}"
            )
            raise InputError(msg)
        groups = files.footers(sample.by if sample else None)
        self._rows = _rows_of(files, groups, sample)
        if sample is not None and not self._rows:
            msg = f"{files.path}: no cell has {sample.by} {sample.name!r}: run again"
            raise InputError(msg)
        used = sorted({group.file for group, _ in self._rows})
        self._stamps = {i: file_stamp(files.files[i]) for i in used}
        var, self._gene_of_token = read_genes(files)
        if scratch is None:
            scratch = Path(self._stack.enter_context(TemporaryDirectory(prefix="scatlas-")))
        else:
            shutil.rmtree(scratch, ignore_errors=True)  # of a run that was killed
            self._stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        self._folder = scratch
        create_group(self._folder, {})
        write_frame(self._folder / "var", var)
        n_cells = sum(_n_taken(*part) for part in self._rows)
        self.shape = n_cells, len(var)
        self.matrix = _Matrix(str(self._columns.counts), np.dtype(np.float32))
        self._notices: list[str] = []
        # The width that blocks so far needed; which they are does not show in the result.
        self._lock, self._width, self.n_repeated = Lock(), np.dtype(np.uint8), 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the converted tables."""
        self._stack.close()

    @property
    def notices(self) -> list[str]:
        """Sentences about what is left out or changed, so far."""
        if not self.n_repeated:
            return self._notices
        repeated = f"{self.n_repeated:,} entries of a gene that a cell holds already: added to it"
        return [*self._notices, repeated]

    def table(self, name: str) -> Table:
        """``obs`` or ``var`` of the counts, on disk."""
        if name == "obs" and not (self._folder / "obs").exists():
            self._notices += write_obs(
                *(self._files, self._rows, self._folder / "obs", self._folder / "columns"),
                self._sample,
                {*self._columns[:2]},
            )
        return Table.open(self.path, open_store(self._folder), name)

    def path_of(self, row: int) -> str:
        """File and row group of a cell, for messages."""
        ends = np.cumsum([_n_taken(*part) for part in self._rows])
        return self._where(self._rows[int(np.searchsorted(ends, row, "right"))][0])

    def check_complete(self) -> None:
        """Nothing: that no file is missing is checked when they are found."""

    def others_with_counts(self) -> list[str]:
        """None: a release has one matrix."""
        return []

    def check_unchanged(self) -> None:
        """Refuse files that were changed since they were opened."""
        for i, before in self._stamps.items():
            if file_stamp(self._files.files[i]) != before:
                msg = f"{self._files.files[i]}: it changed while it was read: run again"
                raise InputError(msg)

    def blocks(
        self,
        budget: int,
        notify: Callable[[str], object],  # noqa: ARG002
    ) -> tuple[np.ndarray, list[tuple[int, int]], Callable[[int], sp.csr_matrix]]:
        """Cut the cells into blocks of whole row groups, see `CountsSource.blocks`."""
        limit = block_bytes(budget) // _BYTES_PER_ENTRY
        parts: list[list[int]] = []
        size = limit
        for i, (group, _) in enumerate(self._rows):
            if size + group.n_values > limit:
                parts.append([])
                size = 0
            parts[-1].append(i)
            size += group.n_values
        n_rows = [_n_taken(*part) for part in self._rows]
        ends = np.cumsum([sum(n_rows[i] for i in part) for part in parts]).tolist()
        cut = list(zip([0, *ends[:-1]], ends, strict=True)) or [(0, 0)]

        def read(block: int) -> sp.csr_matrix:
            return self._read(parts[block])

        return np.empty(0, np.int64), cut, read

    def _read(self, part: list[int]) -> sp.csr_matrix:
        """Row groups as one block."""
        rows = [self._rows[i] for i in part]
        sizes = (sum(_n_taken(*own) for own in rows), sum(group.n_values for group, _ in rows))
        n_genes = self.shape[1]
        marker = Marker(int(entry[0]), entry[1]) if (entry := self._columns.marker) else None
        block = RaggedToCsr(
            *(*sizes, self._gene_of_token, n_genes), marker=marker, dtype=self._width
        )
        for group, taken in rows:
            if unknown := block.append(self._lists(group, taken)):
                row, token = unknown
                row = row if taken is None else np.flatnonzero(taken)[row]
                msg = (
                    f"{self._where(group)}: row {row} holds token {token}, which "
                    "gene_metadata.parquet lacks: download the files of one release"
                )
                raise InputError(msg)
        data, indices, indptr, n_repeated = block.block()
        with self._lock:
            self._width = max(self._width, data.dtype)
            self.n_repeated += n_repeated
        return csr(data, indices, indptr, n_genes)

    def _where(self, group: RowGroup) -> str:
        return f"{self._files.files[group.file]}: row group {group.number}"

    def _lists(self, group: RowGroup, taken: np.ndarray | None) -> Lists:
        """Lists of the cells of a row group."""
        names = [str(name) for name in self._columns[:2]]
        if taken is None and (lists := self._files.read_lists(group, names)):
            (tokens, own), (values, other) = lists
            if np.array_equal(own, other) and tokens.size <= group.n_values:
                return Lists(tokens, values, own)
        table = self._files.read([group], names)
        table = table if taken is None else table.filter(taken)
        columns = [table[name].combine_chunks() for name in names]
        flat = [column.flatten() for column in columns]
        if any(column.null_count for column in (*columns, *flat)):
            msg = f"{self._where(group)}: a list or an entry of it is missing: {DOWNLOAD}"
            raise InputError(msg)
        offsets = [np.asarray(column.offsets, np.int64) for column in columns]
        offsets = [each - each[0] for each in offsets]
        if not np.array_equal(offsets[0], offsets[1]):
            msg = (
                f"{self._where(group)}: a cell has lists of unlike lengths in "
                f"{' and '.join(names)}: {DOWNLOAD}"
            )
            raise InputError(msg)
        if len(flat[0]) > group.n_values:
            raise self._files.differs_from_footer([group])
        tokens, values = (part.to_numpy() for part in flat)
        kind = values.dtype if values.dtype == np.float32 else np.dtype(np.float64)
        return Lists(
            tokens.astype(np.int64, copy=False), values.astype(kind, copy=False), offsets[0]
        )


def _n_taken(group: RowGroup, taken: np.ndarray | None) -> int:
    return group.n_rows if taken is None else int(taken.sum())


def _rows_of(
    files: CellFiles, groups: list[RowGroup], sample: Sample | None
) -> list[tuple[RowGroup, np.ndarray | None]]:
    """Row groups with cells of the plate; of those with others, too, which cells are its."""
    if sample is None:
        return [(group, None) for group in groups]
    rows: list[tuple[RowGroup, np.ndarray | None]] = []
    for group in groups:
        if not group.may_hold(sample.name):
            continue
        taken = None
        if group.is_mixed:
            column = files.read([group], [sample.by])[sample.by].cast("string")
            taken = column.to_numpy() == sample.name
            if not taken.any():
                continue
        rows.append((group, taken))
    return rows


def is_ordered(files: CellFiles, by: str, n_plates: int) -> bool:
    """Whether each plate can be read on its own: few row groups hold several plates."""
    groups = files.footers(by)
    return sum(group.is_mixed for group in groups) <= max(n_plates, len(groups) // 10)


def list_plates(files: CellFiles, by: str) -> dict[str, int]:
    """Plates of a release with their numbers of cells, in the order of their first cells.

    Raises
    ------
    InputError
        There is no such column, or a cell has no plate.
    """
    if by not in files.columns:
        columns = ", ".join(files.columns)
        msg = f"{files.path}: there is no column {by!r} (plates.by); it has {columns}"
        raise InputError(msg)
    n_cells: dict[str, int] = {}
    for group in files.footers(by):
        if not group.is_mixed and group.low is not None:
            n_cells[group.low] = n_cells.get(group.low, 0) + group.n_rows
            continue
        column = files.read([group], [by])[by].cast("string")
        if column.null_count:
            msg = (
                f"{files.files[group.file]}: {column.null_count:,} cells have no {by}: give each "
                "cell its plate"
            )
            raise InputError(msg)
        for entry in column.value_counts().to_pylist():  # in the order of first cells
            n_cells[entry["values"]] = n_cells.get(entry["values"], 0) + entry["counts"]
    return n_cells
