"""Counts of cells in Parquet files, read block by block where they are: no copy is made."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from scatlas.blocks import csr
from scatlas.compute.memory import BYTES_PER_VALUE, block_bytes
from scatlas.errors import InputError
from scatlas.io.files.cell_files import DOWNLOAD, CellFiles, ListColumns, RowGroup
from scatlas.io.files.listing import file_stamp
from scatlas.io.files.local_zarr import open_store
from scatlas.io.matrices.layout import StoredMatrix
from scatlas.io.matrices.source import COUNTS, CountsSource, Sample, Wanted
from scatlas.io.tables.column_writer import write_frame
from scatlas.io.tables.parquet_tables import read_genes, write_obs
from scatlas.io.tables.table import Table
from scatlas.io.zarr_writer.elements import create_group
from scatlas.kernels.counts.ragged_cpu import Lists, Marker, RaggedToCsr

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    import scipy.sparse as sp

# Most bytes of a block per entry: as it is decoded, as a count, and as that is encoded.
_BYTES_PER_ENTRY = 2 * BYTES_PER_VALUE


class ParquetSource(CountsSource):
    """Counts of a release of Parquet files, or of one of its plates."""

    def __init__(self, files: CellFiles, wanted: Wanted = Wanted()) -> None:  # noqa: B008
        super().__init__(files.path, wanted)
        self._files, self._sample = files, wanted.sample
        sample = wanted.sample
        if sample is not None and sample.by not in files.columns:
            raise InputError(
                f"{files.path}: there is no column {sample.by!r}; it has {', '.join(files.columns)}"
            )
        self._var, self._gene_of_token = read_genes(files)
        # The width that blocks so far needed; which they are does not show in the result.
        self._lock, self._width, self.n_repeated = Lock(), np.dtype(np.uint8), 0

    @cached_property
    def _columns(self) -> ListColumns:
        counts, lists = self._wanted.counts, self._wanted.lists
        if lists.genes is None:
            self.refuse_elements()
        return self._files.lists(lists._replace(counts=counts))

    @cached_property
    def _rows(self) -> list[tuple[RowGroup, np.ndarray | None]]:
        files, sample = self._files, self._sample
        rows = _rows_of(files, files.footers(sample.by if sample else None), sample)
        if sample is not None and not rows:
            raise InputError(f"{files.path}: no cell has {sample.by} {sample.name!r}: run again")
        self._stamps = {
            i: file_stamp(files.files[i]) for i in sorted({group.file for group, _ in rows})
        }
        return rows

    @cached_property
    def shape(self) -> tuple[int, int]:
        return sum(group.n_taken(taken) for group, taken in self._rows), len(self._var)

    @cached_property
    def matrix(self) -> StoredMatrix:
        key = str(self._columns.counts)
        return StoredMatrix(self.path, key, "lists", self.shape, np.dtype(np.float32))

    @property
    def notices(self) -> list[str]:
        if not self.n_repeated:
            return self._notices
        repeated = f"{self.n_repeated:,} entries of a gene that a cell holds already: added to it"
        return [*self._notices, repeated]

    def table(self, name: str) -> Table:
        folder = self._folder
        if not (folder / "var").exists():
            create_group(folder, {})
            write_frame(folder / "var", self._var)
        if not (folder / name).exists():
            columns = self._files.columns.items()
            others = {name: kind for name, kind in columns if name not in self._columns[:2]}
            files, to = replace(self._files, columns=others), folder / "obs"
            self._notices += write_obs(files, self._rows, to, folder / "columns", self._sample)
        return Table.open(self.path, open_store(folder), name)

    def path_of(self, row: int) -> str:
        ends = np.cumsum([group.n_taken(taken) for group, taken in self._rows])
        return self._where(self._rows[int(np.searchsorted(ends, row, "right"))][0])

    def elements(self) -> dict[str, str | InputError]:
        """The one matrix: `load` looks at each value."""
        return {self._wanted.counts: COUNTS}

    def genes(self) -> pd.Index:
        return self._var.index

    def plates(self, by: str) -> dict[str, int]:
        """Plates and their numbers of cells, in the order of their first cells."""
        files = self._files
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
                raise InputError(
                    f"{files.files[group.file]}: {column.null_count:,} cells have no {by}: give "
                    "each cell its plate"
                )
            for entry in column.value_counts().to_pylist():  # in the order of first cells
                n_cells[entry["values"]] = n_cells.get(entry["values"], 0) + entry["counts"]
        return n_cells

    def is_ordered(self, by: str, n_plates: int) -> bool:
        """Whether each plate can be read on its own: few row groups hold several plates."""
        _ = self._columns  # wrong names are refused now, not in jobs
        groups = self._files.footers(by)
        return sum(group.is_mixed for group in groups) <= max(n_plates, len(groups) // 10)

    def check_unchanged(self) -> None:
        for i, before in self._stamps.items():
            if file_stamp(self._files.files[i]) != before:
                raise InputError(f"{self._files.files[i]}: it changed while it was read: run again")

    def blocks(
        self,
        budget: int,
        notify: Callable[[str], object],  # noqa: ARG002
    ) -> tuple[list[tuple[int, int]], Callable[[int], sp.csr_matrix]]:
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
        n_rows = [group.n_taken(taken) for group, taken in self._rows]
        ends = np.cumsum([sum(n_rows[i] for i in part) for part in parts]).tolist()
        cut = list(zip([0, *ends[:-1]], ends, strict=True)) or [(0, 0)]

        return cut, lambda block: self._read(parts[block])

    def _read(self, part: list[int]) -> sp.csr_matrix:
        rows = [self._rows[i] for i in part]
        n_cells = sum(group.n_taken(taken) for group, taken in rows)
        n_values = sum(group.n_values for group, _ in rows)
        n_genes = self.shape[1]
        marker = Marker(int(entry[0]), entry[1]) if (entry := self._columns.marker) else None
        tokens = self._gene_of_token, n_genes
        block = RaggedToCsr(n_cells, n_values, *tokens, marker=marker, dtype=self._width)
        for group, taken in rows:
            if unknown := block.append(self._lists(group, taken)):
                row, token = unknown
                row = row if taken is None else np.flatnonzero(taken)[row]
                raise InputError(
                    f"{self._where(group)}: row {row} holds token {token}, which "
                    "gene_metadata.parquet lacks: download the files of one release"
                )
        data, indices, indptr, n_repeated = block.block()
        with self._lock:
            self._width = max(self._width, data.dtype)
            self.n_repeated += n_repeated
        return csr(data, indices, indptr, n_genes)

    def _where(self, group: RowGroup) -> str:
        return f"{self._files.files[group.file]}: row group {group.number}"

    def _lists(self, group: RowGroup, taken: np.ndarray | None) -> Lists:
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
            raise InputError(
                f"{self._where(group)}: a cell has lists of unlike lengths in "
                f"{' and '.join(names)}: {DOWNLOAD}"
            )
        if len(flat[0]) > group.n_values:
            raise self._files.differs_from_footer([group])
        tokens, values = (part.to_numpy() for part in flat)
        kind = values.dtype if values.dtype == np.float32 else np.dtype(np.float64)
        return Lists(
            tokens.astype(np.int64, copy=False), values.astype(kind, copy=False), offsets[0]
        )


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
