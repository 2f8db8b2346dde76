"""Cutting cells and genes out of one block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    Block = np.ndarray | sp.csr_matrix | sp.csr_array

_INT32 = np.iinfo(np.int32).max


@njit(nogil=True, cache=True)
def _count_kept(indices, indptr, place, out_indptr):
    kept = 0
    for i in range(indptr.size - 1):
        for j in range(indptr[i], indptr[i + 1]):
            kept += place[indices[j]] >= 0
        out_indptr[i + 1] = kept


@njit(nogil=True, cache=True)
def insert(gene, value, start, stop, data, indices):
    """Put a value into the row that lies at ``start`` to ``stop - 1``, whose genes stay sorted.

    Rows come sorted and the wanted genes nearly always ascend, so that the loop does not turn.
    """
    at = stop
    while at > start and indices[at - 1] > gene:
        indices[at] = indices[at - 1]
        data[at] = data[at - 1]
        at -= 1
    indices[at] = gene
    data[at] = value


@njit(nogil=True, cache=True)
def _cut_genes(data, indices, indptr, place, out_data, out_indices):
    k = 0
    for i in range(indptr.size - 1):
        start = k
        for j in range(indptr[i], indptr[i + 1]):
            gene = place[indices[j]]
            if gene < 0:
                continue
            insert(gene, data[j], start, k, out_data, out_indices)
            k += 1


@njit(nogil=True, cache=True)
def _cut_rows(data, indices, indptr, rows, out_data, out_indices, out_indptr):
    k = 0
    for r in range(rows.size):
        for j in range(indptr[rows[r]], indptr[rows[r] + 1]):
            out_data[k] = data[j]
            out_indices[k] = indices[j]
            k += 1
        out_indptr[r + 1] = k


def index_dtype(n_values: int, n_genes: int) -> type:
    """Type of indices and indptr; one for both, as SciPy wants it."""
    return np.int32 if max(n_values, n_genes) <= _INT32 else np.int64


def new_column_of_gene(index: np.ndarray, n_genes: int) -> np.ndarray:
    """Where each of `n_genes` genes goes when those of `index` are cut out: int64, -1 for nowhere.

    Raises
    ------
    ValueError
        When a position lies outside or comes twice.
    """
    index = np.asarray(index, dtype=np.int64)
    if index.size and (index.min() < 0 or index.max() >= n_genes):
        msg = f"gene positions must lie within 0 and {n_genes - 1}"
        raise ValueError(msg)
    place = np.full(n_genes, -1, np.int64)
    place[index] = np.arange(index.size)
    if np.count_nonzero(place >= 0) != index.size:
        msg = "a gene is wanted twice"
        raise ValueError(msg)
    return place


def select_genes(x: Block, index: np.ndarray, n_genes: int | None = None) -> Block:
    """Columns of a block, in the order of `index`.

    Parameters
    ----------
    x
        Block [cells x genes]; its index arrays may be of any width.
    index
        Integer positions of the wanted genes, each at most once, in the order wanted.
    n_genes
        Number of genes that `index` counts in, when the block must be checked against it.

    Returns
    -------
    A new block [cells, len(index)] of the same kind and dtype. Indices of a sparse result are
    sorted within each cell if the input's are, even when `index` is a permutation.
    """
    index = np.asarray(index, dtype=np.int64)
    width = x.shape[1]
    if n_genes is not None and n_genes != width:
        msg = f"the block has {width} genes, not {n_genes}"
        raise ValueError(msg)
    place = new_column_of_gene(index, width)
    if not sp.issparse(x):
        return np.ascontiguousarray(x[:, index])
    # int64 pointers: a copy of one number a cell, for one compiled variant instead of two.
    pointers = x.indptr.astype(np.int64, copy=False)
    indptr = np.zeros(x.shape[0] + 1, np.int64)
    _count_kept(x.indices, pointers, place, indptr)
    width_dtype = index_dtype(int(indptr[-1]), index.size)
    data = np.empty(indptr[-1], x.dtype)
    indices = np.empty(indptr[-1], width_dtype)
    _cut_genes(x.data, x.indices, pointers, place, data, indices)
    shape = (x.shape[0], index.size)
    return type(x)((data, indices, indptr.astype(width_dtype)), shape=shape)


def row_positions(rows: np.ndarray, n_cells: int) -> np.ndarray:
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


def select_rows(x: Block, rows: np.ndarray) -> Block:
    """Cells of a block.

    Parameters
    ----------
    x
        Block [cells x genes]; its index arrays may be of any width.
    rows
        Boolean mask [cells], or integer positions in the order wanted.

    Returns
    -------
    A new block [cells kept, genes] of the same kind and dtype.
    """
    rows = row_positions(rows, x.shape[0])
    if not sp.issparse(x):
        return np.ascontiguousarray(x[rows])
    pointers = x.indptr.astype(np.int64, copy=False)
    n_values = int((pointers[rows + 1] - pointers[rows]).sum())
    width_dtype = index_dtype(n_values, x.shape[1])
    data = np.empty(n_values, x.dtype)
    indices = np.empty(n_values, width_dtype)
    indptr = np.zeros(rows.size + 1, np.int64)
    _cut_rows(x.data, x.indices, pointers, rows, data, indices, indptr)
    shape = (rows.size, x.shape[1])
    return type(x)((data, indices, indptr.astype(width_dtype)), shape=shape)
