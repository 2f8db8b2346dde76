"""Cells and genes of Loom files, as obs and var.

A Loom file has matrices of genes x cells (``/matrix``, ``/layers``), and one array per attribute in
``/row_attrs`` (genes) and ``/col_attrs`` (cells). Sources: Linnarsson Lab, "Loom file format
specs"; of the names :func:`anndata.io.read_loom` and ``AnnData.write_loom``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pandas as pd

from scatlas.errors import InputError
from scatlas.io.files.anndata_checks import is_group
from scatlas.io.files.read_errors import REMEDY, reading
from scatlas.io.tables.converted_tables import Tables, convert_tables

if TYPE_CHECKING:
    from contextlib import ExitStack

# Attributes that name genes and cells, the first that a file has.
_GENES = (
    *("Gene", "var_names", "gene_name", "gene_names", "GeneName"),
    *("Accession", "gene_id", "gene_ids"),
)
_CELLS = (
    *("CellID", "obs_names", "cell_names", "CellName"),
    *("BARCODE", "Barcode", "barcode", "barcodes"),
)


def is_loom(root: Any) -> bool:
    """Whether an opened file has the layout of Loom."""
    return isinstance(root, h5py.File) and {"matrix", "row_attrs", "col_attrs"} <= set(root)


def open_loom(path: str, root: Any, stack: ExitStack, counts: str) -> Tables | None:
    """Open the tables of a Loom file, which ``stack`` removes; None for other files."""
    if not is_loom(root):
        return None
    from anndata.utils import make_index_unique

    shape = _shape(path, root, "matrix")
    notices: list[str] = []
    var = _frame(path, root["row_attrs"], shape[0], _GENES, notices)
    obs = _frame(path, root["col_attrs"], shape[1], _CELLS, notices)
    if n_repeated := int(var.index.duplicated().sum()):
        notices.append(f"{n_repeated:,} repeated gene names: made unique by a number at the end")
        var.index = make_index_unique(var.index)
    if layers := sorted(root.get("layers", {})):
        notices.append(
            f"there are also the layers {', '.join(layers)} (source.counts: layers/NAME)"
        )
    tables = convert_tables(stack, {"obs": obs, "var": var})
    return Tables(tables, loom_key(counts), format="transposed", notices=notices)


def loom_key(counts: str) -> str:
    """Element of a Loom file for a value of ``source.counts``: ``X`` is ``/matrix``."""
    return "matrix" if counts == "X" else counts


def _shape(path: str, root: h5py.File, key: str) -> tuple[int, int]:
    """Genes and cells of a matrix."""
    with reading(path, key):
        matrix = root[key]
        shape = None if is_group(matrix) else matrix.shape
    if shape is None or len(shape) != 2:
        msg = f"{path}: {key} is no matrix of genes x cells: {REMEDY}"
        raise InputError(msg)
    return shape


def _frame(
    path: str, group: h5py.Group, n_rows: int, names: tuple[str, ...], notices: list[str]
) -> pd.DataFrame:
    """A table of the attributes of one axis."""
    place = group.name.strip("/")
    index_name = next((name for name in names if name in group), None)
    if index_name is None:
        msg = (
            f"{path}: {place} has none of {', '.join(names)}, which name the "
            f"{'genes' if place == 'row_attrs' else 'cells'}: add {names[0]}"
        )
        raise InputError(msg)
    columns: dict[str, Any] = {}
    for name, stored in group.items():
        if is_group(stored) or len(stored.shape) != 1:
            notices.append(f"{place}/{name} is left out: it has not one value per row")
            continue
        if stored.shape[0] != n_rows:
            msg = (
                f"{path}: {place}/{name} has {stored.shape[0]:,} values, but matrix has "
                f"{n_rows:,}: {REMEDY}"
            )
            raise InputError(msg)
        with reading(path, f"{place}/{name}"):
            columns[name] = _values(stored)
    index = pd.Index(np.asarray(columns.pop(index_name)).astype(str), dtype=object, name=index_name)
    return pd.DataFrame({k: _as_column(v) for k, v in columns.items()}, index=index)


def _values(stored: h5py.Dataset) -> np.ndarray:
    """Values of an attribute; text as ``object`` array of ``str``."""
    if h5py.check_string_dtype(stored.dtype) is None:
        return np.asarray(stored[:])
    return np.asarray(stored.asstr()[:], dtype=object)


def _as_column(values: np.ndarray) -> Any:
    if values.dtype != object:
        return values
    categories = pd.Categorical(values)
    return categories if len(categories.categories) < len(values) else values
