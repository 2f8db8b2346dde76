"""How the C library keeps memory that NumPy has freed."""

from __future__ import annotations

import ctypes
import logging

logger = logging.getLogger(__name__)

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
# The largest that glibc takes; a block of the default budget has arrays of 4 to 16 MB.
_LARGEST = 2**25
_KEPT = 2**28


def reuse_memory() -> None:
    """Let arrays of a block's size use again what arrays before them have freed.

    By default glibc maps each large array anew and gives it back when it is freed: the system
    then clears every page of the next one, which costs as much as the work on it. A threads' own
    heap each would keep more than all of them need; they share one. For processes that are ours,
    such as a job's: it changes the whole process, so it belongs before threads are started.

    Does nothing, and says so in the log, where the C library is not glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        logger.debug("the C library has no mallopt: freed memory goes back to the system")
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_THRESHOLD, _LARGEST)
    mallopt(_M_TRIM_THRESHOLD, _KEPT)
