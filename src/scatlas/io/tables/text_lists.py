"""The lists of cells and genes beside a text matrix, as obs and var."""

from __future__ import annotations

import io
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from scatlas.errors import InputError
from scatlas.io.files.read_errors import REMEDY, reading
from scatlas.io.tables.cell_ranger import GENES, CellRangerTables, Features, write_tables

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scatlas.io.files.text_matrix import TextMatrix

_ROWS_AT_ONCE = 2**17
# Columns of split-pipe's tables.
_CELL_NAMES, _GENE_COLUMNS = "bc_wells", ("gene_id", "gene_name", "genome")


def write_text_tables(files: TextMatrix, store: Path) -> CellRangerTables:
    """Write the lists as obs and var of a store.

    Raises
    ------
    InputError
        A list cannot be read, or no feature is a gene.
    """
    if files.is_split_pipe:
        features, (cells, columns) = _split_pipe_genes(files.genes), _split_pipe_cells(files.cells)
        return write_tables(files.path, "X", store, [cells], features, columns)
    names = (piece[0].to_numpy(object) for piece in _pieces(files.cells, usecols=[0]))
    return write_tables(files.path, "X", store, names, _features(files.genes))


@contextmanager
def open_text(path: Path) -> Iterator[io.BufferedReader]:
    """Open a text, which may be compressed whatever its name."""
    import pyarrow as pa

    with path.open("rb") as file:
        compression = "gzip" if file.read(2) == b"\x1f\x8b" else None
    with pa.input_stream(str(path), compression=compression) as stream:
        yield io.BufferedReader(stream)


def _pieces(path: Path, **options: Any) -> Iterator[pd.DataFrame]:
    """Rows of a text table without a header or quotes, as R puts them around fields or rows."""
    sep = "," if ".csv" in path.suffixes else "\t"
    with reading(str(path), "the table"), open_text(path) as file:
        settings = {"header": None, "dtype": str, "keep_default_na": False, "quoting": 3}
        for piece in pd.read_csv(file, sep=sep, chunksize=_ROWS_AT_ONCE, **settings, **options):
            yield piece.apply(lambda column: column.str.strip('"'))


def _features(path: Path) -> Features:
    table = pd.concat(_pieces(path)).to_numpy(object).T
    types = table[2] if len(table) > 2 else np.full(len(table[0]), GENES, object)
    if not types.all():
        number = int(np.flatnonzero(types == "")[0]) + 1
        msg = f"{path}: feature {number} has no type in its third column: {REMEDY}"
        raise InputError(msg)
    ids, names = table[0], table[min(1, len(table) - 1)]
    # kb-python has the names in a list of their own.
    beside = path.with_name(path.name.replace(".genes.txt", ".genes.names.txt"))
    if len(table) == 1 and beside != path and beside.is_file():
        names = pd.concat(_pieces(beside))[0].to_numpy(object)
        if len(names) != len(ids):
            msg = (
                f"{beside}: it has {len(names):,} names, and {path.name} {len(ids):,} genes: "
                f"{REMEDY}"
            )
            raise InputError(msg)
    return Features(ids, np.where(names == "", ids, names), types)


def _csv(path: Path, **options: Any) -> pd.DataFrame:
    """A table of split-pipe; empty fields are missing values."""
    with reading(str(path), "the table"), open_text(path) as file:
        return pd.read_csv(file, keep_default_na=False, na_values=[""], low_memory=False, **options)


def _split_pipe_genes(path: Path) -> Features:
    """Genes; of several genomes with the genome behind their names, as split-pipe itself does."""
    table = _csv(path, dtype=str)
    if missing := [name for name in _GENE_COLUMNS[:2] if name not in table]:
        columns = ", ".join(map(str, table))
        msg = f"{path}: it has no column {missing[0]!r}, but {columns}: {REMEDY}"
        raise InputError(msg)
    ids = table["gene_id"]
    names = table["gene_name"].fillna(ids)
    genomes = table["genome"].fillna("").to_numpy(object) if "genome" in table else None
    if genomes is not None and len(set(genomes)) > 1:
        names = pd.Series(
            [
                name if name.endswith(f"_{genome}") else f"{name}_{genome}"
                for name, genome in zip(names, genomes, strict=True)
            ],
            dtype=object,
        )
    types = np.full(len(table), GENES, object)
    return Features(ids.to_numpy(object), names.to_numpy(object), types, genomes)


def _split_pipe_cells(path: Path) -> tuple[np.ndarray, pd.DataFrame]:
    """Names of the cells, and all other columns, text as categories."""
    first = [*_csv(path, nrows=0)]
    if not first:
        msg = f"{path}: it has no header line: {REMEDY}"
        raise InputError(msg)
    key = _CELL_NAMES if _CELL_NAMES in first else first[0]
    table = _csv(path, dtype={key: str, "sample": str})
    names = table.pop(key)
    if names.isna().any():
        number = int(np.flatnonzero(names.isna())[0]) + 1
        msg = f"{path}: cell {number} has no name in the column {key!r}: {REMEDY}"
        raise InputError(msg)
    unnamed = [name for name in table if str(name).startswith("Unnamed: ")]
    table = table.drop(columns=unnamed)
    texts = [name for name, column in table.items() if column.dtype.kind not in "biuf"]
    return names.to_numpy(object), table.astype(dict.fromkeys(texts, "category"))
