"""Selection of cells and genes of one block, and from the lines of CSR or CSC in parts; values
that a sparse matrix stores in parts: the same gene twice in a cell, say.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from scatlas.arrays.array_types import Array, Block, Ints, SparseBlock, is_sparse
from scatlas.kernels import CsrArrays, csr_arrays
from scatlas.kernels.build.numba_cache import njit

_INT32 = np.iinfo(np.int32).max


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
def _copy_genes(rows: CsrArrays, new_column: Ints, out_data: Array, out_indices: Array) -> None:
    k = np.int64(0)  # of a literal 0 the type is another: it would compile the callee twice more
    for i in range(rows.indptr.size - 1):
        start = k
        for j in range(rows.indptr[i], rows.indptr[i + 1]):
            gene = new_column[rows.indices[j]]
            if gene < 0:
                continue
            insert_sorted(gene, rows.data[j], start, k, out_data, out_indices)
            k += 1


@njit(nogil=True, cache=True)
def copy_lines(old: CsrArrays, lines: Ints, first: int, last: int, out: CsrArrays) -> None:
    """Copy the lines ``lines[first:last]`` to where ``out.indptr`` says that they begin."""
    for i in range(first, last):
        # Not by slices: Numba compiles the message of a wrong length for two seconds, per process.
        to = out.indptr[i]
        for at in range(old.indptr[lines[i]], old.indptr[lines[i] + 1]):
            out.data[to], out.indices[to] = old.data[at], old.indices[at]
            to += 1


@njit(nogil=True, cache=True)
def count_kept(old: CsrArrays, kept: Array, first: int, last: int, counts: Ints) -> None:
    """Number of entries of the lines `first` to `last` whose index is kept (uint8, 1 or 0)."""
    for line in range(first, last):
        n = 0
        for at in range(old.indptr[line], old.indptr[line + 1]):
            n += kept[np.uint64(old.indices[at])]
        counts[line] = n


@njit(nogil=True, cache=True)
def copy_kept(
    old: CsrArrays, kept: Array, new_index: Array, first: int, last: int, out: CsrArrays
) -> None:
    """Copy the kept entries of the lines `first` to `last`, which get new indices."""
    for line in range(first, last):
        to, stop = out.indptr[line], out.indptr[line + 1]
        for at in range(old.indptr[line], old.indptr[line + 1]):
            if to == stop:
                break
            # Written in any case, and the slot taken only if kept: branches would be random.
            index = np.uint64(old.indices[at])
            out.data[to], out.indices[to] = old.data[at], new_index[index]
            to += np.int64(kept[index])


def index_dtype(n_values: int, n_genes: int) -> type:
    """Type of indices and indptr, which SciPy requires to be the same."""
    return np.int32 if max(n_values, n_genes) <= _INT32 else np.int64


def new_column_of_gene(index: Array, n_genes: int, wanted: int | None = None) -> Ints:
    """Column of each of `n_genes` genes after selecting `index`; int64, -1: not selected. `wanted`
    is the number of genes that there should be.
    """
    if wanted not in (None, n_genes):
        raise ValueError(f"the block has {n_genes} genes, not {wanted}")
    index = np.asarray(index, dtype=np.int64)
    if index.size and (index.min() < 0 or index.max() >= n_genes):
        raise ValueError(f"gene positions must lie within 0 and {n_genes - 1}")
    new_column = np.full(n_genes, -1, np.int64)
    new_column[index] = np.arange(index.size)
    if np.count_nonzero(new_column >= 0) != index.size:
        raise ValueError("a gene is wanted twice")
    return new_column


def select_genes(x: Block, index: Array, n_genes: int | None = None) -> Block:
    """Columns in the order of `index`, each once; `n_genes` is checked. Indices of a sparse result
    are sorted within each cell if the input's are, even if `index` is a permutation.
    """
    index = np.asarray(index, dtype=np.int64)
    new_column = new_column_of_gene(index, x.shape[1], n_genes)
    if not is_sparse(x):
        return np.ascontiguousarray(np.asarray(x)[:, index])
    rows, indptr = csr_arrays(x), np.zeros(x.shape[0] + 1, np.int64)
    count_kept(rows, (new_column >= 0).view(np.uint8), 0, x.shape[0], indptr[1:])
    np.cumsum(indptr, out=indptr)
    index_type = index_dtype(int(indptr[-1]), index.size)
    data = np.empty(indptr[-1], x.dtype)
    indices = np.empty(indptr[-1], index_type)
    _copy_genes(rows, new_column, data, indices)
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
            raise ValueError(f"a mask of {rows.size} for {n_cells} cells")
        rows = np.flatnonzero(rows)
    rows = rows.astype(np.int64)
    if rows.size and (rows.min() < 0 or rows.max() >= n_cells):
        raise ValueError(f"cell positions must lie within 0 and {n_cells - 1}")
    return rows


def select_rows(x: Block, rows: Array) -> Block:
    """Cells by a mask, or by positions in the order of the result; a new block."""
    rows = row_positions(rows, x.shape[0])
    if not is_sparse(x):
        return np.ascontiguousarray(np.asarray(x)[rows])
    old, indptr = csr_arrays(x), np.zeros(rows.size + 1, np.int64)
    np.cumsum(old.indptr[rows + 1] - old.indptr[rows], out=indptr[1:])
    n_values = int(indptr[-1])
    index_type = index_dtype(n_values, x.shape[1])
    new = CsrArrays(np.empty(n_values, x.dtype), np.empty(n_values, index_type), indptr)
    copy_lines(old, rows, 0, rows.size, new)
    shape = (rows.size, x.shape[1])
    return type(x)((new.data, new.indices, indptr.astype(index_type)), shape=shape)


@njit(nogil=True, cache=True)
def _any_repeat(indices: Ints, indptr: Ints, n_minor: int) -> bool:
    """Whether a line holds an index twice; the vectorised loop alone runs if all are ascending."""
    seen_in = np.empty(0, np.int64)
    for line in range(indptr.size - 1):
        here = indices[indptr[line] : indptr[line + 1]]
        falls = False
        for i in range(1, here.size):
            falls |= here[i] <= here[i - 1]
        if not falls:
            continue
        if seen_in.size == 0:
            seen_in = np.full(n_minor, -1, np.int64)
        for i in range(here.size):
            at = np.int64(here[i])
            if 0 <= at < n_minor:
                if seen_in[at] == line:
                    return True
                seen_in[at] = line
    return False


def has_repeats(x: SparseBlock) -> bool:
    """Whether a row of CSR (a column of CSC) stores an index twice, whatever SciPy's flags say."""
    arrays = csr_arrays(x)
    return bool(_any_repeat(arrays.indices, arrays.indptr, x.shape[x.format == "csr"]))


def sum_repeats(x: SparseBlock) -> SparseBlock:
    """Copy of CSR or CSC in which each index of a line is stored once: its parts are added in the
    order and type in which they are stored, to the bits of SciPy's ``toarray``.
    """
    # Transposed twice, because SciPy's sort changes the order of equal indices.
    whole: Any = x.tocsc().tocsr() if x.format == "csr" else x.tocsr().tocsc()  # type: ignore[attr-defined]
    whole.sum_duplicates()
    return whole
