"""Memory for blocks that is used again: fresh memory costs a page fault for every 4 kB.

Blocks of a pass have much the same size, and the operating system takes back and clears what NumPy
frees of that size, which costs a tenth of a pass. Here a block's memory waits for the next block.
"""

from __future__ import annotations

import threading
import weakref

import numpy as np

# Smaller arrays come from the allocator's own lists, without page faults.
_SMALLEST = 2**18
# Kept for reuse at most, in total: beyond that memory goes back to the system.
_KEPT_BYTES = 128_000_000
_lock = threading.Lock()
_free: list[np.ndarray] = []


def empty(n_values: int, dtype: np.dtype | type) -> np.ndarray:
    """Array ``[n_values]`` of arbitrary content, as ``numpy.empty``.

    Its memory is used again when the array and all views of it are gone; nothing needs to be
    returned.
    """
    dtype = np.dtype(dtype)
    n_bytes = n_values * dtype.itemsize
    if n_bytes < _SMALLEST:
        return np.empty(n_values, dtype)
    memory = _take(n_bytes)
    # Behind a memoryview, which ends NumPy's chain of bases: views of the array hold the array.
    array = np.frombuffer(memoryview(memory), dtype, n_values)
    # A plain append, without the lock: the garbage collector may call it at any point.
    weakref.finalize(array, _free.append, memory).atexit = False
    return array


def _take(n_bytes: int) -> np.ndarray:
    with _lock:
        while len(_free) > 1 and sum(memory.size for memory in _free) > _KEPT_BYTES:
            del _free[0]
        fitting = [i for i, memory in enumerate(_free) if memory.size >= n_bytes]
        if fitting:
            return _free.pop(min(fitting, key=lambda i: _free[i].size))
    # A little larger than asked, so that blocks of nearly equal size fit each other's memory.
    return np.empty(-(-n_bytes // 2**20) * 2**20, np.uint8)
