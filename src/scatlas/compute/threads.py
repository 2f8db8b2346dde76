"""Number of threads that process blocks, tasks for blocks of cells; BLAS limited to one thread."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from scatlas._util.operating_system import n_available_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from threadpoolctl import ThreadpoolController

# Maximum bytes per block. A block takes at most an eighth of the block budget and no more than
# this: a larger budget allows more blocks in flight, for machines with more cores.
BLOCK_BYTES = 32_000_000
# The same on GPUs, which need larger blocks to be busy, and many of them in flight. Sizes assume 8
# bytes per value; compact counts take 3.
GPU_BLOCK_BYTES = 128_000_000
GPU_BUDGET = 16 * GPU_BLOCK_BYTES
BLOCKS_PER_BUDGET = 8
# Budget that divides data into blocks where none is given. More threads then have more blocks in
# flight, of the same size, so that no result depends on their number.
DEFAULT_BUDGET = BLOCKS_PER_BUDGET * BLOCK_BYTES

_requested: int | None = None
_in_flight = BLOCKS_PER_BUDGET


def n_threads() -> int:
    """Number of threads that process blocks: as set by :func:`use_threads`, else Dask's
    ``num_workers``, else the cores; fewer than the blocks in the budget, as one waits.
    """
    return max(1, min(n_cores(), _in_flight - 1))


def n_cores() -> int:
    """Number of threads for work without blocks."""
    return int(_requested or _dask_num_workers() or n_available_cores())


@contextmanager
def use_threads(
    n: int, *, block_budget: int | None = None, largest_block: int = BLOCK_BYTES
) -> Iterator[None]:
    """Context in which ``n`` threads process blocks, in the whole process, all in flight within
    ``block_budget`` bytes (None: unchanged).
    """
    global _requested, _in_flight
    before = _requested, _in_flight
    _requested = n
    if block_budget is not None:
        _in_flight = max(BLOCKS_PER_BUDGET, block_budget // largest_block)
    try:
        yield
    finally:
        _requested, _in_flight = before


def _dask_num_workers() -> int | None:
    # Do not import Dask (0.1 s) to ask: if it was not imported, the option is not set.
    if "dask" not in sys.modules:
        return None
    import dask

    return dask.config.get("num_workers", None)


def blas_on_one_thread() -> AbstractContextManager[Any]:
    """Context in which BLAS and LAPACK use one thread: they split sums by the number of threads, so
    the last bits would depend on the machine.
    """
    return _controller(len(sys.modules)).limit(limits=1, user_api="blas")


def openmp_on_one_thread() -> AbstractContextManager[Any]:
    """Context, from the call on, in which OpenMP code that this thread calls uses one thread; a
    thread that ends soon need not leave it.
    """
    return _controller(len(sys.modules)).limit(limits=1, user_api="openmp")


@lru_cache(maxsize=1)
def _controller(n_modules: int) -> ThreadpoolController:  # noqa: ARG001
    # Cached, because finding the libraries takes 10 ms; only an import can load another one.
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


# Several per thread, because cells differ in edges. At least this many cells: a task starts in
# the time of some 50.
_BLOCKS_PER_THREAD = 4
_CELLS_PER_BLOCK = 1000

Rows: TypeAlias = tuple[int, int]  # the first cell and the one after the last


@contextmanager
def over_cells(n_cells: int) -> Iterator[Callable[[Callable[[Rows], None]], None]]:
    """Context with a function that calls a task for each block of cells, and waits for all; blocks
    depend on the number of threads, and results must not.
    """
    n = n_cores()
    n_blocks = max(1, min(_BLOCKS_PER_THREAD * n, n_cells // _CELLS_PER_BLOCK))
    if n_blocks > n:  # as many for each thread
        n_blocks -= n_blocks % n
    cuts = [n_cells * i // n_blocks for i in range(n_blocks + 1)]
    blocks = list(pairwise(cuts))
    if n_blocks == 1:  # to wait for another thread takes as long as the work on a few cells
        yield lambda task: task(blocks[0])
        return
    with ThreadPoolExecutor(n, "scatlas-cells") as pool:

        def call(task: Callable[[Rows], None]) -> None:
            for _ in pool.map(task, blocks):
                pass

        yield call
