"""How many threads work on blocks, and BLAS kept to one of them."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

# Blocks in flight at once. A block takes an eighth of the block budget (see scatlas.io.lazy),
# so more than this would break the budget whatever the number of cores.
MAX_BLOCKS_IN_FLIGHT = 8

_asked: int | None = None


def n_threads() -> int:
    """Threads that work on blocks.

    Those of :func:`use_threads`, else Dask's ``num_workers`` setting, else the cores we may use.
    """
    cores = _asked or _of_dask() or len(os.sched_getaffinity(0))
    return max(1, min(int(cores), MAX_BLOCKS_IN_FLIGHT - 1))


@contextmanager
def use_threads(n: int) -> Iterator[None]:
    """Context in which ``n`` threads work on blocks, for the whole process."""
    global _asked
    before, _asked = _asked, n
    try:
        yield
    finally:
        _asked = before


def _of_dask() -> int | None:
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
    from threadpoolctl import threadpool_limits

    return threadpool_limits(limits=1, user_api="blas")
