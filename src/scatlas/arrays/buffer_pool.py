"""Pool of memory for blocks, which have similar sizes within a pass: NumPy returns freed arrays to
the operating system, which clears the pages of the next, a tenth of the time of a pass.
"""

from __future__ import annotations

import threading
import weakref

import numpy as np

# The C library reuses smaller arrays itself.
_MIN_BYTES = 2**18
# Most free bytes in the pool; memory beyond it returns to the system.
_MAX_FREE_BYTES = 128_000_000
_lock = threading.Lock()
_free: list[np.ndarray] = []


def empty(n_values: int, dtype: np.dtype | type) -> np.ndarray:
    """``numpy.empty``, whose memory returns to the pool when no view of the array is left."""
    dtype = np.dtype(dtype)
    n_bytes = n_values * dtype.itemsize
    if n_bytes < _MIN_BYTES:
        return np.empty(n_values, dtype)
    memory = _acquire(n_bytes)
    # The memoryview ends NumPy's chain of bases, so that views of the array keep the array alive.
    array = np.frombuffer(memoryview(memory), dtype, n_values)  # type: ignore[arg-type]  # NumPy 1's
    # Append without the lock: the garbage collector may call this at any point.
    weakref.finalize(array, _free.append, memory).atexit = False
    return array


def _acquire(n_bytes: int) -> np.ndarray:
    with _lock:
        while len(_free) > 1 and sum(memory.size for memory in _free) > _MAX_FREE_BYTES:
            del _free[0]
        fitting = [i for i, memory in enumerate(_free) if memory.size >= n_bytes]
        if fitting:
            return _free.pop(min(fitting, key=lambda i: _free[i].size))
    # Rounded up to 1 MB, so that blocks of nearly equal size can share memory.
    return np.empty(-(-n_bytes // 2**20) * 2**20, np.uint8)
