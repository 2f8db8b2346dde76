"""Matrices in Matrix Market's text format, genes x cells or cells x genes, with their lists. Source
of the format: Boisvert, Pozo, Remington, "The Matrix Market exchange formats", NIST 1996.
"""

from __future__ import annotations

import math
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp

from scatlas.errors import InputError
from scatlas.io.files.anndata_checks import check_not_empty
from scatlas.io.files.read_errors import REMEDY, reading
from scatlas.io.matrices.matrix_market_loops import squeeze_blanks
from scatlas.io.matrices.sorted_entries import write_csr
from scatlas.io.tables.text_lists import open_text

if TYPE_CHECKING:
    import io
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from scatlas.io.files.text_matrix import TextMatrix
    from scatlas.io.matrices.sorted_entries import Entries

# Bytes of text that are parsed at a time; a line that is longer than _LONGEST_LINE is damaged.
_BLOCK_BYTES, _LONGEST_LINE = 2**24, 2**20
_NO_ENTRIES: Entries = np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0)
_FIELDS = [["integer"], ["unsigned-integer"], ["real"], ["double"], ["pattern"]]


class _Header(NamedTuple):
    has_values: bool
    n_rows: int
    n_columns: int
    n_values: int


def convert_matrix_market(files: TextMatrix, store: Path, shape: tuple[int, int]) -> None:
    """Write a matrix of cells x features as ``X`` of a store without compression, 16 bytes per
    value.
    """
    with _opened(files) as (header, entries):
        rows_are_cells = _rows_are_cells(files, header, shape)
        write_csr(store, shape[0], _by_cell(entries, rows_are_cells=rows_are_cells))


def first_cells(files: TextMatrix, shape: tuple[int, int], n_values: int = 2**20) -> sp.csr_matrix:
    """The first cells of a matrix of cells x features, with about ``n_values`` values."""
    with _opened(files) as (header, entries):
        rows_are_cells = _rows_are_cells(files, header, shape)
        n_cells = math.ceil(min(1, n_values / max(1, header.n_values)) * shape[0])
        kept, last, in_order = [_NO_ENTRIES], -1, True
        for features, cells, values in _by_cell(entries, rows_are_cells=rows_are_cells):
            mine = cells < n_cells
            kept.append((features[mine], cells[mine], values[mine]))
            in_order &= bool(cells[0] >= last and (np.diff(cells) >= 0).all())
            last = int(cells[-1])
            if in_order and last >= n_cells:
                break
    features, cells, values = map(np.concatenate, zip(*kept, strict=True))
    return sp.csr_matrix((values, (cells, features)), (n_cells, shape[1]), float)


def first_values(files: TextMatrix) -> np.ndarray:
    """Values of the first block of text of a matrix."""
    with _opened(files) as (_, entries):
        return next((values for _, _, values in entries), np.empty(0))


def _by_cell(entries: Iterable[Entries], *, rows_are_cells: bool) -> Iterator[Entries]:
    """Feature, cell and value of entries, which are given with row, column and value."""
    for rows, columns, values in entries:
        yield (columns, rows, values) if rows_are_cells else (rows, columns, values)


def _rows_are_cells(files: TextMatrix, header: _Header, shape: tuple[int, int]) -> bool:
    """Whether the rows of a matrix are cells, by the lengths of its lists of cells and features."""
    rows, columns = header.n_rows, header.n_columns
    check_not_empty(files.path, (rows, columns) if files.rows == "cells" else (columns, rows))
    n_cells, n_genes = shape
    shapes = {"genes": (n_genes, n_cells), "cells": (n_cells, n_genes)}
    if (rows, columns) not in ([shapes[files.rows]] if files.rows else shapes.values()):
        order = "cells x genes" if files.rows == "cells" else "genes x cells"
        msg = (
            f"{files.matrix}: it has {rows:,} x {columns:,} entries, but {files.genes.name} lists "
            f"{n_genes:,} genes and {files.cells.name} {n_cells:,} cells: give a matrix of "
            f"{order}, and the lists that were written with it, without a header line"
        )
        raise InputError(msg)
    if rows == columns and files.rows is None:
        msg = (
            f"{files.matrix}: it has as many rows as columns, {rows:,}, so that nothing tells "
            "which are cells: rename the list of cells barcodes.tsv if the rows are genes, or the "
            "matrix cells_x_genes.mtx if they are cells"
        )
        raise InputError(msg)
    return files.rows == "cells" if rows == columns else rows == n_cells


