"""A plate's counts: the file opened, its structure checked, rows read by range."""

from __future__ import annotations

import logging
import shutil
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np

from scatlas.blocks import csr
from scatlas.compute.block_sizes import csr_blocks
from scatlas.errors import InputError
from scatlas.io.files.anndata_checks import (
    STRUCTURE,
    attribute,
    check_anndata,
    check_not_empty,
    frame_length,
    is_group,
)
from scatlas.io.files.anndata_file import Store
from scatlas.io.files.cell_files import BY_TYPE, CellFiles, ListColumns
from scatlas.io.files.listing import list_files
from scatlas.io.files.read_errors import REMEDY, reading
from scatlas.io.files.text_matrix import TextMatrix
from scatlas.io.matrices.csr_row_block import RowBlock, row_blocks
from scatlas.io.matrices.find_counts import layers, matrices, with_counts
from scatlas.io.matrices.layout import StoredMatrix, check_indices
from scatlas.io.matrices.matrix_market import convert_matrix_market
from scatlas.io.matrices.parquet_source import ParquetSource, Sample
from scatlas.io.matrices.transposed import find_transposed, transposed_blocks
from scatlas.io.tables.cell_ranger import open_cell_ranger
from scatlas.io.tables.feature_types import genes_alone, genes_of_table
from scatlas.io.tables.legacy_anndata import legacy_key, open_legacy
from scatlas.io.tables.loom import loom_key, open_loom
from scatlas.io.tables.parquet_tables import read_genes
from scatlas.io.tables.table import Table, open_genes, open_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pandas as pd
    import scipy.sparse as sp

    from scatlas.io.files.stored_nodes import StoredGroup
    from scatlas.io.tables.cell_ranger import CellRangerTables

logger = logging.getLogger(__name__)
_ZARR_METADATA = frozenset({"zarr.json", ".zarray", ".zattrs"})


