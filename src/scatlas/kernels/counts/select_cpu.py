"""Selection of cells and genes of one block."""

from __future__ import annotations

import numpy as np

from scatlas.arrays.array_types import Array, Block, Ints, SparseBlock, is_sparse, row_offsets
from scatlas.kernels.build.numba_cache import njit

_INT32 = np.iinfo(np.int32).max


@njit(nogil=True, cache=True)
def _count_selected(indices: Array, indptr: Ints, new_column: Ints, out_indptr: Array) -> None:
    n_kept = 0
    for i in range(indptr.size - 1):
        for j in range(indptr[i], indptr[i + 1]):
            n_kept += new_column[indices[j]] >= 0
        out_indptr[i + 1] = n_kept


@njit(nogil=True, cache=True)
def insert_sorted(
    gene: int, value: float, start: int, stop: int, data: Array, indices: Array
) -> None:
    """Insert a value into the sorted row at ``start`` to ``stop - 1``, which stays sorted. Rows are
    sorted and selected genes nearly always ascend, so that the loop rarely runs.
    """
    at = stop
    while at > start and indices[at - 1] > gene:
        indices[at] = indices[at - 1]
        data[at] = data[at - 1]
        at -= 1
    indices[at] = gene
    data[at] = value


@njit(nogil=True, cache=True)
def _copy_genes(
    data: Array, indices: Array, indptr: Ints, new_column: Ints, out_data: Array, out_indices: Array
) -> None:
    k = 0
    for i in range(indptr.size - 1):
        start = k
        for j in range(indptr[i], indptr[i + 1]):
            gene = new_column[indices[j]]
            if gene < 0:
                continue
            insert_sorted(gene, data[j], start, k, out_data, out_indices)
            k += 1


@njit(nogil=True, cache=True)
def _copy_rows(
    data: Array,
    indices: Array,
    indptr: Ints,
    rows: Ints,
    out_data: Array,
    out_indices: Array,
    out_indptr: Array,
) -> None:
    k = 0
    for r in range(rows.size):
        for j in range(indptr[rows[r]], indptr[rows[r] + 1]):
            out_data[k] = data[j]
            out_indices[k] = indices[j]
            k += 1
        out_indptr[r + 1] = k


def index_dtype(n_values: int, n_genes: int) -> type:
    """Type of indices and indptr, which SciPy requires to be the same."""
    return np.int32 if max(n_values, n_genes) <= _INT32 else np.int64


def new_column_of_gene(index: Array, n_genes: int) -> Ints:
    """Column of each of `n_genes` genes after selecting `index`; int64, -1: not selected."""
    index = np.asarray(index, dtype=np.int64)
    if index.size and (index.min() < 0 or index.max() >= n_genes):
        msg = f"gene positions must lie within 0 and {n_genes - 1}"
        raise ValueError(msg)
    new_column = np.full(n_genes, -1, np.int64)
    new_column[index] = np.arange(index.size)
    if np.count_nonzero(new_column >= 0) != index.size:
        msg = "a gene is wanted twice"
        raise ValueError(msg)
    return new_column


def select_genes(x: Block, index: Array, n_genes: int | None = None) -> Block:
    """Columns in the order of `index`, each once; `n_genes` is checked. Indices of a sparse result
    are sorted within each cell if the input's are, even if `index` is a permutation.
    """
    index = np.asarray(index, dtype=np.int64)
    width = x.shape[1]
    if n_genes is not None and n_genes != width:
        msg = f"the block has {width} genes, not {n_genes}"
        raise ValueError(msg)
    new_column = new_column_of_gene(index, width)
    if not is_sparse(x):
        return np.ascontiguousarray(np.asarray(x)[:, index])
    offsets = row_offsets(x)
    indptr = np.zeros(x.shape[0] + 1, np.int64)
    _count_selected(x.indices, offsets, new_column, indptr)
    index_type = index_dtype(int(indptr[-1]), index.size)
    data = np.empty(indptr[-1], x.dtype)
    indices = np.empty(indptr[-1], index_type)
    _copy_genes(x.data, x.indices, offsets, new_column, data, indices)
    shape = (x.shape[0], index.size)
    return type(x)((data, indices, indptr.astype(index_type)), shape=shape)


def spread_genes(x: SparseBlock, columns: Array, n_genes: int) -> SparseBlock:
    """CSR block among `n_genes`, in which gene i of `x` is at the ascending ``columns[i]``."""
    wide = columns.astype(np.promote_types(x.indices.dtype, np.int32))
    return type(x)((x.data, wide[x.indices], x.indptr), shape=(x.shape[0], n_genes))


def row_positions(rows: Array, n_cells: int) -> Array:
    """Positions of cells, int64, from a mask or from positions, which are checked."""
    rows = np.asarray(rows)
    if rows.dtype == bool:
        if rows.shape != (n_cells,):
            msg = f"a mask of {rows.size} for {n_cells} cells"
            raise ValueError(msg)
        rows = np.flatnonzero(rows)
    rows = rows.astype(np.int64)
    if rows.size and (rows.min() < 0 or rows.max() >= n_cells):
        msg = f"cell positions must lie within 0 and {n_cells - 1}"
        raise ValueError(msg)
    return rows


def select_rows(x: Block, rows: Array) -> Block:
    """Cells by a mask, or by positions in the order of the result; a new block."""
    rows = row_positions(rows, x.shape[0])
    if not is_sparse(x):
        return np.ascontiguousarray(np.asarray(x)[rows])
    offsets = row_offsets(x)
    n_values = int((offsets[rows + 1] - offsets[rows]).sum())
    index_type = index_dtype(n_values, x.shape[1])
    data = np.empty(n_values, x.dtype)
    indices: Array = np.empty(n_values, index_type)
    indptr = np.zeros(rows.size + 1, np.int64)
    _copy_rows(x.data, x.indices, offsets, rows, data, indices, indptr)
    shape = (rows.size, x.shape[1])
    return type(x)((data, indices, indptr.astype(index_type)), shape=shape)
