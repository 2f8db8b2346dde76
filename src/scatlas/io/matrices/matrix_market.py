"""Folders of Cell Ranger with a matrix in Matrix Market's text format.

Cell Ranger 1 and 2 write ``matrix.mtx``, ``genes.tsv`` and ``barcodes.tsv``; Cell Ranger 3 and
later write ``matrix.mtx.gz``, ``features.tsv.gz`` and ``barcodes.tsv.gz``. Source of the format:
Boisvert, Pozo, Remington, "The Matrix Market exchange formats", NIST 1996.
"""

from __future__ import annotations

import gzip
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp

from scatlas.errors import InputError
from scatlas.io.files.anndata_checks import frame_length
from scatlas.io.files.read_errors import REMEDY, reading
from scatlas.io.tables.cell_ranger import CellRangerTables, Features, write_tables
from scatlas.io.zarr_writer.elements import create_group
from scatlas.io.zarr_writer.raw_array import RawArray

if TYPE_CHECKING:
    from collections.abc import Iterator

# Bytes of text that are parsed at a time.
_BLOCK_BYTES = 2**24
_ROWS_AT_ONCE = 2**17


class _Header(NamedTuple):
    n_lines: int
    is_real: bool
    n_features: int
    n_barcodes: int
    n_values: int


def convert_matrix_market(folder: Path, store: Path) -> CellRangerTables:
    """Write the matrix of a folder as a store without compression, in one pass over the text.

    Parameters
    ----------
    folder
        Folder of Cell Ranger.
    store
        Store to write; it needs 12 bytes per value, 16 if the file has real numbers.

    Returns
    -------
    The tables; the matrix is ``X``, of cells x features.

    Raises
    ------
    InputError
        A file is missing, damaged or cut short, or entries are not ordered by barcode.
    """
    matrix = _file(folder, "matrix.mtx")
    barcodes = _column(_file(folder, "barcodes.tsv"))
    tables = write_tables(str(folder), "X", store, barcodes, _features(folder))
    n_barcodes = frame_length(str(folder), tables.root, "obs")
    with reading(str(matrix), "the header"):
        header = _read_header(matrix)
    for name, found, due in (
        ("features", tables.n_features, header.n_features),
        ("barcodes", n_barcodes, header.n_barcodes),
    ):
        if found != due:
            msg = f"{matrix}: the matrix has {due:,} {name}, their list {found:,}: {REMEDY}"
            raise InputError(msg)
    create_group(store / "X", {})
    dtype = np.dtype(np.float64 if header.is_real else np.int64)
    data = RawArray(store / "X" / "data", dtype)
    indices = RawArray(store / "X" / "indices", np.dtype(np.int32))
    lengths = np.zeros(header.n_barcodes, np.int64)
    last = n_values = 0
    for features, cells, values in _entries(matrix, header):
        _check_entries(matrix, header, features, cells, last)
        n_values += len(cells)
        if n_values > header.n_values:
            break
        last = int(cells[-1])
        first = int(cells[0])
        lengths[first - 1 : last] += np.bincount(cells - first)
        data.append(values)
        indices.append(features - 1)
    if n_values != header.n_values:
        more = "more than" if n_values > header.n_values else f"{n_values:,} of"
        msg = f"{matrix}: there are {more} {header.n_values:,} entries: {REMEDY}"
        raise InputError(msg)
    indptr = RawArray(store / "X" / "indptr", np.dtype(np.int64))
    indptr.append(np.concatenate([[0], np.cumsum(lengths)]))
    for array in (data, indices, indptr):
        array.close()
    return tables


def first_cells(folder: Path, n_blocks: int = 1) -> tuple[sp.csr_matrix, int]:
    """First cells of a folder, from the first blocks of its text (16 MB each).

    Returns
    -------
    CSR float64 [cells, features], without the last cell of these blocks, which may go on after
    them; and the number of all cells.

    Raises
    ------
    InputError
        A file is missing, damaged or cut short, or entries are not ordered by barcode.
    """
    matrix = _file(folder, "matrix.mtx")
    with reading(str(matrix), "the header"):
        header = _read_header(matrix)
    blocks, n_values, last = [], 0, 0
    for features, cells, values in islice(_entries(matrix, header), n_blocks):
        _check_entries(matrix, header, features, cells, last)
        blocks.append((features - 1, cells - 1, values))
        n_values, last = n_values + len(cells), int(cells[-1])
    n_cells = header.n_barcodes if n_values >= header.n_values else last - 1
    none = [(np.empty(0, np.int64),) * 3]
    features, cells, values = map(np.concatenate, zip(*(blocks or none), strict=True))
    kept = cells < n_cells
    shape = (n_cells, header.n_features)
    entries = values[kept].astype(np.float64), (cells[kept], features[kept])
    return sp.csr_matrix(entries, shape), header.n_barcodes


