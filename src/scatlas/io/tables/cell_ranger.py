"""Cells and genes of matrices that 10x Genomics' Cell Ranger has written, as obs and var.

Cell Ranger 3 and later write ``/matrix`` with ``features``, Cell Ranger 1 and 2 a group per genome
with ``genes`` and ``gene_names``. Source of the layouts: 10x Genomics, "Feature-Barcode Matrices
(HDF5 format)"; of the names of the columns: :func:`scanpy.read_10x_h5`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pandas as pd

from scatlas.errors import InputError
from scatlas.io.files.anndata_checks import is_group
from scatlas.io.files.local_zarr import open_store
from scatlas.io.files.read_errors import reading
from scatlas.io.tables.converted_tables import Tables
from scatlas.io.tables.genes import GENE_EXPRESSION, genes_of_types, numbers_of, refuse_probes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import ExitStack

_ROWS_AT_ONCE = 2**17
_PARTS = {"barcodes", "data", "indices", "indptr", "shape"}


def cell_ranger_matrices(root: Any) -> dict[str, str]:
    """Groups of the matrices in a file of Cell Ranger, as ``source.counts`` names them: one is
    ``X``, of several, one per genome, each is ``genome/NAME``, that with most cells first.
    """
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
        msg = (
            f"{path}: a file of Cell Ranger with {has} and no {counts}: write {lines} in the "
            "config, or a column 'counts' in the plate sheet"
        )
        raise InputError(msg)
    return matrices[counts], [name for name in matrices if name != counts]


def open_cell_ranger(path: str, root: Any, stack: ExitStack, counts: str) -> Tables | None:
    """Open the tables of a file of Cell Ranger, which ``stack`` removes; None for other files."""
    key, others = _matrix(path, root, counts)
    if key is None:
        return None
    group = root[key]
    with reading(path, key):
        refuse_probes(path, set(group.get("features", ())))
        barcodes = _pieces(group["barcodes"])
        if "features" in group:
            features = group["features"]
            ids, names, types = (_texts(features[n]) for n in ("id", "name", "feature_type"))
            genomes = _texts(features["genome"]) if "genome" in features else None
        else:
            ids, names = _texts(group["genes"]), _texts(group["gene_names"])
            types, genomes = np.full(len(ids), GENE_EXPRESSION, object), None
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="scatlas-")))
    tables = write_tables(path, key, folder, barcodes, Features(ids, names, types, genomes))
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
    """Write barcodes, in pieces or as obs, and features as obs and var into a Zarr store; genes are
    named by their symbols, repeated ones with a number.
    """
    from anndata.utils import make_index_unique

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
    index = pd.Index(names[genes], dtype=object)
    if n_repeated := int(index.duplicated().sum()):
        notices.append(f"{n_repeated:,} repeated gene names: made unique by a number at the end")
        index = make_index_unique(index)
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


def _pieces(dataset: h5py.Dataset) -> Iterator[np.ndarray]:
    for first in range(0, dataset.size, _ROWS_AT_ONCE):
        yield _texts(dataset, slice(first, first + _ROWS_AT_ONCE))


def _texts(dataset: h5py.Dataset, rows: slice = slice(None)) -> np.ndarray:
    """Texts of fixed or variable length, as ``object`` array of ``str``."""
    if h5py.check_string_dtype(dataset.dtype) is None:
        msg = f"{dataset.name} holds no text"
        raise ValueError(msg)
    return np.asarray(dataset.asstr()[rows], dtype=object)
