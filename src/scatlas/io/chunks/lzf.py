"""LZF, the small compressor of h5py, decoded without the lock that h5py's decoder holds.

h5py reads such a file at half of this speed with two threads
(`bench/results/readers-2026-11-22.txt`). Format: M. Lehmann, LibLZF
(http://oldhome.schmorp.de/marc/liblzf.html).
"""

from __future__ import annotations

import numpy as np

from scatlas.kernels.build.numba_cache import njit


def decompress(raw: np.ndarray, n_bytes: int) -> np.ndarray | None:
    """Decode ``raw`` (uint8) to ``n_bytes`` bytes; None if it is damaged."""
    # Three bytes of input give at most 264 of output.
    if n_bytes > 88 * raw.size + 264:
        return None
    out = np.empty(n_bytes, np.uint8)
    return out if _decompress(raw, out) else None


@njit(nogil=True, cache=True)
def _decompress(raw: np.ndarray, out: np.ndarray) -> bool:
    n_read = np.int64(0)
    n_written = np.int64(0)
    while n_read < raw.size:
        control = np.int64(raw[n_read])
        n_read += 1
        if control < 32:
            n = control + 1
            if n_read + n > raw.size or n_written + n > out.size:
                return False
            for i in range(n):
                out[n_written + i] = raw[n_read + i]
            n_read += n
            n_written += n
            continue
        n = control >> 5
        if n == 7:
            if n_read >= raw.size:
                return False
            n += np.int64(raw[n_read])
            n_read += 1
        if n_read >= raw.size:
            return False
        start = n_written - ((control & 31) << 8) - np.int64(raw[n_read]) - 1
        n_read += 1
        n += 2
        if start < 0 or n_written + n > out.size:
            return False
        # Byte by byte: source and target may overlap, which repeats a pattern.
        for i in range(n):
            out[n_written + i] = out[start + i]
        n_written += n
    return n_written == out.size
