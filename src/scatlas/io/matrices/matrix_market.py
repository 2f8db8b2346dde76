"""Folders of Cell Ranger with a matrix in Matrix Market's text format.

Cell Ranger 1 and 2 write ``matrix.mtx``, ``genes.tsv`` and ``barcodes.tsv``; Cell Ranger 3 and
later write ``matrix.mtx.gz``, ``features.tsv.gz`` and ``barcodes.tsv.gz``. Source of the format:
Boisvert, Pozo, Remington, "The Matrix Market exchange formats", NIST 1996.
"""

from __future__ import annotations

import io
import math
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp

from scatlas.errors import InputError
from scatlas.io.files.anndata_checks import check_not_empty, frame_length
from scatlas.io.files.read_errors import REMEDY, reading
from scatlas.io.matrices.matrix_market_loops import squeeze_blanks
from scatlas.io.matrices.sorted_entries import write_csr
from scatlas.io.tables.cell_ranger import CellRangerTables, Features, write_tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scatlas.io.matrices.sorted_entries import Entries

# Bytes of text that are parsed at a time; a line that is longer than _LONGEST_LINE is damaged.
_BLOCK_BYTES, _LONGEST_LINE = 2**24, 2**20
_ROWS_AT_ONCE = 2**17
_NO_ENTRIES: Entries = np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0)
_FIELDS = [["integer"], ["unsigned-integer"], ["real"], ["double"], ["pattern"]]


class _Header(NamedTuple):
    has_values: bool
    n_features: int
    n_barcodes: int
    n_values: int


def convert_matrix_market(folder: Path, store: Path) -> CellRangerTables:
    """Write the matrix of a folder as ``X`` of a store without compression; return its tables.

    The text is read once. The store needs 16 bytes per value, and 28 while entries are sorted.
    """
    with _opened(folder) as (header, entries):
        tables = _tables(folder, store, header)
        write_csr(store, header.n_barcodes, entries)
    return tables


def first_cells(
    folder: Path, store: Path, n_values: int = 2**20
) -> tuple[CellRangerTables, sp.csr_matrix, int]:
    """Tables, CSR [cells, features] of the first cells, number of all cells.

    These have about ``n_values`` values. The text is read up to them, or to its end if entries
    are not ordered by barcode.
    """
    with _opened(folder) as (header, entries):
        tables = _tables(folder, store, header)
        share = min(1, n_values / max(1, header.n_values))
        n_cells = math.ceil(share * header.n_barcodes)
        kept, last, in_order = [_NO_ENTRIES], -1, True
        for features, cells, values in entries:
            mine = cells < n_cells
            kept.append((features[mine], cells[mine], values[mine]))
            in_order &= bool(cells[0] >= last and (np.diff(cells) >= 0).all())
            last = int(cells[-1])
            if in_order and last >= n_cells:
                break
    features, cells, values = map(np.concatenate, zip(*kept, strict=True))
    shape = (n_cells, header.n_features)
    return tables, sp.csr_matrix((values, (cells, features)), shape, float), header.n_barcodes


def first_values(folder: Path) -> np.ndarray:
    """Values of the first block of text of a folder."""
    with _opened(folder) as (_, entries):
        return next((values for _, _, values in entries), np.empty(0))


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


@contextmanager
def _open_text(path: Path) -> Iterator[io.BufferedReader]:
    """Open a text, which may be compressed whatever its name."""
    import pyarrow as pa

    with path.open("rb") as file:
        compression = "gzip" if file.read(2) == b"\x1f\x8b" else None
    with pa.input_stream(str(path), compression=compression) as stream:
        yield io.BufferedReader(stream)


def _pieces(path: Path, **options: Any) -> Iterator[pd.DataFrame]:
    """Rows of a text table without a header or quotes, as R puts them around fields or rows."""
    with reading(str(path), "the table"), _open_text(path) as file:
        settings = {"header": None, "dtype": str, "keep_default_na": False, "quoting": 3}
        for piece in pd.read_csv(file, sep="\t", chunksize=_ROWS_AT_ONCE, **settings, **options):
            yield piece.apply(lambda column: column.str.strip('"'))


