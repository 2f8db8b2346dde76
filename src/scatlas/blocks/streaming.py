"""One pass over the row blocks of a matrix, by threads, or for Dask arrays by the workers of an
open client's cluster.
"""

from __future__ import annotations

import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import closing, nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from scatlas.arrays.kinds import is_dask, kind_of
from scatlas.blocks.checks import check
from scatlas.blocks.row_blocks import HalvesOnFullGpu, OnRowBlocks, join, map_blocks, row_blocks
from scatlas.compute.progress import progress_meter
from scatlas.compute.threads import blas_on_one_thread, n_threads
from scatlas.kernels.counts.lazy_normalized import materialize

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    import dask.array as da
    from numpy.typing import NDArray

T = TypeVar("T")

# Partial results are combined within groups of this many blocks, then over the groups: memory
# holds two of them at a time, and a cluster can combine group by group with the same result.
_BLOCKS_PER_GROUP = 16


def stream(
    x: Any,
    fn: Callable[..., T] | None = None,
    *rows: Any,
    combine: Callable[[list[T]], T] = join,
    pool: ThreadPoolExecutor | None = None,
) -> Iterator[T]:
    """Yield ``fn(block, *row_parts)`` for every block of ``x``, in row order, in one pass.

    Each thread computes one block at a time, and one more block waits for the consumer: memory
    does not grow with ``x``.

    Parameters
    ----------
    x
        Array [cells x genes], in memory or Dask.
    fn
        Worker threads call it. None yields the blocks themselves.
    rows
        1-D arrays (NumPy, or Dask with the row chunks of ``x``) with one entry per cell.
    combine
        Combines the results of the halves of a block, if the GPU's memory is full.
    pool
        As for :func:`map_in_order`.
    """
    source = row_blocks(x)
    slices = source.slices()
    sizes = [rows.stop - rows.start for rows in slices]
    work = HalvesOnFullGpu(fn, combine) if fn and source.kind.gpu else fn
    on_block = OnRowBlocks(work, checked=not source.kind.lazy)
    sources = [source, *map(row_blocks, rows)]
    if source.kind.lazy and (client := _open_client()) is not None:
        from dask.delayed import delayed

        parts = [source.delayed(slices) for source in sources]
        task = delayed(on_block, pure=False)
        results = _futures_in_order(
            client, lambda i: client.compute(task(*(part(i) for part in parts))), len(slices)
        )
        yield from with_progress(results, sizes)
        return
    readers = [source.reader(slices) for source in sources]

    def compute_block(i: int) -> T:
        return materialize(on_block(*(read(i) for read in readers)))

    arrays = source.kind.arrays
    results = map_in_order(
        arrays.on_own_stream(compute_block), len(slices), arrays.wait_for_kernels, pool=pool
    )
    yield from with_progress(results, sizes)


def map_in_order(
    work: Callable[[int], T],
    n: int,
    wait: Callable[[], None] = lambda: None,
    workers: int | None = None,
    pool: ThreadPoolExecutor | None = None,
) -> Generator[T]:
    """Yield ``work(0), ..., work(n - 1)`` in order, computed by ``workers`` threads with BLAS on
    one thread each; ``wait`` is called when a result is used, before it is freed.

    Threads of a ``pool`` may be the consumer's, too: twice as many as cores would let it wait.
    """
    if n == 1:
        # A pool takes 0.1 ms, as long as the work on a small matrix.
        with blas_on_one_thread():
            result = work(0)
        yield result
        wait()
        return
    workers = n_threads() if workers is None else workers
    own = ThreadPoolExecutor(workers, "scatlas-block") if pool is None else nullcontext(pool)
    with blas_on_one_thread(), own as threads:
        pending: deque[Any] = deque()
        try:
            for i in range(n):
                pending.append(threads.submit(work, i))
                if len(pending) > workers:
                    yield pending.popleft().result()
                    wait()
            while pending:
                yield pending.popleft().result()
                wait()
        finally:
            for future in pending:
                future.cancel()
            wait_for(pending)


def for_each(work: Callable[[T], None], parts: Sequence[T]) -> None:
    """Call ``work`` with each part of an array in memory, by several threads; an interrupt waits
    for all parts, so that arrays that are overwritten are complete.
    """
    if len(parts) <= 1:  # a pool takes 0.1 ms, as long as the work on a small array
        for part in parts:
            work(part)
        return
    with ThreadPoolExecutor(n_threads(), "scatlas-block") as pool:
        futures = [pool.submit(work, part) for part in parts]
        for future in futures:
            future.result()


def cluster_client(x: Any) -> Any:
    """The open client of a Dask cluster (``distributed.Client``), if ``x`` is a Dask array."""
    return _open_client() if is_dask(x) else None


