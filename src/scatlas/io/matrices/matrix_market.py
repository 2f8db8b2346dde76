"""Matrices in Matrix Market's text format, with their lists, written as CSR in bounded memory.

Source of the format: Boisvert, Pozo, Remington, "The Matrix Market exchange formats", NIST 1996.
"""

from __future__ import annotations

import math
import shutil
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp

from scatlas.errors import InputError
from scatlas.io.files.anndata_checks import check_not_empty
from scatlas.io.files.read_errors import REMEDY, reading
from scatlas.io.tables.cell_ranger import open_text
from scatlas.io.zarr_writer.elements import create_group
from scatlas.io.zarr_writer.shard_files import RawArray
from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    import io
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from scatlas.io.files.text_matrix import TextMatrix

    # Gene, cell and value of some entries.
    Entries = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]

# Bytes of text that are parsed at a time; a line that is longer than _LONGEST_LINE is damaged.
_BLOCK_BYTES, _LONGEST_LINE = 2**24, 2**20
_NO_ENTRIES: Entries = np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0)
_FIELDS = [["integer"], ["unsigned-integer"], ["real"], ["double"], ["pattern"]]
_LINE_START, _IN_FIELD, _BEHIND_FIELD, _IN_COMMENT = range(4)
_DTYPES: dict[str, np.dtype] = {
    "data": np.dtype(np.float64),
    "indices": np.dtype(np.int32),
    "cells": np.dtype(np.int32),
}


class _Header(NamedTuple):
    has_values: bool
    n_rows: int
    n_columns: int
    n_values: int


def convert_matrix_market(files: TextMatrix, store: Path, shape: tuple[int, int]) -> None:
    """Write cells x features as ``X`` of a store without compression, 16 bytes per value."""
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
        raise InputError(
            f"{files.matrix}: it has {rows:,} x {columns:,} entries, but {files.genes.name} lists "
            f"{n_genes:,} genes and {files.cells.name} {n_cells:,} cells: give a matrix of "
            f"{order}, and the lists that were written with it, without a header line"
        )
    if rows == columns and files.rows is None:
        raise InputError(
            f"{files.matrix}: it has as many rows as columns, {rows:,}, so that nothing tells "
            "which are cells: rename the list of cells barcodes.tsv if the rows are genes, or the "
            "matrix cells_x_genes.mtx if they are cells"
        )
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
        raise InputError(
            f"{path}: its first line is {' '.join(first.split())[:60]!r}: write it as "
            "'%%MatrixMarket matrix coordinate integer general', with a line per entry"
        )
    line = b"%"
    while line and (not line.strip() or line.lstrip().startswith(b"%")):
        line = stream.readline(_LONGEST_LINE)
    return _Header(banner[3] != "pattern", *map(int, line.split()))


def _entries(path: Path, header: _Header, stream: io.BufferedReader) -> Iterator[Entries]:
    """Yield rows and columns, both from 0, and values (32-bit counts), block by block of text."""
    n_values = 0
    while True:
        with reading(str(path), "the matrix"):
            text = stream.read(_BLOCK_BYTES) + stream.readline(_LONGEST_LINE)
            if not text:
                break
            first = text.split(b"\n", 1)[0].split() if not n_values else []
            if len(first) > 3 and all(field.isdigit() for field in first):
                raise InputError(
                    f"{path}: an entry has {len(first) - 2} values, as in STARsolo's Velocyto: "
                    "give a matrix with one count per entry, as in STARsolo's Gene"
                )
            rows, columns, values = _parse(text, has_values=header.has_values)
        if not len(rows):
            continue
        n_values += len(rows)
        if n_values > header.n_values:
            break
        for name, of, n in (("row", rows, header.n_rows), ("column", columns, header.n_columns)):
            low, high = int(of.min()), int(of.max())
            if low < 1 or high > n:
                wrong = low if low < 1 else high
                raise InputError(f"{path}: an entry has {name} {wrong}, of 1 to {n}: {REMEDY}")
        yield rows - 1, columns - 1, values
    if n_values != header.n_values:
        more = "more than" if n_values > header.n_values else f"{n_values:,} of"
        raise InputError(f"{path}: there are {more} {header.n_values:,} entries: {REMEDY}")


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


@njit(nogil=True, cache=True)
def squeeze_blanks(text: NDArray[np.uint8], out: NDArray[np.uint8]) -> int:
    """Write whole lines with one blank between fields and no comments, and return their size."""
    n = 0
    state = _LINE_START
    for c in text:
        if c > 32:
            if state == _LINE_START and c == 37:  # %
                state = _IN_COMMENT
            if state == _IN_COMMENT:
                continue
            if state == _BEHIND_FIELD:
                out[n] = 32
                n += 1
            out[n] = c
            n += 1
            state = _IN_FIELD
        elif c == 10 or c == 13:  # \n, \r
            if state in (_IN_FIELD, _BEHIND_FIELD):
                out[n] = 10
                n += 1
            state = _LINE_START
        elif state == _IN_FIELD:
            state = _BEHIND_FIELD
    return n


def write_csr(folder: Path, n_cells: int, blocks: Iterable[Entries]) -> None:
    """Write the entries as ``X`` of a store, those of a cell in the order of the blocks, which are
    merged if they do not follow each other, in memory for two blocks and twice the disk.
    """
    create_group(folder / "X", {})
    scratch = folder / "blocks"
    arrays = {name: RawArray(scratch / name, dtype) for name, dtype in _DTYPES.items()}
    lengths = np.zeros(n_cells, np.int64)
    starts, last, in_order = [0], -1, True
    for genes, cells, values in blocks:
        if (np.diff(cells) < 0).any():
            order = np.argsort(cells, kind="stable")
            genes, cells, values = genes[order], cells[order], values[order]
        first, previous, last = cells[0], last, cells[-1]
        in_order &= bool(first >= previous)
        lengths[first : last + 1] += np.bincount(cells - first)
        for name, piece in (("data", values), ("indices", genes), ("cells", cells)):
            arrays[name].append(piece)
        starts.append(starts[-1] + len(cells))
    for array in arrays.values():
        array.close()
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    indptr = RawArray(folder / "X" / "indptr", np.dtype(np.int64))
    indptr.append(offsets)
    indptr.close()
    if in_order:
        for name in ("data", "indices"):
            (scratch / name).rename(folder / "X" / name)
    else:
        _merge(folder / "X", arrays, starts, offsets)
    shutil.rmtree(scratch)


def _merge(
    x: Path, blocks: dict[str, RawArray], starts: list[int], offsets: NDArray[np.int64]
) -> None:
    """Gather the entries of some cells from all blocks, sort them, and go on to the next cells."""
    n_values = starts[-1]
    most = int(np.diff(starts).max())
    # Ranges of cells with about as many values as a block.
    edges = np.unique(np.searchsorted(offsets, [*range(0, n_values, most), n_values]))
    bounds = [
        begin + np.searchsorted(blocks["cells"].read(begin, end), edges)
        for begin, end in pairwise(starts)
    ]
    out = {name: RawArray(x / name, _DTYPES[name]) for name in ("data", "indices")}
    for begins, ends in pairwise(np.transpose(bounds)):
        pieces = [(begin, end) for begin, end in zip(begins, ends, strict=True) if begin < end]
        cells = np.concatenate([blocks["cells"].read(*piece) for piece in pieces])
        order = np.argsort(cells, kind="stable")
        for name, array in out.items():
            array.append(np.concatenate([blocks[name].read(*piece) for piece in pieces])[order])
    for array in out.values():
        array.close()
