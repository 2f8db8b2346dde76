"""Map, reduce and stream over row blocks: one way for arrays in memory and out of core.

A *block* is a run of whole cells: a 2-D ``numpy.ndarray`` or a SciPy CSR matrix, or on a GPU a
``cupy.ndarray`` or a CuPyX CSR matrix. A Dask array is cut where its chunks are, an array in memory
every few million values, never by the number of threads: partial results are folded in row order
over that fixed cut, so that the same input gives the same bits on any machine.

Where a client of a Dask cluster is open, its workers make the blocks of Dask arrays, else threads
of this process do. A block that is too large for the GPU's memory is worked on in halves.
"""

from __future__ import annotations

import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import scipy.sparse as sp

from scatlas.compute.progress import meter
from scatlas.compute.threads import blas_on_one_thread, n_threads
from scatlas.errors import InputError
from scatlas.kernels.counts.lazy_normalized import LazyNormalizedCsr, materialize
from scatlas.kernels.dispatch import is_gpu, kernels_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    import dask.array as da


Block = np.ndarray | sp.csr_matrix | sp.csr_array
T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")

VALUES_PER_BLOCK = 4_000_000
# A GPU needs this many to be busy; with what is made of them they take about 2 GB.
VALUES_PER_GPU_BLOCK = 64_000_000
# Partials are folded within groups of this many blocks, then over the groups: two partials in
# memory at a time, and a tree that a cluster can work on group by group with the same result.
_GROUP = 16


def passes(n: int, note: str = "") -> Callable[[F], F]:
    """Declare how many times a function computes a Dask X; the tests count and compare."""

    def declare(function: F) -> F:
        function.passes = n
        function.passes_note = note
        return function

    return declare


def is_dask(x: object) -> bool:
    """Whether ``x`` is a Dask array (without importing Dask when it is not).

    X of a view of an AnnData is one of anndata's subclasses of it.
    """
    return any(kind.__module__.startswith("dask.array") for kind in type(x).__mro__)


def _gpu() -> ModuleType:
    """What only works where there is a GPU."""
    from scatlas.arrays import cupy_arrays

    return cupy_arrays


def is_sparse(x: Any) -> bool:
    """Whether ``x``, or a block of the Dask array ``x``, is a sparse matrix of SciPy or CuPyX."""
    return hasattr(x._meta if is_dask(x) else x, "tocsr")


def on_host(array: Any) -> Any:
    """The array or block in the main memory."""
    if not is_gpu(array):
        return array
    return _gpu().on_host(array)


