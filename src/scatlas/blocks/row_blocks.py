"""Row blocks of a matrix: in memory or lazy, on the CPU or on a GPU.

A *block* is a run of whole cells, dense or CSR: a chunk of a Dask array, or a few million values in
memory. Partial results are combined in row order: the same bits on any machine.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import scipy.sparse as sp

from scatlas.arrays.kinds import ArrayKind, is_dask, kind_of
from scatlas.blocks.checks import check, sum_repeats
from scatlas.errors import InputError
from scatlas.kernels import kernels_for
from scatlas.kernels.counts.lazy_normalized import LazyNormalizedCsr

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import dask.array as da
    from numpy.typing import NDArray

# Blocks of a large array in memory, for that many threads.
_MIN_BLOCKS = 16

Block = np.ndarray | sp.csr_matrix | sp.csr_array
T = TypeVar("T")


class InMemoryBlocks:
    """Row blocks of an array in memory, or parts of a vector with one entry per cell."""

    def __init__(self, x: Any, kind: ArrayKind) -> None:
        self.x, self.kind = x, kind

    def slices(self) -> list[slice]:
        """Rows of each block, in order."""
        x, n_cells = self.x, self.x.shape[0]
        if self.kind.sparse and x.format == "csr":
            indptr = on_host(x.indptr)
            n_values = int(indptr[-1])
            size = self._block_size(n_values)
            if n_values <= size:
                return [slice(0, n_cells)]
            ends = np.searchsorted(indptr, np.arange(size, n_values, size))
            return _slices(np.unique(np.r_[0, ends, n_cells]))
        rows = max(1, self._block_size(n_cells * x.shape[1]) // max(1, x.shape[1]))
        return _slices(np.append(np.arange(0, n_cells, rows), n_cells))

    def _block_size(self, n_values: int) -> int:
        """Values per block, for at least _MIN_BLOCKS blocks if they are not too small."""
        arrays = self.kind.arrays
        least = max(arrays.LEAST_VALUES_PER_BLOCK, -(-n_values // _MIN_BLOCKS))
        return int(min(arrays.VALUES_PER_BLOCK, least))

    def reader(self, slices: Sequence[slice]) -> Callable[[int], Any]:
        """Function that returns block ``i`` without a copy of its values."""
        x = sum_repeats(self.kind.arrays.as_rows(self.x))
        return lambda i: view(x, slices[i])

    # Workers of a cluster get the same parts.
    delayed = reader

    def select_rows(self, index: NDArray[Any]) -> Any:
        """Rows by a mask or by positions."""
        if not self.kind.gpu or self.x.ndim != 2:
            return self.x[index]
        rows = np.flatnonzero(index) if index.dtype == bool else index
        x = self.kind.arrays.as_rows(self.x)
        return kernels_for("counts.select", x).select_rows(x, rows)

    def select_genes(self, index: NDArray[Any]) -> Any:
        """Columns by their positions."""
        if not self.kind.gpu:
            return self.x[:, index]
        x = self.kind.arrays.as_rows(self.x)
        return kernels_for("counts.select", x).select_genes(x, index)


class DaskBlocks:
    """Row blocks of a Dask array, or parts of a lazy vector with one entry per cell."""

    def __init__(self, x: da.Array, kind: ArrayKind) -> None:
        self.x, self.kind = x, kind

    def slices(self) -> list[slice]:
        """Rows of each block, in order."""
        check(self.x)
        return _slices(np.cumsum([0, *self.x.chunks[0]]))

    def reader(self, _slices: Sequence[slice]) -> Callable[[int], Any]:
        """Function that computes block ``i``."""
        from scatlas.blocks.dask_graph import block_reader  # it imports Dask

        return block_reader(self.x)

    def delayed(self, _slices: Sequence[slice]) -> Callable[[int], Any]:
        """Function that returns block ``i`` as a delayed object of Dask."""
        blocks: list[Any] = self.x.to_delayed().ravel().tolist()
        return blocks.__getitem__

    def select_rows(self, index: NDArray[Any]) -> da.Array:
        """Rows by a mask or by sorted positions, lazily; blocks without such a row are dropped."""
        x = self.x
        if index.dtype != bool:
            mask = np.zeros(x.shape[0], bool)
            mask[index] = True
            if index.size != mask.sum() or (np.diff(index) < 0).any():
                msg = "cells of a Dask array keep their order: sort the index, without repeats"
                raise InputError(msg)
            index = mask
        masks = np.split(index, np.cumsum(x.chunks[0])[:-1])
        nonempty = [i for i, mask in enumerate(masks) if mask.any()]
        if not nonempty:
            return x[:0]
        row_mask = np.concatenate([masks[i] for i in nonempty])
        blocks = x.blocks[nonempty] if len(nonempty) < len(masks) else x
        if row_mask.all():
            return blocks
        rows = tuple(int(masks[i].sum()) for i in nonempty)
        meta = self.kind.arrays.empty_like(x._meta, x.dtype)
        return _map_any_axes(
            _select_rows, blocks, row_mask, dtype=x.dtype, meta=meta, adjust={0: rows}
        )

    def select_genes(self, index: NDArray[Any]) -> da.Array:
        """Columns by their positions, lazily."""
        x, kernels = self.x, kernels_for("counts.select", self.x)
        # Of a function within this one Dask would search all modules for its names.
        of_block = partial(_select_genes, kernels.select_genes, index, x.shape[1])
        return map_blocks(of_block, x, dtype=x.dtype, n_vars=index.size)


def row_blocks(x: Any) -> InMemoryBlocks | DaskBlocks:
    """Row blocks of ``x``; a pass looks up the kind of ``x`` here and once only."""
    kind = kind_of(x)
    return DaskBlocks(x, kind) if kind.lazy else InMemoryBlocks(x, kind)


def _slices(bounds: NDArray[np.integer[Any]]) -> list[slice]:
    if bounds[-1] == 0:
        return [slice(0, 0)]
    return [slice(int(start), int(stop)) for start, stop in pairwise(bounds)]


def row_slices(x: Any) -> list[slice]:
    """Rows of each block of ``x`` [cells x genes], in order."""
    return row_blocks(x).slices()


def is_sparse(x: Any) -> bool:
    """Whether ``x``, or a block of the Dask array ``x``, is a sparse matrix of SciPy or CuPyX."""
    return kind_of(x).sparse


def on_host(x: Any) -> Any:
    """Array or block in the memory of the host."""
    return kind_of(x).arrays.on_host(x)


def csr(data: Any, indices: Any, indptr: Any, n_genes: int) -> Any:
    """CSR matrix over these very arrays: no copy, no wider indices, no check."""
    return kind_of(data).arrays.csr(data, indices, indptr, n_genes)


def join(parts: Sequence[Any]) -> Any:
    """One array of arrays or blocks whose rows follow each other."""
    return parts[0] if len(parts) == 1 else kind_of(parts[0]).arrays.join(parts)


def join_lists(lists: Sequence[list[T]]) -> list[T]:
    """One list of the items of several: combines results of blocks that are lists."""
    return [item for items in lists for item in items]


def view(x: Any, rows: slice) -> Any:
    """Rows of a dense or CSR array in memory, or of a vector, without a copy of its values."""
    if rows == slice(0, x.shape[0]):
        return x
    if not hasattr(x, "indptr"):
        return x[rows]
    start, stop = int(x.indptr[rows.start]), int(x.indptr[rows.stop])
    indptr = x.indptr[rows.start : rows.stop + 1] - start
    return csr(x.data[start:stop], x.indices[start:stop], indptr, x.shape[1])


class HalvesOnFullGpu:
    """A function of blocks that processes a block in halves, combined in row order, if the GPU's
    memory is too small; no value depends on it.
    """

    def __init__(self, fn: Callable[..., T], combine: Callable[[list[T]], T]) -> None:
        self._fn, self._combine = fn, combine

    def __call__(self, block: Any, *rows: Any) -> Any:
        try:
            return self._fn(block, *rows)
        except MemoryError as error:  # the base class of CuPy's and RMM's
            kind = kind_of(block)
            if not kind.gpu:
                raise
            kind.arrays.check_halves(block.shape, error)
        # After the end of the except clause: the error refers to the arrays made so far.
        kind.arrays.free_memory()
        n = block.shape[0]
        halves = [slice(0, n // 2), slice(n // 2, n)]
        return self._combine([self(view(block, h), *(row[h] for row in rows)) for h in halves])


class OnRowBlocks:
    """A function of blocks that converts each block to rows first, and sums values in parts unless
    the matrix was `checked` as a whole.

    Dask's metadata may be wrong: a CSC block read as CSR would make kernels index out of bounds.
    """

    def __init__(self, fn: Callable[..., Any] | None, *, checked: bool = False) -> None:
        self._fn, self._checked = fn, checked

    def __call__(self, block: Any, *rows: Any) -> Any:
        block = kind_of(block).arrays.as_rows(block)
        block = block if self._checked else sum_repeats(block)
        return block if self._fn is None else self._fn(block, *rows)


def map_blocks(
    fn: Callable[..., Any],
    x: da.Array,
    *rows: Any,
    dtype: Any,
    n_vars: int | None = None,
    meta: Any = None,
    row_chunks: tuple[int, ...] | None = None,
) -> da.Array:
    """Apply ``fn(block, *row_parts)`` to every block of a Dask array, lazily.

    Parameters
    ----------
    fn
        Takes a block and its part of each array in ``rows``; returns a block.
    x
        Dask array [cells x genes].
    rows
        1-D arrays (NumPy or Dask) with one entry per cell.
    dtype
        Type of the result's values.
    n_vars
        Columns of the result; None for those of ``x``.
    meta
        Empty array of the result's kind; None for that of ``x``.
    row_chunks
        Rows of each block of the result, if ``fn`` changes them.
    """
    check(x)
    adjust: dict[int, Any] = {}
    if n_vars is not None:
        adjust[1] = (int(n_vars),)
    if row_chunks is not None:
        adjust[0] = row_chunks
    meta = kind_of(x).arrays.empty_like(x._meta, dtype) if meta is None else meta
    return _map_any_axes(fn, x, *rows, dtype=dtype, meta=meta, adjust=adjust)


def _map_any_axes(
    fn: Callable[..., Any],
    x: da.Array,
    *rows: Any,
    dtype: Any,
    meta: Any,
    adjust: dict[int, Any],
) -> da.Array:
    """As :func:`map_blocks`, for an array of any axes, which may have several chunks along each."""
    import dask.array as da

    axes = tuple(range(x.ndim))
    vectors = [part for row in rows for part in (_with_chunks_of(x, row), (0,))]
    return da.blockwise(
        OnRowBlocks(HalvesOnFullGpu(fn, join) if kind_of(x).gpu else fn),
        *(axes, x, axes, *vectors),
        dtype=dtype,
        meta=meta,
        adjust_chunks=adjust or None,
        # The chunks agree. With a single row Dask would repeat it for empty blocks.
        align_arrays=False,
    )


def _with_chunks_of(x: da.Array, vector: Any) -> da.Array:
    """A 1-D array with one entry per cell, with the row chunks of ``x``."""
    import dask.array as da

    if is_dask(vector):
        return vector if vector.chunks == (x.chunks[0],) else vector.rechunk((x.chunks[0],))
    return da.from_array(np.asarray(vector), chunks=(x.chunks[0],))


def select_rows(x: Any, index: NDArray[Any]) -> Any:
    """Rows by a mask or sorted positions, of any number of axes; lazily for Dask, whose blocks
    stay, less the other rows, where indexing would read chunks on disk twice.
    """
    return row_blocks(x).select_rows(np.asarray(index))


def _select_rows(block: Any, mask: NDArray[np.bool_]) -> Any:
    return block if mask.all() else InMemoryBlocks(block, kind_of(block)).select_rows(mask)


def _select_genes(select: Any, index: NDArray[Any], n_genes: int, block: Any) -> Any:
    if isinstance(block, LazyNormalizedCsr) and block.shape[1] == n_genes:
        return block[:, index]
    return select(block, index, n_genes)


def select_genes(x: Any, index: NDArray[Any]) -> Any:
    """Columns of ``x`` at the positions ``index``, in their order; lazily for Dask."""
    return row_blocks(x).select_genes(np.asarray(index))


def spread_genes(x: da.Array, columns: NDArray[np.integer[Any]], n_genes: int) -> da.Array:
    """Lazy CSR among ``n_genes``, in which gene i of ``x`` is at the ascending ``columns[i]``."""
    kernels = kernels_for("counts.select", x)
    of_block = partial(kernels.spread_genes, columns=columns, n_genes=n_genes)
    return map_blocks(of_block, x, dtype=x.dtype, n_vars=n_genes)
