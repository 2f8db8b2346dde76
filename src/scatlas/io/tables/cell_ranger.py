"""Cells and genes of matrices of Cell Ranger, and of the lists beside a text matrix, as obs and
var.

Cell Ranger 3 and later write ``/matrix`` with ``features``, Cell Ranger 1 and 2 a group per genome
with ``genes`` and ``gene_names``. Source of the layouts: 10x Genomics, "Feature-Barcode Matrices
(HDF5 format)"; of the names of the columns: :func:`scanpy.read_10x_h5`.
"""

from __future__ import annotations

import io
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pandas as pd

from scatlas.errors import InputError
from scatlas.io.files.anndata_checks import is_group
from scatlas.io.files.local_zarr import open_store
from scatlas.io.files.read_errors import REMEDY, reading
from scatlas.io.tables.converted_tables import Tables, temporary_folder, unique_genes
from scatlas.io.tables.genes import GENE_EXPRESSION, genes_of_types, numbers_of, refuse_probes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import ExitStack
    from pathlib import Path

    from scatlas.io.files.text_matrix import TextMatrix

_ROWS_AT_ONCE = 2**17
_PARTS = {"barcodes", "data", "indices", "indptr", "shape"}


def cell_ranger_matrices(root: Any) -> dict[str, str]:
    """Groups of the matrices by name: one is ``X``, several ``genome/NAME``, most cells first."""
    if not isinstance(root, h5py.File) or {"obs", "var"} <= set(root):
        return {}
    found = [
        name
        for name, group in root.items()
        if is_group(group)
        and set(group) >= _PARTS
        and ("features" in group or {"genes", "gene_names"} <= set(group))
    ]
    if len(found) == 1:
        return {"X": found[0]}
    found.sort(key=lambda name: -root[name]["barcodes"].size)
    return {f"genome/{name}": name for name in found}


def _matrix(path: str, root: Any, counts: str) -> tuple[str | None, list[str]]:
    """Group of the wanted matrix, None in other files, and the names of the others."""
    matrices = cell_ranger_matrices(root)
    if not matrices:
        return None, []
    if counts not in matrices:
        lines = " or ".join(f"'source: {{counts: {name}}}'" for name in matrices)
        has = "one matrix" if len(matrices) == 1 else "a matrix for each of several genomes"
        raise InputError(
            f"{path}: a file of Cell Ranger with {has} and no {counts}: write {lines} in the "
            "config, or a column 'counts' in the plate sheet"
        )
    return matrices[counts], [name for name in matrices if name != counts]


def open_cell_ranger(path: str, root: Any, stack: ExitStack, counts: str) -> Tables | None:
    """Open the tables of a file of Cell Ranger, which ``stack`` removes; None for other files."""
    key, others = _matrix(path, root, counts)
    if key is None:
        return None
    group = root[key]
    with reading(path, key):
        refuse_probes(path, set(group.get("features", ())))
        stored = group["barcodes"]
        starts = range(0, stored.size, _ROWS_AT_ONCE)
        barcodes = (_texts(stored, slice(first, first + _ROWS_AT_ONCE)) for first in starts)
        if "features" in group:
            lists = group["features"]
            ids, names, types = (_texts(lists[n]) for n in ("id", "name", "feature_type"))
            genomes = _texts(lists["genome"]) if "genome" in lists else None
        else:
            ids, names = _texts(group["genes"]), _texts(group["gene_names"])
            types, genomes = np.full(len(ids), GENE_EXPRESSION, object), None
    features = Features(ids, names, types, genomes)
    tables = write_tables(path, key, temporary_folder(stack), barcodes, features)
    if others:
        left_out = f"the cells of {', '.join(others)} are left out: list them as another plate"
        tables.notices.append(left_out)
    return tables


@dataclass(frozen=True)
class Features:
    """Lists of texts with one entry per feature; the genomes may not be known."""

    ids: np.ndarray
    names: np.ndarray
    types: np.ndarray
    genomes: np.ndarray | None = None


