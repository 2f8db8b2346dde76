"""How many threads work on blocks, and BLAS kept to one of them."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from threadpoolctl import ThreadpoolController

# A block takes an eighth of the block budget, and no more than this (see scatlas._util.byte_sizes):
# a larger budget is for more blocks in flight at once, on machines of more cores, not for larger
# ones.
BLOCK_BYTES = 32_000_000
# A GPU is busy with larger blocks, and enough of them must be in the making at once. They are
# counted at 8 bytes a value too, but compact counts take 3.
GPU_BLOCK_BYTES = 128_000_000
GPU_BUDGET = 16 * GPU_BLOCK_BYTES
BLOCKS_PER_BUDGET = 8

_asked: int | None = None
_in_flight = BLOCKS_PER_BUDGET


def n_threads() -> int:
    """Threads that work on blocks.

    Those of :func:`use_threads`, else Dask's ``num_workers`` setting, else the cores we may use;
    but never more than the blocks that the budget has room for, less the one that waits.
    """
    return max(1, min(n_cores(), _in_flight - 1))


def n_cores() -> int:
    """Threads that may work at once, where no blocks are held."""
    return int(_asked or _dask_num_workers() or len(os.sched_getaffinity(0)))


@contextmanager
def use_threads(
    n: int, *, block_budget: int | None = None, largest_block: int = BLOCK_BYTES
) -> Iterator[None]:
    """Context in which ``n`` threads work on blocks, for the whole process.

    Parameters
    ----------
    n
        Threads.
    block_budget
        Bytes that the blocks in flight may take; unchanged when left out.
    largest_block
        Bytes that a block takes at most.
    """
    global _asked, _in_flight
    before = _asked, _in_flight
    _asked = n
    if block_budget is not None:
        _in_flight = max(BLOCKS_PER_BUDGET, block_budget // largest_block)
    try:
        yield
    finally:
        _asked, _in_flight = before


def _dask_num_workers() -> int | None:
    # Not imported for this (0.1 s): where nobody has, nobody has set it.
    if "dask" not in sys.modules:
        return None
    import dask

    return dask.config.get("num_workers", None)


def blas_on_one_thread() -> AbstractContextManager:
    """Context in which BLAS and LAPACK use one thread.

    Their sums are split by the number of threads, so that the last bits of a product or an
    eigenvector would depend on the machine. Blocks run in parallel instead.
    """
    return _controller(len(sys.modules)).limit(limits=1, user_api="blas")


@lru_cache(maxsize=1)
def _controller(n_modules: int) -> ThreadpoolController:  # noqa: ARG001
    # Looking for the libraries takes 10 ms, and only an import loads another one.
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
