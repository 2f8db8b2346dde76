"""Global heaps of an HDF5 file, walked through as libhdf5 does: see scatlas.io.heaps."""

from __future__ import annotations

import numpy as np

from scatlas.kernels.cached import njit


@njit(nogil=True, cache=True)
def walk(raw, length_bytes):
    """Step through all collections in ``raw``, as libhdf5 does.

    Returns
    -------
    Offset of the first collection with an object of no length, or -1; bytes that are done.
    """
    header = (8 + length_bytes + 7) // 8 * 8  # of a collection, and of an object
    at = 0
    while at + header <= raw.size:
        # "GCOL", version 1, three bytes of zero
        if not (raw[at] == 71 and raw[at + 1] == 67 and raw[at + 2] == 79 and raw[at + 3] == 76):
            at += 1
            continue
        size = _number(raw, at + 8, length_bytes)
        if raw[at + 4] != 1 or size < np.uint64(4096) or size > np.uint64(2**40):
            at += 8
            continue
        stop = at + np.int64(size)
        if stop > raw.size:
            return -1, at
        spot = at + header
        while spot + header <= stop:
            length = _number(raw, spot + 8, length_bytes)
            if length > size:  # libhdf5 does refuse to leave the collection
                break
            need = np.int64(length)
            if raw[spot] or raw[spot + 1]:  # an object; otherwise free space, which counts itself
                need = header + (need + 7) // 8 * 8
            if need == 0:
                return at, at
            spot += need
        at = stop
    return -1, at


@njit(nogil=True, cache=True)
def _number(raw, at, n_bytes):
    value = np.uint64(0)
    for i in range(n_bytes):
        value |= np.uint64(raw[at + i]) << np.uint64(8 * i)
    return value