class CountsSource:
    """Counts of one AnnData file, opened for reading by ranges of cells.

    Made by :func:`open_counts`; a context manager.

    Attributes
    ----------
    path
        As given.
    matrix
        How the counts are stored; ``n_values`` and ``indptr`` (int64, for CSR) are its.
    shape
        Cells, genes.
    notices
        Sentences about what of the file is left out.
    """

    def __init__(
        self,
        store: Store,
        counts: str = "X",
        *,
        source: str | None = None,
        found: CellRangerTables | None = None,
        stack: ExitStack | None = None,
    ) -> None:
        self._store = store
        key, var = ("raw/X", "raw/var") if counts == "raw" else (counts, "var")
        self._var = var
        self.path = source or store.path
        self.kind = store.kind
        with stack or ExitStack() as stack, reading(self.path, STRUCTURE):
            self._root = self._tables = store.open_on(stack)
            if found is None:
                found = open_cell_ranger(self.path, self._root, stack, counts)
            else:
                _check_one_matrix(self.path, counts)
            loom = None if found else open_loom(self.path, self._root, stack)
            legacy = None if found else open_legacy(self.path, self._root, stack)
            self.notices = [*found.notices] if found else []
            self._gene_of_feature = found.gene_of_feature if found else None
            if found:
                self._tables, self._var, key = found.root, "var", found.key
            elif loom:
                self._tables, self._var, key = loom.root, "var", loom_key(counts)
                self.notices = [*loom.notices]
                _check_loom_element(self.path, self._root, key)
            elif legacy:
                self._tables, key = legacy.root, legacy_key(counts)
                _check_element(self.path, self._root, key)
            else:
                check_anndata(self.path, self._root)
                _check_element(self.path, self._root, key)
            n_cells, n_features = (
                frame_length(self.path, self._tables, n) for n in ("obs", self._var)
            )
            stored = n_cells, found.n_features if found else n_features
            if found:
                self.matrix = StoredMatrix.find_sparse(self.path, self._root, key, stored, "csr")
            elif loom:
                self.matrix = find_transposed(self.path, self._root, key, stored)
            else:
                self.matrix = StoredMatrix.find(self.path, self._root, key, stored)
            notify = self.notices.append
            self._genes = open_genes(self.path, self._tables, self._var, notify)
            if not found:
                self._genes, self._gene_of_feature = genes_alone(self._genes, stack, notify)
            self.shape = n_cells, self._genes.n_rows
            self._stack = stack.pop_all()

    def __enter__(self) -> CountsSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._stack.close()

    @property
    def n_values(self) -> int:
        """Stored values of X."""
        return self.matrix.n_values

    @property
    def indptr(self) -> np.ndarray:
        """Offsets of the rows of X, int64 [n_cells + 1]; empty when X is dense."""
        return self.matrix.indptr

    def path_of(self, row: int) -> str:  # noqa: ARG002
        """File of a cell, for messages."""
        return self.path

    def table(self, name: str) -> Table:
        """``obs`` or ``var`` of the counts, left on disk; ``var`` has only genes."""
        return self._genes if name == "var" else Table.open(self.path, self._tables, name)

    def check_complete(self) -> None:
        """Refuse a Zarr store that has lost files of values or names.

        They would read as zeros, and as names without a letter. Other arrays are not counted: of a
        dense matrix, or of a column, a chunk that holds nothing but zeros has no file. A web server
        lists no files: a store there is not checked.

        Raises
        ------
        InputError
            With the number of missing files.
        """
        if self.kind != "zarr":
            return
        arrays = [] if self.matrix.format == "dense" else [f"{self.matrix.key}/data"]
        for name in ("obs", self._var):
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

    def others_with_counts(self) -> list[str]:
        """Other elements whose first values are whole numbers, as ``source.counts`` names them."""
        return with_counts(self.path, self._root, without=self.matrix.key)

    def check_unchanged(self) -> None:
        """Refuse a local file that was changed since it was opened: parts are read by its path.

        Raises
        ------
        InputError
            It was.
        """
        self._store.check_unchanged(at_end=True)

    def read_rows(self, first: int, stop: int) -> sp.csr_matrix:
        """Rows ``first`` to ``stop - 1`` of a CSR X; value and index types as stored.

        The indices are not checked: see :func:`scatlas.kernels.counts.check_cpu.check_counts`.
        """
        (block,) = self.row_blocks([(first, stop)])
        data, indices = block.raw()
        rows = csr(data, indices, block.offsets, self.matrix.shape[1])
        return self._genes_of(rows, (first, stop))

    def row_blocks(self, cut: Sequence[tuple[int, int]]) -> list[RowBlock]:
        """Blocks of a CSR X for one pass, with all features.

        Parameters
        ----------
        cut
            ``(first, stop)`` rows of each block, ascending and apart.
        """
        if self.matrix.format != "csr":
            msg = f"{self.path}: rows are read from a CSR X, this one is {self.matrix.format}"
            raise InputError(msg)
        return row_blocks(self._store, self._root, self.matrix, cut)

    def blocks(
        self, budget: int, notify: Callable[[str], object]
    ) -> tuple[np.ndarray, list[tuple[int, int]], Callable[[int], sp.csr_matrix]]:
        """Cut X into row blocks for one pass; a dense or CSC X is converted whole.

        Parameters
        ----------
        budget
            Bytes for the blocks in flight.
        notify
            Called with a sentence if X is converted.

        Returns
        -------
        Offsets of the rows, int64 [n_cells + 1], empty for a Loom file; ``(first, stop)`` rows of
        each block; and a function that reads a block by its number, whose indices are not checked.

        Raises
        ------
        InputError
            As :meth:`convert`.
        """
        offsets, cut, read = self._blocks_of_features(budget, notify)
        return offsets, cut, lambda i: self._genes_of(read(i), cut[i])

    def _blocks_of_features(
        self, budget: int, notify: Callable[[str], object]
    ) -> tuple[np.ndarray, list[tuple[int, int]], Callable[[int], sp.csr_matrix]]:
        """Blocks with the features that are no genes, see :meth:`blocks`."""
        if self.matrix.format == "transposed":
            # No offsets: only a pass over the values would tell.
            return self.indptr, *transposed_blocks(self.matrix, self._root, budget)
        if self.matrix.format != "csr":
            whole = self.convert(budget)
            notify(f"{self.matrix.key} was stored as {self.matrix.format}: converted to CSR")
            cut = csr_blocks(whole.indptr, budget)
            return whole.indptr.astype(np.int64), cut, lambda i: whole[slice(*cut[i])]
        cut = csr_blocks(self.indptr, budget)
        rows = self.row_blocks(cut)

        def read(i: int) -> sp.csr_matrix:
            data, indices = rows[i].raw()
            return csr(data, indices, rows[i].offsets, self.matrix.shape[1])

        return self.indptr, cut, read

    def _genes_of(self, block: sp.csr_matrix, rows: tuple[int, int]) -> sp.csr_matrix:
        """A row block without the features that are no genes; its indices are then checked."""
        if self._gene_of_feature is None:
            return block
        n_features, of = self.matrix.shape[1], f"cells {rows[0]} to {rows[1] - 1}"
        check_indices(self.path, self.matrix.key, block.indices, n_features, of)
        genes = self._gene_of_feature[block.indices]
        kept = genes >= 0
        before = np.concatenate([[0], np.cumsum(kept)])
        return csr(block.data[kept], genes[kept], before[block.indptr], self.shape[1])

    def convert(self, budget: int) -> sp.csr_matrix:
        """Read a dense or CSC X whole, as CSR, when it fits the block budget.

        Parameters
        ----------
        budget
            Bytes that the matrix may take as it is stored.

        Raises
        ------
        InputError
            It does not fit; the message holds the command that converts the file.
        """
        return self.matrix.to_csr(self._root, self.kind, budget)


