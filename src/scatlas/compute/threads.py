"""How many threads work on blocks, and BLAS kept to one of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import dask

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

# Blocks in flight at once. A block takes an eighth of the block budget (see scatlas.io.lazy),
# so more than this would break the budget whatever the number of cores.
MAX_BLOCKS_IN_FLIGHT = 8


def n_threads() -> int:
    """Threads that work on blocks: Dask's ``num_workers`` setting, else the cores we may use."""
    configured = dask.config.get("num_workers", None)
    cores = configured or len(os.sched_getaffinity(0))
    return max(1, min(int(cores), MAX_BLOCKS_IN_FLIGHT - 1))


def blas_on_one_thread() -> AbstractContextManager:
    """Context in which BLAS and LAPACK use one thread.

    Their sums are split by the number of threads, so that the last bits of a product or an
    eigenvector would depend on the machine. Blocks run in parallel instead.
    """
    from threadpoolctl import threadpool_limits

    return threadpool_limits(limits=1, user_api="blas")
