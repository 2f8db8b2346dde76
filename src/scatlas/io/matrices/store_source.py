"""Counts of what HDF5 or Zarr opens, AnnData, Cell Ranger or Loom, and of text matrices, which are
converted to that; which elements of a file hold counts, by their first values.
"""

from __future__ import annotations

import math
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
from scatlas.io.files.anndata_file import Store, load_filters
from scatlas.io.files.listing import list_files
from scatlas.io.files.read_errors import REMEDY, reading
from scatlas.io.matrices.csr_row_block import RowBlock, row_blocks
from scatlas.io.matrices.layout import (
    StoredMatrix,
    check_indices,
    find_transposed,
    transposed_blocks,
)
from scatlas.io.matrices.matrix_market import convert_matrix_market, first_cells, first_values
from scatlas.io.matrices.source import COUNTS, EXPECTED, CountsSource, Wanted
from scatlas.io.tables.cell_ranger import cell_ranger_matrices, open_cell_ranger, write_text_tables
from scatlas.io.tables.converted_tables import (
    Tables,
    is_legacy,
    is_loom,
    loom_key,
    open_legacy,
    open_loom,
)
from scatlas.io.tables.genes import genes_alone
from scatlas.io.tables.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import scipy.sparse as sp
    from numpy.typing import NDArray

    from scatlas.io.files.local_zarr import StoredGroup
    from scatlas.io.files.text_matrix import TextMatrix

# Values, and rows of a dense matrix, by which to tell counts from other numbers.
_LOOK, _LOOK_ROWS = 10_000, 10
# Values of a dense matrix in memory at once, to find one that is not 0.
_MAX_VALUES = 2**22
# Share of whole numbers among expected counts, at least.
_WHOLE_SHARE = 0.1
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
            raise InputError(
                f"{self.path}: it is no Parquet file, and source.genes ({genes!r}) is a column of "
                "such files: remove source.genes"
            )
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
        return self._stored_shape[0], self._genes[0].n_rows

    def table(self, name: str) -> Table:
        if name == "var":
            return self._genes[0]
        return Table.open(self.path, self._tables.root, name)

    def elements(self) -> dict[str, str | InputError]:
        with reading(self.path, STRUCTURE):
            return what_matrices_hold(self.path, self._root)

    def check_complete(self) -> None:
        """Refuse a Zarr store that has lost files of values or names, which would read as zeros and
        "". Of other arrays, a chunk of zeros alone has no file.
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


class TextSource(StoreSource):
    """Counts of a text matrix, written once to a store in a scratch folder when they are read."""

    def __init__(self, files: TextMatrix, wanted: Wanted) -> None:
        CountsSource.__init__(self, files.path, wanted)
        self._files = files

    @cached_property
    def _root(self) -> Any:
        self.refuse_elements()
        convert_matrix_market(self._files, self._folder, self._stored_shape)
        self._store = Store.find(self._folder)
        return self._store.open_on(self._stack)

    def _find_tables(self, counts: str) -> Tables:  # noqa: ARG002
        return write_text_tables(self._files, self._folder)

    def elements(self) -> dict[str, str | InputError]:
        return {"X": kind_of_values(first_values(self._files))}

    def genes_per_cell(self) -> None:
        """Not known before the text is read."""

    def some_blocks(self, notify: Callable[[str], object]) -> Iterator[sp.csr_matrix]:  # noqa: ARG002
        """The first cells alone: the text is read up to them."""
        cells = first_cells(self._files, self._stored_shape)
        yield self._genes_of(cells, (0, cells.shape[0]))


def what_matrices_hold(path: str, root: StoredGroup) -> dict[str, str | InputError]:
    """What the matrices of an opened file hold, see `what_elements_hold`."""
    if found := cell_ranger_matrices(root):
        return {name: _held(path, root, group) for name, group in found.items()}
    if not is_loom(root) and not is_legacy(root):
        check_anndata(path, root)
    held = {name: _held(path, root, key) for key, name in matrices(root).items()}
    first = ["X", "layers/counts", "raw"]
    names = sorted(held, key=lambda name: first.index(name) if name in first else len(first))
    return {name: held[name] for name in names}


def matrices(root: StoredGroup) -> dict[str, str]:
    """Matrices of a file by their keys, as ``source.counts`` names them."""
    names = {f"layers/{name}": f"layers/{name}" for name in sorted(root.get("layers", {}))}
    names |= {key: "raw" for key in ("raw/X", "raw.X") if key in root}
    x = loom_key("X") if is_loom(root) else "X"
    names |= {x: "X"} if x in root else {}
    return {k: v for k, v in names.items() if attribute(root[k], "encoding-type") != "null"}


def _held(path: str, root: StoredGroup, key: str) -> str | InputError:
    try:
        with reading(path, key):
            load_filters(path, root[key])
            return kind_of_values(_first_values(root[key], by_column=is_loom(root)))
    except InputError as error:
        if isinstance(error.__cause__, PermissionError):
            raise
        return error


def _first_values(matrix: Any, *, by_column: bool) -> np.ndarray:
    """Values of the first rows (columns in Loom) that are not all 0."""
    values = matrix["data"] if is_group(matrix) else matrix
    n_rows = values.shape[1 if by_column else 0]
    width = max(1, math.prod(values.shape) // max(1, n_rows))
    first, step = 0, _LOOK if is_group(matrix) else _LOOK_ROWS
    while first < n_rows:
        rows = slice(first, first + step)
        part = np.asarray(values[:, rows] if by_column else values[rows])
        if part.any():
            return part
        first, step = first + step, max(min(2 * step, _MAX_VALUES // width), step)
    return np.empty(0)


def kind_of_values(values: np.ndarray) -> str:
    """What values are, in words; expected counts are those of which some are whole numbers."""
    values = values[values != 0]
    if not values.size:
        return "holds no value but 0"
    if not np.isfinite(values).all():
        return "holds NaN or infinite values"
    if (values < 0).any():
        return "holds negative values"
    share = float((values == np.rint(values)).mean())
    if share == 1:
        return COUNTS
    return EXPECTED if share > _WHOLE_SHARE else "holds fractional values"
