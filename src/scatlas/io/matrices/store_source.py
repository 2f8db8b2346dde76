"""Counts of an h5ad file or Zarr store, or of a file of Cell Ranger or Loom."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.blocks import csr
from scatlas.compute.memory import csr_blocks
from scatlas.errors import InputError
from scatlas.io.files.anndata_checks import (
    STRUCTURE,
    attribute,
    check_anndata,
    frame_length,
    is_group,
)
from scatlas.io.files.listing import list_files
from scatlas.io.files.read_errors import REMEDY, reading
from scatlas.io.matrices.csr_row_block import RowBlock, row_blocks
from scatlas.io.matrices.find_counts import matrices, what_matrices_hold
from scatlas.io.matrices.layout import StoredMatrix, check_indices
from scatlas.io.matrices.source import CountsSource, Wanted
from scatlas.io.matrices.transposed import find_transposed, transposed_blocks
from scatlas.io.tables.cell_ranger import open_cell_ranger
from scatlas.io.tables.converted_tables import Tables
from scatlas.io.tables.feature_types import genes_alone
from scatlas.io.tables.legacy_anndata import open_legacy
from scatlas.io.tables.loom import is_loom, open_loom
from scatlas.io.tables.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import scipy.sparse as sp
    from numpy.typing import NDArray

    from scatlas.io.files.anndata_file import Store
    from scatlas.io.files.stored_nodes import StoredGroup

_ZARR_METADATA = frozenset({"zarr.json", ".zarray", ".zattrs"})


class StoreSource(CountsSource):
    """Counts of one file, see :class:`scatlas.io.CountsSource`."""

    def __init__(self, store: Store, wanted: Wanted) -> None:
        super().__init__(store.path, wanted)
        self._store = store

    @cached_property
    def _root(self) -> Any:
        with reading(self.path, STRUCTURE):
            return self._store.open_on(self._stack)

    @cached_property
    def _tables(self) -> Tables:
        if genes := self._wanted.lists.genes:
            msg = (
                f"{self.path}: it is no Parquet file, and source.genes ({genes!r}) is a column of "
                "such files: remove source.genes"
            )
            raise InputError(msg)
        tables = self._find_tables(self._wanted.counts)
        self._notices += tables.notices
        return tables

    def _find_tables(self, counts: str) -> Tables:
        with reading(self.path, STRUCTURE):
            for layout in (open_cell_ranger, open_loom, open_legacy):
                if tables := layout(self.path, self._root, self._stack, counts):
                    return tables
            check_anndata(self.path, self._root)
        return Tables(self._root, *(("raw/X", "raw/var") if counts == "raw" else (counts, "var")))

    @cached_property
    def matrix(self) -> StoredMatrix:
        """How the counts are stored."""
        with reading(self.path, STRUCTURE):
            tables = self._tables
            place = self.path, self._root, tables.key
            if tables.format == "csr":
                return StoredMatrix.find_sparse(*place, self._stored_shape, "csr")
            _check_element(*place)
            find = find_transposed if tables.format else StoredMatrix.find
            return find(*place, self._stored_shape)

    @property
    def _stored_shape(self) -> tuple[int, int]:
        """Cells, features."""
        root, var, genes = self._tables.root, self._tables.var, self._tables.gene_of_feature
        n_cells, n_rows = (frame_length(self.path, root, name) for name in ("obs", var))
        return n_cells, n_rows if genes is None else len(genes)

    @cached_property
    def _genes(self) -> tuple[Table, np.ndarray | None]:
        """``var`` of the genes, and the gene of each feature, -1 for none; None if all are."""
        root, name, notify = self._tables.root, self._tables.var, self._notices.append
        genes = Table.open(self.path, root, name)
        if self._tables.format == "csr":
            return genes, self._tables.gene_of_feature
        with reading(self.path, STRUCTURE):
            if name != "var":  # with the columns that var alone has
                genes = genes.with_text_of(Table.open(self.path, root, "var"), notify)
            return genes_alone(genes, self._stack, notify)

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Cells, genes."""
        return self._stored_shape[0], self._genes[0].n_rows

    def table(self, name: str) -> Table:
        """``obs`` or ``var`` of the counts, left on disk; ``var`` has only genes."""
        if name == "var":
            return self._genes[0]
        return Table.open(self.path, self._tables.root, name)

    def elements(self) -> dict[str, str | InputError]:
        """What each element holds."""
        with reading(self.path, STRUCTURE):
            return what_matrices_hold(self.path, self._root)

    def check_complete(self) -> None:
        """Refuse a Zarr store that has lost files of values or names.

        They would read as zeros, and as names without a letter. Other arrays are not counted: of a
        dense matrix, or of a column, a chunk that holds nothing but zeros has no file. A web server
        lists no files: a store there is not checked.
        """
        if self._store.kind != "zarr":
            return
        arrays = [] if self.matrix.format == "dense" else [f"{self.matrix.key}/data"]
        for name in ("obs", self._tables.var):
            table = self._root.get(name)
            if table is None or not is_group(table):  # of AnnData before 0.7: an array
                arrays.append(name.replace("/", "."))
                continue
            index = f"{name}/{attribute(table, '_index')}"
            # Text that is missing reads as "". Of an index of categories the codes may be all 0.
            arrays += [] if is_group(self._root[index]) else [index]
        for key in arrays:
            values = self._root[key]
            cut = values.shards or values.chunks
            due = -(-values.shape[0] // cut[0])
            with reading(self.path, f"the list of the files of {key}"):
                files = list_files(self._store.path, key)
            there = due if files is None else len(files - _ZARR_METADATA)
            if there < due:
                msg = f"{self.path}: {key} lacks {due - there:,} of {due:,} chunk files: {REMEDY}"
                raise InputError(msg)

    def genes_per_cell(self) -> NDArray[np.int64] | None:
        """Known of CSR alone, from its offsets."""
        return np.diff(self.matrix.indptr) if self.matrix.format == "csr" else None

    def check_unchanged(self) -> None:
        """Refuse a local file that was changed since it was opened: parts are read by its path."""
        self._store.check_unchanged(at_end=True)

    def row_blocks(self, cut: Sequence[tuple[int, int]]) -> list[RowBlock]:
        """Blocks of a CSR X with all features; ``cut`` is the rows of each, ascending and apart."""
        return row_blocks(self._store, self._root, self.matrix, cut)

    def blocks(
        self, budget: int, notify: Callable[[str], object]
    ) -> tuple[list[tuple[int, int]], Callable[[int], sp.csr_matrix]]:
        """Cut X into row blocks for one pass; a dense or CSC X that fits is converted whole."""
        matrix, _ = self.matrix, self.shape  # before threads ask for them
        if matrix.format == "transposed":
            cut, read = transposed_blocks(matrix, self._root, budget)
        elif matrix.format == "csr":
            cut = csr_blocks(matrix.indptr, budget)
            rows = self.row_blocks(cut)

            def read(i: int) -> sp.csr_matrix:
                return csr(*rows[i].raw(), rows[i].offsets, matrix.shape[1])
        else:
            whole = matrix.to_csr(self._root, self._store.kind, budget)
            notify(f"{matrix.key} was stored as {matrix.format}: converted to CSR")
            cut = csr_blocks(whole.indptr, budget)

            def read(i: int) -> sp.csr_matrix:
                return whole[slice(*cut[i])]

        return cut, lambda i: self._genes_of(read(i), cut[i])

    def _genes_of(self, block: sp.csr_matrix, rows: tuple[int, int]) -> sp.csr_matrix:
        """A row block without the features that are no genes; its indices are then checked."""
        gene_of_feature = self._genes[1]
        if gene_of_feature is None:
            return block
        of = f"cells {rows[0]} to {rows[1] - 1}"
        check_indices(self.path, self._tables.key, block.indices, len(gene_of_feature), of)
        genes = gene_of_feature[block.indices]
        kept = genes >= 0
        before = np.concatenate([[0], np.cumsum(kept)])
        return csr(block.data[kept], genes[kept], before[block.indptr], self.shape[1])


def _check_element(path: str, root: StoredGroup, key: str) -> None:
    """Refuse a file without the counts, saying where they may be instead."""
    elements = matrices(root)
    if key in elements:
        return
    names = sorted(elements.values())
    lines = " or ".join(f"'source: {{counts: {name}}}'" for name in names)
    if is_loom(root):
        msg = (
            f"{path}: a Loom file with no {key}: write {' or '.join(names)} in source.counts, or "
            "in a column 'counts' of the plate sheet"
        )
    elif names:
        msg = (
            f"{path}: {key} is missing: write {lines} in the config, or a column 'counts' in the "
            "plate sheet"
        )
    else:
        msg = (
            f"{path}: {key} is missing: there are no layers and no raw either; put the counts in "
            "adata.X"
        )
    raise InputError(msg)
