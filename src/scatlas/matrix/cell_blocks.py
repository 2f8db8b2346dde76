"""Tasks for blocks of cells, over threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from scatlas.compute.threads import n_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Several per thread, because cells differ in edges. At least this many cells: a task starts in
# the time of some 50.
_BLOCKS_PER_THREAD = 4
_CELLS_PER_BLOCK = 1000

Rows: TypeAlias = tuple[int, int]  # the first cell and the one after the last


@contextmanager
def over_cells(n_cells: int) -> Iterator[Callable[[Callable[[Rows], None]], None]]:
    """Context with a function that calls a task for each block of cells, and waits for all.

    Blocks depend on the number of threads: what a task writes to its cells must not depend on them.
    """
    n_threads = n_cores()
    n_blocks = max(1, min(_BLOCKS_PER_THREAD * n_threads, n_cells // _CELLS_PER_BLOCK))
    if n_blocks > n_threads:  # as many for each thread
        n_blocks -= n_blocks % n_threads
    cuts = [n_cells * i // n_blocks for i in range(n_blocks + 1)]
    blocks = list(pairwise(cuts))
    if n_blocks == 1:  # to wait for another thread takes as long as the work on a few cells
        yield lambda task: task(blocks[0])
        return
    with ThreadPoolExecutor(n_threads, "scatlas-cells") as pool:

        def call(task: Callable[[Rows], None]) -> None:
            for _ in pool.map(task, blocks):
                pass

        yield call
