"""Selection of cells and genes of one block on the GPU, where the result stays."""

from __future__ import annotations

from typing import Any, NamedTuple

import cupy as cp
import numpy as np
from cupyx.scipy import sparse

from scatlas.arrays.cupy_arrays import Block, csr, on_gpu, on_host
from scatlas.kernels.build import cuda
from scatlas.kernels.counts import select_cpu
from scatlas.kernels.counts.select_cpu import index_dtype, new_column_of_gene, row_positions

SORTED_AT_ONCE = 1 << 26  # values; each takes 32 bytes during sorting


def raw(values: cp.ndarray) -> cp.ndarray:
    """`values` as unsigned integers of their size, so that copies need fewer compiled kernels."""
    return values.view(np.dtype(f"u{values.itemsize}"))


class SelectionCounts(NamedTuple):
    """Rows and genes to select from a CSR block, and the row offsets of the result."""

    rows: Any
    new_column: cp.ndarray
    indptr: cp.ndarray
    n_values: int
    in_order: bool  # whether the selected values are sorted already


def count_genes(
    x: sparse.csr_matrix, new_column: np.ndarray, rows: Any, n_rows: int
) -> SelectionCounts:
    """Count the selected values (new column >= 0) per row; `rows` is on the device or NULL."""
    wanted = new_column[new_column >= 0]
    on_device = cp.asarray(new_column.astype(np.int32))
    indptr = cp.zeros(n_rows + 1, cp.int64)
    unsorted = cp.zeros(1, cp.int32)
    run = cuda.kernel("counts/select", "count_genes", x.indices.dtype)
    pointers = cuda.row_offsets(x)
    args = x.indices, pointers, rows, np.int64(n_rows), on_device, indptr, unsorted
    run(*cuda.grid_of_warps(n_rows), args)
    indptr = cp.cumsum(indptr)
    in_order = bool((np.diff(wanted) > 0).all()) and not int(unsorted.get()[0])
    return SelectionCounts(rows, on_device, indptr, int(indptr[-1].get()), in_order)


def take_genes(
    x: sparse.csr_matrix,
    counted: SelectionCounts,
    data: cp.ndarray,
    indices: cp.ndarray,
    scales: Any,
) -> tuple[cp.ndarray, cp.ndarray]:
    """Fill `data` and `indices` with the counted values, times the `scales` of their rows; return
    both, or others with the values of each row sorted.
    """
    values = x.data
    if values.dtype == data.dtype and scales is cuda.NULL:
        values, data = raw(values), raw(data)
    n_rows = counted.indptr.size - 1
    types = values.dtype, x.indices.dtype, data.dtype, indices.dtype
    run = cuda.kernel("counts/select", "take_genes", *types)
    source = values, x.indices, cuda.row_offsets(x)
    how = counted.rows, np.int64(n_rows), counted.new_column, scales
    run(*cuda.grid_of_warps(n_rows), (*source, *how, counted.indptr, data, indices))
    if not counted.in_order:
        data, indices = _sort_rows(data, indices, counted.indptr)
    return data, indices


def _sort_rows(
    data: cp.ndarray, indices: cp.ndarray, indptr: cp.ndarray
) -> tuple[cp.ndarray, cp.ndarray]:
    """Values with each row sorted by gene; equal genes keep their order, as on the CPU."""
    offsets = indptr.get()
    out_data, out_indices = cp.empty_like(data), cp.empty_like(indices)
    run = cuda.kernel("counts/select", "sort_keys", indices.dtype)
    row = 0
    while row < offsets.size - 1:
        last = np.searchsorted(offsets, offsets[row] + SORTED_AT_ONCE, side="right") - 1
        after = max(int(last), row + 1)
        start, stop = int(offsets[row]), int(offsets[after])
        if start < stop:
            keys = cp.empty(stop - start, cp.int64)
            args = indices, indptr[row : after + 1], np.int64(after - row), keys
            run(*cuda.grid_of_warps(after - row), args)
            order = cp.argsort(keys)  # stable
            out_data[start:stop] = data[start:stop][order]
            out_indices[start:stop] = indices[start:stop][order]
        row = after
    return out_data, out_indices