def _check_one_matrix(path: str, counts: str) -> None:
    if counts != "X":
        msg = (
            f"{path}: these files have one matrix and no {counts}: write X in the "
            "column 'counts' of the plate sheet"
        )
        raise InputError(msg)


def _check_loom_element(path: str, root: StoredGroup, key: str) -> None:
    if key == "raw" or key not in root:
        others = " or ".join(["X", *layers(root)])
        msg = (
            f"{path}: a Loom file with no {key}: write {others} in source.counts, or in a column "
            "'counts' of the plate sheet"
        )
        raise InputError(msg)


def _check_element(path: str, root: StoredGroup, key: str) -> None:
    """Refuse a file without the counts, saying where they may be instead."""
    elements = matrices(root)
    if key in elements:
        return
    others = sorted(elements.values())
    if others:
        lines = " or ".join(f"'source: {{counts: {name}}}'" for name in others)
        mend = f"write {lines} in the config, or a column 'counts' in the plate sheet"
    else:
        mend = "there are no layers and no raw either; put the counts in adata.X"
    msg = f"{path}: {key} is missing: {mend}"
    raise InputError(msg)


def open_counts(
    path: Path | str,
    counts: str = "X",
    *,
    scratch: Path | None = None,
    sample: Sample | None = None,
    lists: ListColumns = BY_TYPE,
) -> CountsSource | ParquetSource:
    """Open the counts of a file of AnnData or Cell Ranger and check their structure.

    Parameters
    ----------
    path
        h5ad file or Zarr store (v2 or v3), a local path or a URL that fsspec opens.
    counts
        Where they are: ``"X"``, ``"raw"`` (``raw.X``, with the genes of ``raw.var``) or
        ``"layers/NAME"``.
    scratch
        Folder for a matrix in Matrix Market's format, which is text, in a form that can be read by
        ranges of cells, and for the tables of Parquet files. It is removed when the source is
        closed.
    sample
        Of Parquet files, take the cells of this plate alone.
    lists
        Of Parquet files, the column of tokens, beside which ``counts`` is that of counts.

    Returns
    -------
    The source; close it, or use it in a ``with``.

    Raises
    ------
    InputError
        The file does not exist, is no AnnData file, is truncated, has no such element, or its
        parts do not agree with each other or with ``obs`` and ``var``.
    """
    if files := CellFiles.find(path):
        if lists.genes is None:
            _check_one_matrix(files.path, counts)
        return ParquetSource(files, sample, lists._replace(counts=counts), scratch)
    if lists.genes:
        msg = (
            f"{path}: it is no Parquet file, and source.genes ({lists.genes!r}) is a column of "
            "such files: remove source.genes"
        )
        raise InputError(msg)
    text = TextMatrix.find(path)
    if text is None or scratch is None:
        return CountsSource(Store.find(path), counts)
    shutil.rmtree(scratch, ignore_errors=True)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        found = convert_matrix_market(text, scratch)
        return CountsSource(
            Store.find(scratch), counts, source=str(path), found=found, stack=stack.pop_all()
        )


def gene_names(path: Path | str, counts: str = "X") -> pd.Index:
    """Gene names of a file of AnnData or Cell Ranger that has cells, without reading counts."""
    if files := CellFiles.find(path):
        return read_genes(files)[0].index
    with open_tables(path, counts=counts) as (obs, var):
        check_not_empty(str(path), (obs.n_rows, var.n_rows))
        genes = genes_of_table(var, logger.debug)
        return var.index() if genes is None else var.index()[genes]