def first_values(folder: Path) -> np.ndarray:
    """Values of the first block of text of a folder.

    Raises
    ------
    InputError
        A file is missing, damaged or cut short.
    """
    matrix = _file(folder, "matrix.mtx")
    with reading(str(matrix), "the header"):
        header = _read_header(matrix)
    for _, _, values in _entries(matrix, header):
        return values
    return np.empty(0)


def matrix_market_tables(folder: Path, store: Path) -> CellRangerTables:
    """Write only the genes of a folder, for a comparison; there are no cells."""
    return write_tables(str(folder), "X", store, [], _features(folder))


def is_matrix_market(path: Path | str) -> bool:
    """Whether a path is a folder of Cell Ranger with a text matrix."""
    names = ("matrix.mtx", "matrix.mtx.gz")
    return "://" not in str(path) and any(Path(path, name).is_file() for name in names)


def _file(folder: Path, *names: str) -> Path:
    paths = [folder / f"{name}{suffix}" for name in names for suffix in ("", ".gz")]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        msg = f"{folder}: {' or '.join(names)} is missing, also with .gz: {REMEDY}"
        raise InputError(msg)
    return path


def _table(path: Path) -> dict[int, np.ndarray]:
    """Columns of a text table without a header."""
    with reading(str(path), "the table"):
        table = pd.read_csv(
            path, sep="\t", header=None, dtype=str, keep_default_na=False, quoting=3
        )
    return {i: table[i].to_numpy(object) for i in range(table.shape[1])}


def _column(path: Path) -> Iterator[np.ndarray]:
    """First column of a text table without a header, in pieces."""
    with reading(str(path), "the table"):
        options = {"header": None, "dtype": str, "keep_default_na": False, "quoting": 3}
        pieces = pd.read_csv(path, sep="\t", usecols=[0], chunksize=_ROWS_AT_ONCE, **options)
        for piece in pieces:
            yield piece[0].to_numpy(object)


def _features(folder: Path) -> Features:
    table = _table(_file(folder, "features.tsv", "genes.tsv"))
    types = table.get(2, np.full(len(table[0]), "Gene Expression", object))
    return Features(table[0], table.get(1, table[0]), types)


def _read_header(path: Path) -> _Header:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        banner = file.readline().lower().split()
        if banner[:3] != ["%%matrixmarket", "matrix", "coordinate"] or banner[4:] != ["general"]:
            msg = f"its first line is {' '.join(banner)[:60]!r}"
            raise ValueError(msg)
        if banner[3] not in ("integer", "real"):
            msg = f"its values are {banner[3]!r}"
            raise ValueError(msg)
        n_lines, line = 2, file.readline()
        while line.startswith("%"):
            n_lines, line = n_lines + 1, file.readline()
        n_features, n_barcodes, n_values = map(int, line.split())
    return _Header(n_lines, banner[3] == "real", n_features, n_barcodes, n_values)


def _entries(path: Path, header: _Header) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield feature and barcode, both from 1, and value of the entries, in blocks."""
    if header.n_values == 0:
        return
    import pyarrow as pa
    from pyarrow import csv

    value = pa.float64() if header.is_real else pa.int64()
    types = {"feature": pa.int64(), "cell": pa.int64(), "value": value}
    with ExitStack() as stack, reading(str(path), "the matrix"):
        stream = stack.enter_context(pa.input_stream(str(path), compression="detect"))
        blocks = csv.open_csv(
            stream,
            csv.ReadOptions(
                column_names=list(types), skip_rows=header.n_lines, block_size=_BLOCK_BYTES
            ),
            csv.ParseOptions(delimiter=" ", quote_char=False),
            csv.ConvertOptions(column_types=types, null_values=[]),
        )
        for block in blocks:
            if block.num_rows:
                yield tuple(column.to_numpy(zero_copy_only=False) for column in block.columns)


def _check_entries(
    path: Path, header: _Header, features: np.ndarray, cells: np.ndarray, last: int
) -> None:
    """Refuse entries outside the matrix, or not ordered by barcode."""
    for name, values, n in (
        ("feature", features, header.n_features),
        ("barcode", cells, header.n_barcodes),
    ):
        low, high = int(values.min()), int(values.max())
        if low < 1 or high > n:
            wrong = low if low < 1 else high
            msg = f"{path}: an entry has {name} {wrong}, of 1 to {n}: {REMEDY}"
            raise InputError(msg)
    if cells[0] < last or (np.diff(cells) < 0).any():
        msg = (
            f"{path}: the entries are not ordered by barcode, as Cell Ranger orders them: write "
            "the matrix as h5ad with scanpy.read_10x_mtx(folder).write_h5ad(...)"
        )
        raise InputError(msg)
