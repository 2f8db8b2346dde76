"""Arrays that begin at a cache line."""

from __future__ import annotations

import math

import numpy as np

_LINE = 64


def zeros(shape: tuple[int, ...]) -> np.ndarray:
    """float64 zeros whose first number begins a cache line.

    NumPy's own arrays begin 16 bytes into one, so that half of all groups of four numbers lie on
    two lines: kernels that read or write such groups in random order are a third slower on them.
    """
    size = math.prod(shape)
    raw = np.zeros(size + _LINE // 8)
    skip = -raw.ctypes.data % _LINE // 8
    return raw[skip : skip + size].reshape(shape)