@contextmanager
def _opened(files: TextMatrix) -> Iterator[tuple[_Header, Iterator[Entries]]]:
    """Sizes of a matrix, and its entries in blocks."""
    path = files.matrix
    with ExitStack() as stack:
        with reading(str(path), "the header"):
            stream = stack.enter_context(open_text(path))
            header = _read_header(path, stream)
        yield header, _entries(path, header, stream)


def _read_header(path: Path, stream: io.BufferedReader) -> _Header:
    first = stream.readline(_LONGEST_LINE).removeprefix(b"\xef\xbb\xbf").decode(errors="replace")
    banner = first.lower().split()
    kinds = ["%%matrixmarket", "matrix", "coordinate"]
    if banner[:3] != kinds or banner[3:4] not in _FIELDS or banner[4:] != ["general"]:
        msg = (
            f"{path}: its first line is {' '.join(first.split())[:60]!r}: write it as "
            "'%%MatrixMarket matrix coordinate integer general', with a line per entry"
        )
        raise InputError(msg)
    line = b"%"
    while line and (not line.strip() or line.lstrip().startswith(b"%")):
        line = stream.readline(_LONGEST_LINE)
    return _Header(banner[3] != "pattern", *map(int, line.split()))


def _entries(path: Path, header: _Header, stream: io.BufferedReader) -> Iterator[Entries]:
    """Yield row and column, both from 0, and value (counts of 32 bits) of a block of text's
    entries.
    """
    n_values = 0
    while True:
        with reading(str(path), "the matrix"):
            text = stream.read(_BLOCK_BYTES) + stream.readline(_LONGEST_LINE)
            if not text:
                break
            first = text.split(b"\n", 1)[0].split() if not n_values else []
            if len(first) > 3 and all(field.isdigit() for field in first):
                msg = (
                    f"{path}: an entry has {len(first) - 2} values, as in STARsolo's Velocyto: "
                    "give a matrix with one count per entry, as in STARsolo's Gene"
                )
                raise InputError(msg)
            rows, columns, values = _parse(text, has_values=header.has_values)
        if not len(rows):
            continue
        n_values += len(rows)
        if n_values > header.n_values:
            break
        for name, of, n in (
            ("row", rows, header.n_rows),
            ("column", columns, header.n_columns),
        ):
            low, high = int(of.min()), int(of.max())
            if low < 1 or high > n:
                wrong = low if low < 1 else high
                msg = f"{path}: an entry has {name} {wrong}, of 1 to {n}: {REMEDY}"
                raise InputError(msg)
        yield rows - 1, columns - 1, values
    if n_values != header.n_values:
        more = "more than" if n_values > header.n_values else f"{n_values:,} of"
        msg = f"{path}: there are {more} {header.n_values:,} entries: {REMEDY}"
        raise InputError(msg)


def _parse(text: bytes, *, has_values: bool) -> Entries:
    """Columns of whole lines of entries."""
    import pyarrow as pa
    from pyarrow import csv

    types = {"row": pa.int32(), "column": pa.int32()}
    types |= {"value": pa.float64()} if has_values else {}
    lines = np.empty(len(text), np.uint8)
    n = squeeze_blanks(np.frombuffer(text, np.uint8), lines)
    if not n:
        return _NO_ENTRIES
    table = csv.read_csv(
        pa.py_buffer(lines[:n]),
        csv.ReadOptions(column_names=list(types)),
        csv.ParseOptions(delimiter=" ", quote_char=False),
        csv.ConvertOptions(column_types=types, null_values=[]),
    )
    rows, columns, *values = (column.to_numpy() for column in table.columns)
    return rows, columns, values[0] if values else np.ones(table.num_rows)
