"""Cells and genes of files that store them in another way than AnnData does, as obs and var.

Of anndata before 0.7 each is a compound data set with one field per column, the index first;
categories of a column of codes are in ``uns/NAME_categories`` (source: anndata 0.12's reader). A
Loom file has matrices of genes x cells (``/matrix``, ``/layers``), and one array per attribute in
``/row_attrs`` (genes) and ``/col_attrs`` (cells). Sources: Linnarsson Lab, "Loom file format
specs"; of the names :func:`anndata.io.read_loom` and ``AnnData.write_loom``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import h5py
import numpy as np
import pandas as pd

from scatlas.errors import InputError
from scatlas.io.files.anndata_checks import is_group
from scatlas.io.files.local_zarr import open_store
from scatlas.io.files.read_errors import REMEDY, reading

if TYPE_CHECKING:
    from collections.abc import Mapping
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


@dataclass(frozen=True)
class Tables:
    """Cells and genes of a file, and where its counts are."""

    root: Any  # opened store with obs and the table of the features
    key: str
    var: str = "var"
    format: Literal["csr", "transposed"] | None = None  # None if the attributes of the counts tell
    # Number of each column of the counts in var, int64, -1 for features that are no genes; None if
    # var has all features.
    gene_of_feature: np.ndarray | None = None
    notices: list[str] = field(default_factory=list)


def temporary_folder(stack: ExitStack) -> Path:
    return Path(stack.enter_context(TemporaryDirectory(prefix="scatlas-")))


def unique_genes(names: pd.Index, notices: list[str]) -> pd.Index:
    """Names of genes, of which repeated ones get a number at the end."""
    from anndata.utils import make_index_unique

    n_repeated = int(names.duplicated().sum())
    if not n_repeated:
        return names
    notices.append(f"{n_repeated:,} repeated gene names: made unique by a number at the end")
    return make_index_unique(names)


def convert_tables(stack: ExitStack, tables: Mapping[str, pd.DataFrame]) -> Any:
    """Write tables by their keys into a temporary store, which ``stack`` removes; open it."""
    from scatlas.io.tables.column_writer import write_frame
    from scatlas.io.zarr_writer.elements import create_group

    folder = temporary_folder(stack)
    for key, table in tables.items():
        create_group((folder / key).parent, {})
        write_frame(folder / key, table)
    return open_store(folder)


def is_legacy(root: Any) -> bool:
    return is_group(root) and all(
        name in root and not is_group(root[name]) and root[name].dtype.names
        for name in ("obs", "var")
    )


def open_legacy(path: str, root: Any, stack: ExitStack, counts: str) -> Tables | None:
    """obs, var and ``raw/var`` of a file of anndata before 0.7; None for other files."""
    if not is_legacy(root):
        return None
    tables = [("obs", "obs"), ("var", "var"), ("raw.var", "raw/var")]
    frames = {key: _legacy_frame(path, root, name) for name, key in tables if name in root}
    key, var = ("raw.X", "raw/var") if counts == "raw" else (counts, "var")
    return Tables(convert_tables(stack, frames), key, var)


def _legacy_frame(path: str, root: Any, name: str) -> pd.DataFrame:
    with reading(path, name):
        table = root[name][:]
        index, *columns = table.dtype.names
        frame = pd.DataFrame(index=pd.Index(_as_text(table[index]), dtype=object))
        for column in columns:
            values = _as_text(table[column])
            labels = root.get(f"uns/{column}_categories")
            if labels is not None and values.dtype.kind in "iu":
                categories = _as_text(np.atleast_1d(labels[()]))
                # Of equal names in obs and var only one has its categories here.
                if values.max(initial=-1) < len(categories):
                    values = pd.Categorical.from_codes(values, categories)
            frame[column] = values
    return frame


def _as_text(values: np.ndarray) -> np.ndarray:
    """Text as ``object`` array of ``str``; numbers as they are."""
    if values.dtype.kind not in "SOUT":
        return values
    texts = [value.decode() if isinstance(value, bytes) else value for value in values]
    return np.array(texts, dtype=object)


def is_loom(root: Any) -> bool:
    return isinstance(root, h5py.File) and {"matrix", "row_attrs", "col_attrs"} <= set(root)


def open_loom(path: str, root: Any, stack: ExitStack, counts: str) -> Tables | None:
    """Open the tables of a Loom file, which ``stack`` removes; None for other files."""
    if not is_loom(root):
        return None
    shape = _shape(path, root, "matrix")
    notices: list[str] = []
    var = _loom_frame(path, root["row_attrs"], shape[0], _GENES, notices)
    obs = _loom_frame(path, root["col_attrs"], shape[1], _CELLS, notices)
    var.index = unique_genes(var.index, notices)
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
    with reading(path, key):
        matrix = root[key]
        shape = None if is_group(matrix) else matrix.shape
    if shape is None or len(shape) != 2:
        raise InputError(f"{path}: {key} is no matrix of genes x cells: {REMEDY}")
    return shape


def _loom_frame(
    path: str, group: h5py.Group, n_rows: int, names: tuple[str, ...], notices: list[str]
) -> pd.DataFrame:
    """A table of the attributes of one axis."""
    place = group.name.strip("/")
    index_name = next((name for name in names if name in group), None)
    if index_name is None:
        raise InputError(
            f"{path}: {place} has none of {', '.join(names)}, which name the "
            f"{'genes' if place == 'row_attrs' else 'cells'}: add {names[0]}"
        )
    columns: dict[str, Any] = {}
    for name, stored in group.items():
        if is_group(stored) or len(stored.shape) != 1:
            notices.append(f"{place}/{name} is left out: it has not one value per row")
            continue
        if stored.shape[0] != n_rows:
            raise InputError(
                f"{path}: {place}/{name} has {stored.shape[0]:,} values, but matrix has "
                f"{n_rows:,}: {REMEDY}"
            )
        with reading(path, f"{place}/{name}"):
            text = h5py.check_string_dtype(stored.dtype) is not None
            columns[name] = np.asarray(stored.asstr()[:], object) if text else stored[:]
    index = pd.Index(np.asarray(columns.pop(index_name)).astype(str), dtype=object, name=index_name)
    return pd.DataFrame({k: _as_column(v) for k, v in columns.items()}, index=index)


def _as_column(values: np.ndarray) -> Any:
    if values.dtype != object:
        return values
    categories = pd.Categorical(values)
    return categories if len(categories.categories) < len(values) else values
