"""LZF, the small compressor that h5py brings: h5py's own decoder holds HDF5's lock.

Format: M. Lehmann, LibLZF (http://oldhome.schmorp.de/marc/liblzf.html). A control byte below 32
is followed by that many bytes and one, verbatim; any other holds the length, less two, in its
upper three bits (7: plus the next byte) and the upper part of the distance, less one, in the rest.
"""

from __future__ import annotations

import numpy as np

from scatlas.kernels.build.numba_cache import njit


def decompress(raw: np.ndarray, n_bytes: int) -> np.ndarray | None:
    """Return the ``n_bytes`` bytes that ``raw`` (uint8) encodes; None when it is damaged."""
    # Three bytes of input give at most 264 of output.
    if n_bytes > 88 * raw.size + 264:
        return None
    out = np.empty(n_bytes, np.uint8)
    return out if _decompress(raw, out) else None


@njit(nogil=True, cache=True)
def _decompress(raw, out):
    read = 0
    done = 0
    while read < raw.size:
        control = np.int64(raw[read])
        read += 1
        if control < 32:
            n = control + 1
            if read + n > raw.size or done + n > out.size:
                return False
            for i in range(n):
                out[done + i] = raw[read + i]
            read += n
            done += n
            continue
        n = control >> 5
        if n == 7:
            if read >= raw.size:
                return False
            n += np.int64(raw[read])
            read += 1
        if read >= raw.size:
            return False
        start = done - ((control & 31) << 8) - np.int64(raw[read]) - 1
        read += 1
        n += 2
        if start < 0 or done + n > out.size:
            return False
        # Byte by byte: source and target may overlap, which repeats a pattern.
        for i in range(n):
            out[done + i] = out[start + i]
        done += n
    return done == out.size
