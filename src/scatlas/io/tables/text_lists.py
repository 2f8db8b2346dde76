"""The lists of cells and genes beside a text matrix, as obs and var."""

from __future__ import annotations

import io
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from scatlas.errors import InputError
from scatlas.io.files.read_errors import REMEDY, reading
from scatlas.io.tables.cell_ranger import Features, write_tables
from scatlas.io.tables.genes import GENE_EXPRESSION

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scatlas.io.files.text_matrix import TextMatrix
    from scatlas.io.tables.converted_tables import Tables

_ROWS_AT_ONCE = 2**17


def write_text_tables(files: TextMatrix, store: Path) -> Tables:
    if files.cells.name.startswith("cell_metadata.csv"):
        features, cells = _split_pipe_genes(files.genes), _split_pipe_cells(files.cells)
        return write_tables(files.path, "X", store, cells, features)
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
    types = table[2] if len(table) > 2 else np.full(len(table[0]), GENE_EXPRESSION, object)
    ids, names = table[0], table[min(1, len(table) - 1)]
    if len(ids) > 2 and f"{ids[0]}-U" in ids and f"{ids[0]}-A" in ids:
        msg = (
            f"{path}: alevin-fry lists genes three times, spliced, unspliced (-U) and ambiguous "
            "(-A): write h5ad with their sums, as pyroe.load_fry gives"
        )
        raise InputError(msg)
    # kb-python writes the names into another list.
    beside = path.with_name(path.name.replace(".genes.txt", ".genes.names.txt"))
    if len(table) == 1 and beside != path and beside.is_file():
        names = pd.concat(_pieces(beside))[0].to_numpy(object)
        if len(names) != len(ids):
            n = f"{len(names):,} names, and {path.name} {len(ids):,} genes"
            msg = f"{beside}: it has {n}: {REMEDY}"
            raise InputError(msg)
    return Features(ids, np.where(names == "", ids, names), types)


def _csv(path: Path, types: Any) -> pd.DataFrame:
    """A table of split-pipe; empty fields are missing values."""
    options = {"keep_default_na": False, "na_values": [""], "low_memory": False}
    with reading(str(path), "the table"), open_text(path) as file:
        return pd.read_csv(file, dtype=types, **options)


def _split_pipe_genes(path: Path) -> Features:
    """Genes, by their ids where they have no names; those of several genomes have it behind their
    names.
    """
    table = _csv(path, str)
    if "gene_id" not in table:
        msg = f"{path}: it has no column 'gene_id', but {', '.join(table)}: {REMEDY}"
        raise InputError(msg)
    ids = table["gene_id"].to_numpy(object)
    names = table.get("gene_name", table["gene_id"]).fillna(table["gene_id"]).to_numpy(object)
    genomes = table["genome"].fillna("").to_numpy(object) if "genome" in table else None
    if genomes is not None and len(set(genomes)) > 1:
        pairs = zip(names, genomes, strict=True)
        ended = [n if n.endswith(f"_{genome}") else f"{n}_{genome}" for n, genome in pairs]
        names = np.array(ended, object)
    return Features(ids, names, np.full(len(table), GENE_EXPRESSION, object), genomes)


def _split_pipe_cells(path: Path) -> pd.DataFrame:
    """All columns by the names of the cells, text as categories."""
    table = _csv(path, {"bc_wells": str, "sample": str})
    names = table.pop("bc_wells" if "bc_wells" in table else table.columns[0])
    if names.isna().any():
        number = int(np.flatnonzero(names.isna())[0]) + 1
        msg = f"{path}: cell {number} has no name in the column {names.name!r}: {REMEDY}"
        raise InputError(msg)
    texts = [name for name, column in table.items() if column.dtype.kind not in "biuf"]
    return table.astype(dict.fromkeys(texts, "category")).set_axis(
        names.astype(str).to_numpy(object)
    )