def take_dense(x: cp.ndarray, rows: Any, genes: Any, scales: Any, out: cp.ndarray) -> None:
    """Write rows and genes of a dense block, times the `scales` of the rows, to `out`."""
    to = out
    if x.dtype == out.dtype and scales is cuda.NULL:
        x, to = raw(x), raw(out)
    n_rows, n_genes = map(np.int64, out.shape)
    run = cuda.kernel("counts/select", "take_dense", x.dtype, to.dtype)
    args = x, *cuda.strides(x), rows, n_rows, genes, n_genes, scales, to
    run(*cuda.grid_of_warps(int(n_rows)), args)


def select_genes(x: Block, index: Any, n_genes: int | None = None) -> Block:
    index = np.asarray(cp.asnumpy(index), dtype=np.int64)
    new_column = new_column_of_gene(index, x.shape[1], n_genes)
    n_rows = x.shape[0]
    if not sparse.issparse(x):
        out = cp.empty((n_rows, index.size), x.dtype)
        take_dense(x, cuda.NULL, cp.asarray(index), cuda.NULL, out)
        return out
    counted = count_genes(x, new_column, cuda.NULL, n_rows)
    dtype = index_dtype(counted.n_values, index.size)
    data = cp.empty(counted.n_values, x.dtype)
    indices = cp.empty(counted.n_values, dtype)
    data, indices = take_genes(x, counted, data, indices, cuda.NULL)
    return csr(data.view(x.dtype), indices, counted.indptr.astype(dtype), index.size)


def spread_genes(x: Block, columns: Any, n_genes: int) -> Block:
    dtype = index_dtype(x.data.size, n_genes)
    wide = cp.asarray(columns, dtype=dtype)
    return csr(x.data, wide[x.indices], x.indptr.astype(dtype, copy=False), n_genes)


def select_rows(x: Block, rows: Any) -> Block:
    rows = row_positions(cp.asnumpy(rows), x.shape[0])
    n_rows = rows.size
    rows = cp.asarray(rows)
    if not sparse.issparse(x):
        out = cp.empty((n_rows, x.shape[1]), x.dtype)
        take_dense(x, rows, cuda.NULL, cuda.NULL, out)
        return out
    pointers = cuda.row_offsets(x)
    indptr = cp.zeros(n_rows + 1, cp.int64)
    indptr[1:] = pointers[rows + 1] - pointers[rows]
    indptr = cp.cumsum(indptr)
    n_values = int(indptr[-1].get())
    dtype = index_dtype(n_values, x.shape[1])
    data = cp.empty(n_values, x.dtype)
    indices = cp.empty(n_values, dtype)
    values = raw(x.data)
    run = cuda.kernel("counts/select", "take_rows", values.dtype, x.indices.dtype, dtype)
    source = values, x.indices, pointers, rows, np.int64(n_rows)
    run(*cuda.grid_of_warps(n_rows), (*source, indptr, raw(data), indices))
    return csr(data, indices, indptr.astype(dtype), x.shape[1])


def has_repeats(x: Any) -> bool:
    """As on the CPU, to which lines in no order are left: they are rare."""
    falls = x.indices[1:] <= x.indices[:-1]
    starts = x.indptr[1:-1]
    falls[starts[(starts > 0) & (starts < x.indices.size)] - 1] = False
    return bool(falls.any()) and select_cpu.has_repeats(on_host(_lines(x)))


def sum_repeats(x: Any) -> Any:
    whole = on_gpu(select_cpu.sum_repeats(on_host(_lines(x))))
    if x.format == "csr":
        return whole
    return type(x)((whole.data, whole.indices, whole.indptr), shape=x.shape)


def _lines(x: Any) -> Any:
    """The columns of CSC as rows of CSR, which shares its arrays."""
    return csr(x.data, x.indices, x.indptr, x.shape[x.format == "csr"])