def _features(folder: Path) -> Features:
    path = _file(folder, "features.tsv", "genes.tsv")
    table = pd.concat(_pieces(path)).to_numpy(object).T
    types = table[2] if len(table) > 2 else np.full(len(table[0]), "Gene Expression", object)
    if not types.all():
        number = int(np.flatnonzero(types == "")[0]) + 1
        msg = f"{path}: feature {number} has no type in its third column: {REMEDY}"
        raise InputError(msg)
    return Features(table[0], table[min(1, len(table) - 1)], types)


def _tables(folder: Path, store: Path, header: _Header) -> CellRangerTables:
    """Write the lists as tables, after a comparison with the sizes of the matrix."""
    check_not_empty(str(folder), (header.n_barcodes, header.n_features))
    features = _file(folder, "features.tsv", "genes.tsv")
    barcodes = _file(folder, "barcodes.tsv")
    names = (piece[0].to_numpy(object) for piece in _pieces(barcodes, usecols=[0]))
    tables = write_tables(str(folder), "X", store, names, _features(folder))
    for path, name, n, due in (
        (features, "features", tables.n_features, header.n_features),
        (barcodes, "barcodes", frame_length(str(folder), tables.root, "obs"), header.n_barcodes),
    ):
        if n != due:
            msg = (
                f"{path}: the matrix has {due:,} {name}, their list {n:,}: give a matrix of genes "
                "x cells, and the lists that were written with it, without a header line"
            )
            raise InputError(msg)
    return tables


@contextmanager
def _opened(folder: Path) -> Iterator[tuple[_Header, Iterator[Entries]]]:
    """Sizes of a matrix, and its entries in blocks."""
    path = _file(folder, "matrix.mtx")
    with ExitStack() as stack:
        with reading(str(path), "the header"):
            stream = stack.enter_context(_open_text(path))
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
    n_features, n_barcodes, n_values = map(int, line.split())
    return _Header(banner[3] != "pattern", n_features, n_barcodes, n_values)


def _entries(path: Path, header: _Header, stream: io.BufferedReader) -> Iterator[Entries]:
    """Yield feature and barcode, both from 0, and value of the entries of a block of text.

    Counts are whole numbers of up to 32 bits, which float64 holds, in whatever form they stand.
    """
    n_values = 0
    while True:
        with reading(str(path), "the matrix"):
            text = stream.read(_BLOCK_BYTES) + stream.readline(_LONGEST_LINE)
            if not text:
                break
            features, cells, values = _parse(text, has_values=header.has_values)
        if not len(cells):
            continue
        n_values += len(cells)
        if n_values > header.n_values:
            break
        for name, of, n in (
            ("feature", features, header.n_features),
            ("barcode", cells, header.n_barcodes),
        ):
            low, high = int(of.min()), int(of.max())
            if low < 1 or high > n:
                wrong = low if low < 1 else high
                msg = f"{path}: an entry has {name} {wrong}, of 1 to {n}: {REMEDY}"
                raise InputError(msg)
        yield features - 1, cells - 1, values
    if n_values != header.n_values:
        more = "more than" if n_values > header.n_values else f"{n_values:,} of"
        msg = f"{path}: there are {more} {header.n_values:,} entries: {REMEDY}"
        raise InputError(msg)


def _parse(text: bytes, *, has_values: bool) -> Entries:
    """Columns of whole lines of entries."""
    import pyarrow as pa
    from pyarrow import csv

    types = {"feature": pa.int32(), "cell": pa.int32()}
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
    features, cells, *values = (column.to_numpy() for column in table.columns)
    return features, cells, values[0] if values else np.ones(table.num_rows)
