"""Plates merged on disk, in bounded memory."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pandas import CategoricalDtype

from scatlas.blocks import map_in_order
from scatlas.columns import first_difference
from scatlas.compute.progress import progress_meter
from scatlas.compute.threads import n_threads
from scatlas.errors import InputError
from scatlas.io.chunks import chunk_reader
from scatlas.io.files.anndata_checks import STRUCTURE
from scatlas.io.files.anndata_file import Store
from scatlas.io.files.chunk_locations import locate_chunks
from scatlas.io.files.local_zarr import open_store
from scatlas.io.files.read_errors import reading
from scatlas.io.matrices.csr_writer import CsrWriter, in_place
from scatlas.io.tables.cell_names import SharedCells, UniqueNames
from scatlas.io.tables.column import Column
from scatlas.io.tables.column_writer import ColumnWriter, Target
from scatlas.io.tables.encodings import NO_CATEGORIES, Stored
from scatlas.io.tables.table import Table
from scatlas.io.zarr_writer.elements import DATAFRAME, create_group
from scatlas.io.zarr_writer.node_metadata import is_storable
from scatlas.io.zarr_writer.sharded_array import CHUNK_VALUES, encoding_pool, values_per_piece

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from scatlas.columns import GeneRule
    from scatlas.io.files.local_zarr import StoredArray, StoredGroup

logger = logging.getLogger(__name__)

_N_GENES = "n_genes_by_counts"
# Columns that hold one value on each plate: by column and plate.
_Constants = dict[str, dict[str, str]]


def concat_on_disk(
    stores: Mapping[str, Path | str],
    out: Path | str,
    *,
    label: str | None = "plate",
    join: Literal["inner", "outer"] = "inner",
    keep_names: str | None = None,
    labels: Mapping[str, Mapping[str, str]] | None = None,
    genes: GeneRule = "same",
    block_budget: str | int = "256MB",
) -> dict[str, Any]:
    """Merge the stores of several plates with equal genes into one, plate after plate.

    The result equals ``anndata.concat(plates, label=label, merge="same")``, but for the names of
    cells that occur on several plates and for the order of categories. Memory does not grow with
    the plates, except for 16 bytes per cell to compare names, and the categories of one column.
    All input is checked before values are copied.

    Parameters
    ----------
    stores
        AnnData Zarr stores by plate; their order is that of the result. X is CSR.
    out
        Store to write.
    label
        obs column that gets the plate's name; categories in the order of ``stores``. None: none.
    join
        obs columns of the result: ``"inner"``, those that all plates have; ``"outer"``, those of
        any plate, with gaps for the cells of the others.
    keep_names
        Plate whose cells keep their names in any case.
    labels
        By plate, further obs columns and the value that all its cells get there: the same columns
        for each plate, as categories in order of first appearance. They replace columns of their
        names, with a notice where values differ. ``""`` is no label: such a plate keeps its own
        column of that name, or has a gap where it has none.
    genes
        How the plates came to have the same genes. With ``"union"`` a gap in a column of var, where
        a plate lacks a gene, takes the value of the first plate that has one.
    block_budget
        Memory for the values in flight, as in ``"256MB"``.

    Returns
    -------
    ``n_cells``, ``n_genes``, ``n_values``, ``plates`` (``n_cells`` and ``n_values`` of each),
    ``obs_columns``, ``dropped_columns``, ``renamed_cells`` and ``notices``.

    Raises
    ------
    InputError
        A plate's genes differ from the first plate's; X is not CSR; a cell name occurs twice on
        one plate; an obs column cannot be merged; a label's name cannot be stored.
    ValueError
        There are no plates, or ``labels`` lacks a plate or one of its columns.

    Notes
    -----
    With ``join="inner"`` columns of obs that are not on all plates are left out. A cell name that
    occurs on more than one plate gets the suffix ``-{plate}`` (and a number where that name is
    taken as well). Both leave a notice in the log, as does a plate nearly all of whose cells are on
    another plate, with the same names and ``n_genes_by_counts``. Numbers of different dtypes take
    NumPy's common dtype; other mixtures become text, without ``nan`` where a value is missing.
    """
    plates = [_Plate(name, Path(path)) for name, path in stores.items()]
    if not plates:
        raise ValueError("no plates to merge")
    for plate in plates[1:]:
        plate.check_genes(plates[0])
    n_values = sum(plate.n_values for plate in plates)
    piece = values_per_piece(block_budget)
    constants = _constants(plates, label, labels or {})
    obs = _Obs(plates, constants, join=join, keep_names=keep_names)
    for notice in obs.notices:
        logger.warning("%s", notice)
    writer = CsrWriter(
        out,
        n_vars=plates[0].shape[1],
        data_dtype=np.result_type(*(plate.data.dtype for plate in plates)),
        obs=in_place,
        var=_common_var(plates, fills_gaps=genes == "union"),
        n_values=n_values,
    )
    with (
        writer,
        ThreadPoolExecutor(1, "scatlas-obs") as thread,
        closing(progress_meter(sum(plate.shape[0] for plate in plates))) as passed,
    ):
        # The table keeps the processor busy while the counts keep the disk busy.
        written = thread.submit(obs.write, writer.folder / "obs")
        for plate in plates:
            plate.copy_x(writer, piece)
            passed.update(plate.shape[0])
        written.result()
    return {
        "n_cells": writer.n_obs,
        "n_genes": writer.n_vars,
        "n_values": n_values,
        "plates": {
            plate.name: {"n_cells": plate.shape[0], "n_values": plate.n_values} for plate in plates
        },
        "obs_columns": obs.columns,
        "dropped_columns": obs.dropped,
        "renamed_cells": obs.n_renamed,
        "notices": obs.notices,
    }


class _Plate:
    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        with reading(str(path), STRUCTURE):
            self.root: StoredGroup = open_store(path)
        x = self.root["X"].attrs
        encoding = x.get("encoding-type")
        if encoding != "csr_matrix":
            raise InputError(f"{path}: X of plate {name} is stored as {encoding!r}, not as CSR")
        n_cells, n_genes = x["shape"]
        self.shape = n_cells, n_genes
        self.data: StoredArray = self.root["X/data"]
        self.n_values = self.data.shape[0]
        self.obs_columns = list(self.root["obs"].attrs["column-order"])
        self.index_name = self.root["obs"].attrs["_index"]

    @cached_property
    def var(self) -> pd.DataFrame:
        return Table.open(self.path, self.root, "var").read()

    def column(self, name: str) -> Column:
        return Column.open(self.path, self.root["obs"], name)

    def check_genes(self, first: _Plate) -> None:
        differing = first_difference(self.var.index, first.var.index)
        if differing is None:
            return
        here, there = (repr(n) if n is not None else "missing" for n in differing[1:])
        raise InputError(
            f"{self.path}: gene {differing.at + 1} of plate {self.name} is {here}, of plate "
            f"{first.name} {there}: plates to be merged need the same genes in the same order"
        )

    def copy_x(self, writer: CsrWriter, piece: int) -> None:
        """Append X in pieces of values, not rows, so that no piece is too large."""
        with reading(str(self.path), "X"):
            store = Store.find(self.path)
            arrays = {
                part: locate_chunks(store, self.root, f"X/{part}") for part in ("data", "indices")
            }
            known = {part: array for part, array in arrays.items() if array is not None}
            done = writer.append_chunks(self.root["X"], known) if len(known) == len(arrays) else 0
            # Pieces end where chunks of the writer do: it copies none.
            first = min(self.n_values, done + -writer.n_values % CHUNK_VALUES)
            bounds = [*sorted({done, first}), *range(first + piece, self.n_values, piece)]
            bounds = [*bounds, self.n_values] if bounds[-1] < self.n_values else bounds

            def read(i: int) -> list[np.ndarray]:
                lo, hi = bounds[i], bounds[i + 1]
                data, indices = (
                    self.root[f"X/{part}"][lo:hi]
                    if array is None
                    else chunk_reader.read_values(array, lo, hi, dtype=array.dtype, owner=store)
                    for part, array in arrays.items()
                )
                writer.check_indices(indices)
                return [data, indices]

            with closing(map_in_order(read, len(bounds) - 1)) as pieces:
                for data, indices in pieces:
                    writer.append_checked(data, indices)
            indptr = self.root["X/indptr"]
            for lo in range(0, self.shape[0], CHUNK_VALUES):
                writer.append_rows(np.diff(indptr[lo : lo + CHUNK_VALUES + 1]))


class _Obs:
    """The merged obs table; its errors are found before counts are copied, which may take hours."""

    def __init__(
        self, plates: list[_Plate], constants: _Constants, *, join: str, keep_names: str | None
    ) -> None:
        self._plates = plates
        self._constants = constants
        self.notices: list[str] = []
        common = set(plates[0].obs_columns).intersection(*(p.obs_columns for p in plates))
        seen = dict.fromkeys(name for plate in plates for name in plate.obs_columns)
        common = common if join == "inner" else set(seen)
        self.columns = [name for name in seen if name in common]
        self.dropped = [name for name in seen if name not in common and name not in constants]
        if self.dropped:
            names = ", ".join(map(repr, self.dropped))
            self.notices.append(f"obs columns that are not on all plates are left out: {names}")
        self.columns += [name for name in constants if name not in common]
        own = [name for name in self.columns if name not in constants]
        self._targets = {
            name: Target.narrowest_for(self._columns(name)) for name in [*own, *constants]
        }
        self.notices += [
            f"obs[{name!r}]: {target.note}" for name, target in self._targets.items() if target.note
        ]
        self._indexes = {plate.name: plate.column(plate.index_name) for plate in plates}
        self._names = UniqueNames(self._indexes, keep=keep_names)
        self.n_renamed = self._names.n_changed
        self._note_names()
        for name in constants:
            self._compare(name)

    def write(self, path: Path) -> None:
        """Write the table; several threads write one column each."""

        def write_column(name: str) -> None:
            with ColumnWriter(path / name, self._targets[name], pool) as column:
                for own in self._columns(name):
                    column.append_column(own)

        with encoding_pool() as pool, ThreadPoolExecutor(n_threads(), "scatlas-obs") as threads:
            index = threads.submit(self._write_index, path, pool)
            written = [threads.submit(write_column, name) for name in self._targets]
            try:
                wanted = {"column-order": self.columns, "_index": index.result()}
                for column in written:
                    column.result()
            finally:
                threads.shutdown(cancel_futures=True)
        create_group(path, {**DATAFRAME, **wanted})

    def _write_index(self, path: Path, pool: ThreadPoolExecutor) -> str:
        named = {plate.index_name for plate in self._plates}
        # The name of the index must not be that of a column.
        name = named.pop() if len(named) == 1 else "_index"
        name = "_index" if name in self.columns else name
        with ColumnWriter(path / name, Target("text", np.dtype(object)), pool) as column:
            for plate, own in self._indexes.items():
                for lo, hi in own.spans():
                    column.append(self._names.read(plate, lo, hi))
        return name

    def _columns(self, name: str) -> list[Column]:
        """Columns that make one column of the result, in the order of the plates."""
        if name not in self._constants:
            return [
                plate.column(name) if name in plate.obs_columns else self._gaps(plate, name)
                for plate in self._plates
            ]
        return [self._label(plate, name) for plate in self._plates]

    def _gaps(self, plate: _Plate, name: str) -> Column:
        """A column without a value, of the kind that the other plates have."""
        like = next(p.column(name) for p in self._plates if name in p.obs_columns)
        n, kind = plate.shape[0], like.kind
        if kind in {"number", "nullable"}:
            is_real = like.dtype.kind == "f"
            values = np.broadcast_to(like.dtype.type(np.nan if is_real else 0), n)
            mask = None if is_real else np.broadcast_to(True, n)
            stored = Stored("number" if is_real else "nullable", like.dtype, n, values, 1, mask)
            return Column(str(plate.path), f"obs/{name}", *stored)
        return _codes(plate, name, -1, like.categories)

    def _label(self, plate: _Plate, name: str) -> Column:
        """The plate's label as a column; without a label, the plate's own column or gaps."""
        value = self._constants[name][plate.name]
        if value:
            return _codes(plate, name, 0, np.array([value], object))
        return plate.column(name) if name in plate.obs_columns else _codes(plate, name, -1)

    def _note_names(self) -> None:
        if not self.n_renamed:
            return
        notice = (
            f"{self.n_renamed:,} cells have a name that occurs on more than one plate: "
            "the plate's name was appended to it"
        )
        if self._names.n_numbered:
            notice += f", and a number to {self._names.n_numbered:,} whose new name was taken"
        self.notices.append(notice)
        shared = SharedCells()
        for plate in self._plates:
            if _N_GENES in plate.obs_columns:
                index, n_genes = self._indexes[plate.name], plate.column(_N_GENES)
                cells = (
                    (index.encoded_text(*rows), n_genes.values(*rows)) for rows in index.spans()
                )
                shared.add(plate.name, cells)
        self.notices += shared.sentences().values()

    def _compare(self, name: str) -> None:
        for plate in self._plates:
            if name not in plate.obs_columns:
                continue
            old, new = plate.column(name), self._constants[name][plate.name]
            if not new:
                self.notices.append(f"obs[{name!r}] of plate {plate.name} has no label: kept")
            elif not _holds_only(old, new):
                self.notices.append(
                    f"obs[{name!r}] of plate {plate.name} held other values: replaced by {new!r}"
                )


def _codes(plate: _Plate, name: str, code: int, categories: np.ndarray = NO_CATEGORIES) -> Column:
    """A column of one category, or of gaps alone."""
    codes = np.broadcast_to(np.int8(code), plate.shape[0])
    stored = Stored("categorical", codes.dtype, codes.size, codes, 1, categories=categories)
    return Column(str(plate.path), f"obs/{name}", *stored)


def _holds_only(column: Column, text: str) -> bool:
    if column.kind != "categorical":
        return all((column.text(lo, hi) == text).all() for lo, hi in column.spans())
    # The last entry is for code -1, a gap.
    same = np.append(column.categories.astype(str) == text, [False])
    return all(same[column.values(lo, hi)].all() for lo, hi in column.spans(wide=True))


def _constants(
    plates: list[_Plate], label: str | None, labels: Mapping[str, Mapping[str, str]]
) -> _Constants:
    """Columns with one value per plate: the plate's name, and the given labels."""
    constants = {} if label is None else {label: {plate.name: plate.name for plate in plates}}
    names = labels.get(plates[0].name, {}).keys()
    for plate in plates if labels else ():
        if labels.get(plate.name, {}).keys() != names:
            msg = f"plates {plates[0].name} and {plate.name} have different labels"
            raise ValueError(msg)
    for name in names:
        if name == label or not is_storable(name):
            msg = (
                f"obs cannot have a column {name!r} for a label of the plates: "
                "rename that column of the plate sheet"
            )
            raise InputError(msg)
        constants[name] = {plate.name: labels[plate.name][name] for plate in plates}
    return constants


def _common_var(plates: list[_Plate], *, fills_gaps: bool) -> pd.DataFrame:
    """The first plate's var, with the columns that are equal on all plates."""
    tables = [plate.var for plate in plates]
    if fills_gaps:
        return _var_without_gaps(tables)
    first = tables[0]
    same = [
        name
        for name in first.columns
        if all(name in var.columns and var[name].equals(first[name]) for var in tables)
    ]
    return first[same]


def _var_without_gaps(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Columns of var on which all plates agree that have a value."""
    columns = {}
    for name in tables[0].columns:
        if not all(name in var.columns for var in tables):
            continue
        values = [var[name].astype(object) for var in tables]
        filled = values[0]
        for other in values[1:]:
            filled = filled.where(filled.notna(), other)
        if all((other.isna() | (other == filled)).all() for other in values):
            columns[name] = filled.infer_objects() if filled.notna().all() else filled
    merged = tables[0][[]].assign(**columns)
    # A column of text with gaps is stored as categories; one of values that differ is not.
    categories = [
        name
        for name, values in columns.items()
        if isinstance(tables[0][name].dtype, CategoricalDtype) and values.nunique() < len(values)
    ]
    return merged.astype(dict.fromkeys(categories, "category"))