def write_tables(
    path: str,
    key: str,
    folder: Path,
    barcodes: Iterable[np.ndarray] | pd.DataFrame,
    features: Features,
) -> Tables:
    """Write obs and var into a Zarr store; genes are named by symbol, repeated ones numbered."""
    from scatlas.io.tables.column_writer import ColumnWriter, Target, write_frame
    from scatlas.io.zarr_writer.elements import DATAFRAME, create_group
    from scatlas.io.zarr_writer.sharded_array import encoding_pool

    ids, names, types, genomes = vars(features).values()
    lists = [ids, names, types, genomes]
    if len({len(values) for values in lists if values is not None}) > 1:
        msg = f"{path}: the lists of {key}/features differ in length: copy or download it again"
        raise InputError(msg)
    refuse_probes(path, (), ids[:100])
    notices: list[str] = []
    found = genes_of_types(path, "the list of features", types, notices.append)
    genes = np.ones(len(types), bool) if found is None else found
    index = unique_genes(pd.Index(names[genes], dtype=object), notices)
    columns = {"gene_ids": ids[genes], "feature_types": pd.Categorical(types[genes])}
    columns |= {} if genomes is None else {"genome": pd.Categorical(genomes[genes])}
    create_group(folder, {})
    if isinstance(barcodes, pd.DataFrame):
        write_frame(folder / "obs", barcodes)
    else:
        # An unfiltered matrix has millions of barcodes, which as Python strings take 0.1 kB each.
        text = Target("text", np.dtype(object))
        with (
            reading(path, f"{key}/barcodes"),
            encoding_pool() as pool,
            ColumnWriter(folder / "obs/_index", text, pool) as index_of_obs,
        ):
            for piece in barcodes:
                index_of_obs.append(piece)
        create_group(folder / "obs", {**DATAFRAME, "column-order": [], "_index": "_index"})
    write_frame(folder / "var", pd.DataFrame(columns, index=index))
    gene_of_feature = None if found is None else numbers_of(found)
    return Tables(open_store(folder), key, "var", "csr", gene_of_feature, notices)


def _texts(dataset: h5py.Dataset, rows: slice = slice(None)) -> np.ndarray:
    """Texts of fixed or variable length, as ``object`` array of ``str``."""
    if h5py.check_string_dtype(dataset.dtype) is None:
        raise ValueError(f"{dataset.name} holds no text")
    return np.asarray(dataset.asstr()[rows], dtype=object)


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
        raise InputError(
            f"{path}: alevin-fry lists genes three times, spliced, unspliced (-U) and ambiguous "
            "(-A): write h5ad with their sums, as pyroe.load_fry gives"
        )
    # kb-python writes the names into another list.
    beside = path.with_name(path.name.replace(".genes.txt", ".genes.names.txt"))
    if len(table) == 1 and beside != path and beside.is_file():
        names = pd.concat(_pieces(beside))[0].to_numpy(object)
        if len(names) != len(ids):
            n = f"{len(names):,} names, and {path.name} {len(ids):,} genes"
            raise InputError(f"{beside}: it has {n}: {REMEDY}")
    return Features(ids, np.where(names == "", ids, names), types)


def _csv(path: Path, types: Any) -> pd.DataFrame:
    """A table of split-pipe; empty fields are missing values."""
    options = {"keep_default_na": False, "na_values": [""], "low_memory": False}
    with reading(str(path), "the table"), open_text(path) as file:
        return pd.read_csv(file, dtype=types, **options)


def _split_pipe_genes(path: Path) -> Features:
    """Genes, by id where they have no name; those of several genomes have it behind their names."""
    table = _csv(path, str)
    if "gene_id" not in table:
        raise InputError(f"{path}: it has no column 'gene_id', but {', '.join(table)}: {REMEDY}")
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