def dense_like(x: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Array of arbitrary content where the values of ``x`` are: CuPy's on a GPU, else NumPy's."""
    if is_gpu(x):
        import cupy

        return cupy.empty(shape, dtype)
    return np.empty(shape, dtype)


def check(x: Any, name: str = "X") -> None:
    """Refuse a Dask array that is cut along the genes, or whose blocks are of unknown size.

    Parameters
    ----------
    x
        Array [cells x genes]; anything but a Dask array passes.
    name
        Element of the AnnData, for the message.

    Raises
    ------
    InputError
        With the call that mends it.
    """
    if not is_dask(x):
        return
    if np.isnan(x.shape).any():
        msg = (
            f"{name} has blocks of unknown size, as rows chosen by a lazy mask have: call "
            "compute_chunk_sizes() of the Dask array first"
        )
        raise InputError(msg)
    if x.ndim > 1 and len(x.chunks[1]) > 1:
        msg = (
            f"{name} is cut into {len(x.chunks[1])} blocks along the genes, but blocks must hold "
            f"whole cells: rechunk it first with adata.{name} = adata.{name}.rechunk({{1: -1}})"
        )
        raise InputError(msg)


def check_type(x: Any, name: str = "X", *, all_floats: bool = False) -> None:
    """Refuse values of a type that kernels do not take.

    Parameters
    ----------
    x
        Array or sparse matrix, in memory or Dask.
    name
        Element of the AnnData, for the message.
    all_floats
        The function takes float16 and longdouble, too.

    Raises
    ------
    InputError
        The values are no integers, booleans, float32 or float64 of this machine's byte order.
    """
    dtype = np.dtype(x.dtype)
    floats = dtype.kind == "f" and (all_floats or dtype.itemsize in (4, 8))
    if dtype.isnative and (dtype.kind in "biu" or floats):
        return
    msg = (
        f"{name} holds values of type {dtype}, but integers, float32 or float64 are needed: "
        "convert it first, with .astype('float32') for instance"
    )
    raise InputError(msg)


def csr(data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, n_genes: int) -> sp.csr_matrix:
    """CSR matrix over these very arrays: no copy, no wider indices, no check."""
    if is_gpu(data):
        return _gpu().csr(data, indices, indptr, n_genes)
    matrix = sp.csr_matrix((indptr.size - 1, n_genes), dtype=data.dtype)
    matrix.data, matrix.indices, matrix.indptr = data, indices, indptr
    return matrix


def row_slices(x: Any) -> list[slice]:
    """Rows of each block of ``x`` [cells x genes], in order."""
    check(x)
    n_cells = x.shape[0]
    size = VALUES_PER_GPU_BLOCK if is_gpu(x) else VALUES_PER_BLOCK
    if is_dask(x):
        bounds = np.cumsum([0, *x.chunks[0]])
    elif is_sparse(x) and x.format == "csr":
        indptr = on_host(x.indptr)
        wanted = np.arange(size, indptr[-1], size)
        bounds = np.unique(np.r_[0, np.searchsorted(indptr, wanted), n_cells])
    else:
        rows = max(1, size // max(1, x.shape[1]))
        bounds = np.unique(np.r_[np.arange(0, n_cells, rows), n_cells])
    if n_cells == 0:
        return [slice(0, 0)]
    return [slice(int(a), int(b)) for a, b in pairwise(bounds)]


def view(x: Block, rows: slice) -> Block:
    """Rows of an in-memory array, without copying its values."""
    if rows == slice(0, x.shape[0]):
        return x
    if not is_sparse(x):
        return x[rows]
    start, stop = int(x.indptr[rows.start]), int(x.indptr[rows.stop])
    indptr = x.indptr[rows.start : rows.stop + 1] - start
    return csr(x.data[start:stop], x.indices[start:stop], indptr, x.shape[1])


def _aligned(vector: Any, x: da.Array) -> da.Array:
    """A 1-D array with one entry a cell, cut as the rows of ``x`` are."""
    import dask.array as da

    if is_dask(vector):
        return vector if vector.chunks == (x.chunks[0],) else vector.rechunk((x.chunks[0],))
    return da.from_array(np.asarray(vector), chunks=(x.chunks[0],))


def map_blocks(
    fn: Callable[..., Block],
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
        1-D arrays (NumPy or Dask) with one entry a cell.
    dtype
        Type of the result's values.
    n_vars
        Columns of the result; those of ``x`` when left out.
    meta
        Empty array of the result's kind; that of ``x`` when left out.
    row_chunks
        Rows of each block of the result, when ``fn`` changes them.
    """
    check(x)
    adjust: dict[int, Any] = {}
    if n_vars is not None:
        adjust[1] = (int(n_vars),)
    if row_chunks is not None:
        adjust[0] = row_chunks
    meta = _meta_of(x._meta, dtype) if meta is None else meta
    return _mapped(fn, x, *rows, dtype=dtype, meta=meta, adjust=adjust)


def _mapped(
    fn: Callable[..., Block],
    x: da.Array,
    *rows: Any,
    dtype: Any,
    meta: Any,
    adjust: dict[int, Any],
) -> da.Array:
    """As :func:`map_blocks`, of an array of any axes, which may be cut along all of them."""
    import dask.array as da

    axes = tuple(range(x.ndim))
    vectors = [part for row in rows for part in (_aligned(row, x), (0,))]
    return da.blockwise(
        _OnRows(_Halving(fn, join) if is_gpu(x) else fn),
        *(axes, x, axes, *vectors),
        dtype=dtype,
        meta=meta,
        adjust_chunks=adjust or None,
        # The cuts agree; where one row is all there is, Dask would repeat it for empty blocks.
        align_arrays=False,
    )


def _meta_of(meta: Any, dtype: Any) -> Any:
    """Empty block of the same kind, CSR if sparse, with values of another type."""
    if is_gpu(meta):
        return _gpu().empty_like(_as_rows(meta), dtype)
    return _as_rows(meta[:0, :0]).astype(dtype)


def join(parts: Sequence[Any]) -> Any:
    """One array of arrays or blocks whose rows follow each other."""
    if len(parts) == 1:
        return parts[0]
    if is_gpu(parts[0]):
        return _gpu().join(parts)
    return sp.vstack(parts, format="csr") if sp.issparse(parts[0]) else np.concatenate(parts)


class _Halving:
    """A function of blocks that works on halves of a block for which the GPU's memory is too small.

    The halves are joined or folded in row order: no count, and no value of a cell, depends on it.
    """

    def __init__(self, fn: Callable[..., T], combine: Callable[[list[T]], T]) -> None:
        self._fn, self._combine = fn, combine

    def __call__(self, block: Block, *rows: Any) -> Any:
        try:
            return self._fn(block, *rows)
        except MemoryError as error:  # CuPy's and RMM's are kinds of it
            if not is_gpu(block):
                raise
            _gpu().check_halves(block.shape, error)
        # Not before the error is gone, which holds the arrays that were made until then.
        _gpu().free_memory()
        n = block.shape[0]
        halves = [slice(0, n // 2), slice(n // 2, n)]
        done = [self(view(block, half), *(row[half] for row in rows)) for half in halves]
        return self._combine(done)


class _OnRows:
    """A function of blocks that is handed rows: other tools' lazy arrays may have CSC blocks.

    What the array says of its blocks is not asked, for it may be wrong: an index that is taken for
    a gene and is a cell would reach outside the kernels' arrays.
    """

    def __init__(self, fn: Callable[..., T] | None) -> None:
        self._fn = fn

    def __call__(self, block: Any, *rows: Any) -> Any:
        block = _as_rows(block)
        return block if self._fn is None else self._fn(block, *rows)


def stream(
    x: Any,
    fn: Callable[..., T] | None = None,
    *rows: Any,
    combine: Callable[[list[T]], T] = join,
) -> Iterator[T]:
    """Yield ``fn(block, *row_parts)`` for every block of ``x``, in row order, in one pass.

    Blocks are made by several threads, at most as many at once as there are threads, and one
    more waits for the consumer: memory does not grow with ``x``.

    Parameters
    ----------
    x
        Array [cells x genes], in memory or Dask.
    fn
        Called in a worker thread; the block itself is yielded when left out.
    rows
        1-D arrays (NumPy, or Dask with ``x``'s cut) with one entry a cell.
    combine
        Makes one result of those of the halves of a block, on a GPU whose memory is full.
    """
    slices = row_slices(x)
    sizes = [rows.stop - rows.start for rows in slices]
    if fn is not None and is_gpu(x):
        fn = _Halving(fn, combine)
    fn = _OnRows(fn)
    if (client := cluster_of(x)) is not None:
        yield from counted(_on_cluster(client, x, fn, rows, slices), sizes)
        return
    blocks = _block_function(x) if is_dask(x) else (lambda i: view(_as_rows(x), slices[i]))
    x = x if is_dask(x) else _as_rows(x)
    parts = [
        _block_function(row) if is_dask(row) else (lambda i, row=row: row[slices[i]])
        for row in rows
    ]

    def work(i: int) -> T:
        return materialize(fn(blocks(i), *(part(i) for part in parts)))

    settle = None
    if is_gpu(x):
        work, settle = _gpu().on_own_stream(work), _gpu().settle
    yield from counted(in_order(work, len(slices), settle), sizes)


def in_order(
    work: Callable[[int], T], n: int, settle: Callable[[], None] | None = None
) -> Iterator[T]:
    """Yield ``work(0), ..., work(n - 1)``, made by several threads, in order.

    At most as many are in the making as there are threads, and one more waits for the consumer.
    In the threads BLAS uses one thread. ``settle`` is called when the consumer is done with a
    result, before that is given up.
    """
    workers = n_threads()
    settle = settle or (lambda: None)
    with blas_on_one_thread(), ThreadPoolExecutor(workers, "scatlas-block") as pool:
        pending: deque = deque()
        try:
            for i in range(n):
                pending.append(pool.submit(work, i))
                if len(pending) > workers:
                    yield pending.popleft().result()
                    settle()
            while pending:
                yield pending.popleft().result()
                settle()
        finally:
            for future in pending:
                future.cancel()


def cluster_of(x: Any) -> Any:
    """The open client of a Dask cluster (``distributed.Client``), if ``x`` is a Dask array."""
    # Not imported for this: where nobody has, nobody has a client.
    if not is_dask(x) or "distributed" not in sys.modules:
        return None
    from distributed import default_client

    try:
        return default_client()
    except ValueError:
        return None


def _on_cluster(
    client: Any, x: da.Array, fn: Callable[..., T], rows: tuple, slices: list[slice]
) -> Iterator[T]:
    """As :func:`stream`, by the workers of a cluster: a few blocks more than they have threads."""
    import dask

    blocks = x.to_delayed().ravel()
    parts = [row.to_delayed().ravel() if is_dask(row) else None for row in rows]
    work = dask.delayed(fn, pure=False)

    def submit(i: int) -> Any:
        row_parts = (
            row[slices[i]] if lazy is None else lazy[i]
            for row, lazy in zip(rows, parts, strict=True)
        )
        return client.compute(work(blocks[i], *row_parts))

    return _futures_in_order(client, submit, len(slices))


def stream_groups(x: da.Array, fn: Callable[[list[Block]], T], size: int) -> Iterator[T]:
    """Yield ``fn(blocks)`` for each run of so many blocks, by the workers of the open cluster.

    What is folded within a group without a cluster is then folded by one worker, to the same bits.
    """
    import dask

    client = cluster_of(x)
    check(x)
    blocks = x.to_delayed().ravel()
    work = dask.delayed(fn, pure=False)
    groups = [list(blocks[i : i + size]) for i in range(0, len(blocks), size)]
    cells = [sum(x.chunks[0][i : i + size]) for i in range(0, len(blocks), size)]
    done = _futures_in_order(client, lambda i: client.compute(work(groups[i])), len(groups))
    yield from counted(done, cells)


def _futures_in_order(client: Any, submit: Callable[[int], Any], n: int) -> Iterator[Any]:
    """Results of ``submit(0), ..., submit(n - 1)``, a few more at once than there are threads."""
    at_once = 2 + sum(client.nthreads().values())
    pending: deque = deque()
    try:
        for i in range(n):
            pending.append(submit(i))
            if len(pending) > at_once:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        client.cancel(list(pending))


def counted(items: Iterator[T], sizes: Sequence[int]) -> Iterator[T]:
    """Yield ``items``, which stand for so many cells each, with a progress bar where one is on."""
    with closing(items), closing(meter(sum(sizes))) as counter:
        for item, size in zip(items, sizes, strict=True):
            counter.update(size)
            yield item


def _as_rows(x: Any) -> Block:
    """In-memory ``x`` in a form whose rows can be cut without a copy."""
    if is_sparse(x):
        return x if x.format == "csr" else x.tocsr()
    return x if is_gpu(x) else np.asarray(x)


def _block_function(x: da.Array) -> Callable[[int], Any]:
    from scatlas.blocks.dask_graph import block_maker  # it imports Dask

    return block_maker(x)


def reduce(block_fn: Callable[..., T], combine: Callable[[list[T]], T], x: Any, *rows: Any) -> T:
    """Fold ``block_fn(block, *row_parts)`` over every block of ``x``, in one pass.

    Parameters
    ----------
    block_fn
        Partial result of one block; called in worker threads.
    combine
        Folds a list of partials, given in row order, to one. It owns them and may write into the
        first.
    x
        Array [cells x genes], in memory or Dask.
    rows
        1-D arrays with one entry a cell, cut along with ``x``.

    Returns
    -------
    The folded partial. The order of folding depends on the blocks of ``x`` alone.
    """
    total: T | None = None
    group: T | None = None
    for i, part in enumerate(stream(x, block_fn, *rows, combine=combine)):
        if i % _GROUP == 0 and group is not None:
            total = group if total is None else combine([total, group])
            group = None
        group = part if group is None else combine([group, part])
    assert group is not None, "an array has at least one block"
    return group if total is None else combine([total, group])


def select_rows(x: Any, index: np.ndarray) -> Any:
    """Rows of ``x`` in storage order, lazily for Dask.

    Each block is cut on its own, and blocks left without a row are dropped, so that no source
    chunk is read twice. (Indexing a Dask array cuts it anew across the blocks.)

    Parameters
    ----------
    x
        Array with one row a cell, of any number of axes; a Dask array may be cut along all of them.
    index
        Boolean mask with one entry a cell, or sorted integer positions.
    """
    index = np.asarray(index)
    if not is_dask(x):
        return _rows_of(x, index)
    if index.dtype != bool:
        mask = np.zeros(x.shape[0], bool)
        mask[index] = True
        if index.size != mask.sum() or (np.diff(index) < 0).any():
            msg = "cells of an array on disk are taken in storage order: sort the index, no repeats"
            raise InputError(msg)
        index = mask
    parts = np.split(index, np.cumsum(x.chunks[0])[:-1])
    kept = [i for i, part in enumerate(parts) if part.any()]
    if not kept:
        return x[:0]
    inside = np.concatenate([parts[i] for i in kept])
    blocks = x.blocks[kept] if len(kept) < len(parts) else x
    if inside.all():
        return blocks
    rows = tuple(int(parts[i].sum()) for i in kept)
    meta = _meta_of(x._meta, x.dtype)
    return _mapped(_take, blocks, inside, dtype=x.dtype, meta=meta, adjust={0: rows})


def _take(block: Block, mask: np.ndarray) -> Block:
    return block if mask.all() else _rows_of(block, mask)


def _rows_of(x: Any, index: np.ndarray) -> Any:
    if not is_gpu(x) or x.ndim != 2:
        return x[index]
    rows = np.flatnonzero(index) if index.dtype == bool else index
    return kernels_for("counts.select", x).select_rows(_as_rows(x), rows)


def select_genes(x: Any, index: np.ndarray) -> Any:
    """Columns of ``x`` in the order of ``index``, lazily for Dask.

    Parameters
    ----------
    x
        Array [cells x genes].
    index
        Integer positions of the genes wanted.
    """
    index = np.asarray(index)
    if not is_dask(x):
        if is_gpu(x):
            return kernels_for("counts.select", x).select_genes(_as_rows(x), index)
        return x[:, index]
    kernels, n_genes = kernels_for("counts.select", x), x.shape[1]

    def of_block(block: Block) -> Block:
        if isinstance(block, LazyNormalizedCsr) and block.shape[1] == n_genes:
            return block[:, index]
        return kernels.select_genes(block, index, n_genes)

    return map_blocks(of_block, x, dtype=x.dtype, n_vars=index.size)