def _open_client() -> Any:
    # If distributed was never imported, no client exists: do not import it to ask.
    if "distributed" not in sys.modules:
        return None
    from distributed import default_client

    try:
        return default_client()
    except ValueError:
        return None


def stream_groups(x: da.Array, fn: Callable[[list[Any]], T], size: int) -> Iterator[T]:
    """Yield ``fn(blocks)`` for each run of ``size`` blocks, called by one worker of the open
    cluster: the bits are those without a cluster.
    """
    from dask.delayed import delayed

    client = _open_client()
    check(x)
    blocks = x.to_delayed().ravel()
    work = delayed(_on_group, pure=False)
    groups = [list(blocks[i : i + size]) for i in range(0, len(blocks), size)]
    n_cells = [sum(x.chunks[0][i : i + size]) for i in range(0, len(blocks), size)]
    results = _futures_in_order(client, lambda i: client.compute(work(fn, groups[i])), len(groups))
    yield from with_progress(results, n_cells)


def _on_group(fn: Callable[[list[Any]], T], parts: list[Any]) -> T:
    return fn([OnRowBlocks(None)(part) for part in parts])


def _futures_in_order(client: Any, submit: Callable[[int], Any], n: int) -> Generator[Any]:
    """Results of ``submit(0), ..., submit(n - 1)``; two more than the cluster's threads at once."""
    max_pending = 2 + sum(client.nthreads().values())
    pending: deque[Any] = deque()
    try:
        for i in range(n):
            pending.append(submit(i))
            if len(pending) > max_pending:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        client.cancel(list(pending))


def with_progress(items: Generator[T], sizes: Sequence[int]) -> Generator[T]:
    """Yield ``items``, of ``sizes`` cells each, and advance the progress bar, if it is on."""
    with closing(items), closing(progress_meter(sum(sizes))) as counter:
        for item, size in zip(items, sizes, strict=True):
            counter.update(size)
            yield item


def reduce(block_fn: Callable[..., T], combine: Callable[[list[T]], T], x: Any, *rows: Any) -> T:
    """Combine ``block_fn(block, *row_parts)`` of all blocks of ``x``, in one pass.

    ``combine`` takes partial results in row order, which depends on the blocks of ``x`` alone, and
    may overwrite the first; ``rows`` have one entry per cell.
    """
    total: T | None = None
    group: T | None = None
    for i, part in enumerate(stream(x, block_fn, *rows, combine=combine)):
        if i % _BLOCKS_PER_GROUP == 0 and group is not None:
            total = group if total is None else combine([total, group])
            group = None
        group = part if group is None else combine([group, part])
    assert group is not None, "an array has at least one block"
    return group if total is None else combine([total, group])


def apply(
    fn: Callable[..., Any],
    x: Any,
    *rows: Any,
    dtype: Any,
    n_vars: int | None = None,
    dense: bool = False,
) -> Any:
    """Matrix of ``fn(block, *row_parts)`` of all blocks; lazy if ``x`` is a Dask array.

    ``fn`` returns ``n_vars`` columns (None: those of ``x``) of type ``dtype``; ``dense`` if sparse
    blocks become dense; ``rows`` have one entry per cell.
    """
    kind = kind_of(x)
    dense = dense or not kind.sparse
    if kind.lazy:
        meta = kind.arrays.empty((0, 0), dtype) if dense else None
        return map_blocks(fn, x, *rows, dtype=dtype, n_vars=n_vars, meta=meta)
    if not dense:
        return join(list(stream(x, fn, *rows)))
    out = kind.arrays.empty((x.shape[0], x.shape[1] if n_vars is None else n_vars), dtype)
    if kind.gpu:
        for cells, block in zip(row_blocks(x).slices(), stream(x, fn, *rows), strict=True):
            out[cells] = block
        return out

    def write(block: Any, cells: NDArray[np.int64], *rows: Any) -> None:
        # The threads write, because one alone takes as long to copy as all to compute.
        if cells.size:
            out[cells[0] : cells[-1] + 1] = fn(block, *rows)

    for _ in stream(x, write, np.arange(x.shape[0]), *rows):
        pass
    return out


def to_memory(x: Any) -> Any:
    """The matrix in memory: the blocks of a Dask array, in one pass, dense ones written to their
    place as they come, so that no value is held twice.
    """
    if not is_dask(x):
        return x
    parts: Iterator[Any] = stream(x)
    first = next(parts)
    if kind_of(first).sparse or first.dtype != x.dtype:
        return join([first, *parts])
    out = kind_of(first).arrays.empty(x.shape, x.dtype)
    for rows, block in zip(row_blocks(x).slices(), chain([first], parts), strict=True):
        out[rows] = block
    return out
