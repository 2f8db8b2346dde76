"""Global heaps of an HDF5 file, walked through as libhdf5 does: see scatlas.io.files.hdf5_heaps."""

from __future__ import annotations

import numpy as np

from scatlas.kernels.build.numba_cache import njit


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
def gather(raw, begins, numbers, lengths, out):
    """Copy texts out of their collections, each after its length, as Zarr's vlen-utf8 has them.

    Parameters
    ----------
    raw
        uint8: collections.
    begins, numbers, lengths
        int64, uint32, uint32 [texts]: where the text's collection begins in ``raw``, the text's
        number there, its bytes.
    out
        uint8; filled from byte 4 on, which is where the number of texts ends.

    Returns
    -------
    False where a text is not where it should be, is not of its length, or holds a zero.
    """
    to = 4
    begin = np.int64(-1)  # of the collection in hand
    stop = np.int64(0)
    spot = np.int64(0)  # of the object in hand: texts follow each other there, nearly always
    for i in range(begins.size):
        length = np.int64(lengths[i])
        for k in range(4):
            out[to + k] = (length >> (8 * k)) & 255
        to += 4
        if length == 0:
            continue
        start = begins[i]
        fresh = start != begin
        if fresh:
            if start + 16 > raw.size or not (
                raw[start] == 71
                and raw[start + 1] == 67
                and raw[start + 2] == 79
                and raw[start + 3] == 76
                and raw[start + 4] == 1
            ):
                return False
            size = _number(raw, start + 8, 8)
            if size > np.uint64(raw.size - start):
                return False
            begin, stop, spot = start, start + np.int64(size), start + 16
        found = False
        while not found:
            while spot + 16 <= stop:
                number = np.uint32(raw[spot]) | np.uint32(raw[spot + 1]) << np.uint32(8)
                need = _number(raw, spot + 8, 8)
                if number == 0 or need > np.uint64(stop - spot - 16):
                    break
                if number == numbers[i]:
                    found = need == np.uint64(length)
                    break
                spot += 16 + (np.int64(need) + 7) // 8 * 8
            if not found:
                if fresh:
                    return False
                fresh, spot = True, begin + 16
        for k in range(length):
            byte = raw[spot + 16 + k]
            if byte == 0:  # where libhdf5 takes it to end
                return False
            out[to + k] = byte
        to += length
    return True


@njit(nogil=True, cache=True)
def _number(raw, at, n_bytes):
    value = np.uint64(0)
    for i in range(n_bytes):
        value |= np.uint64(raw[at + i]) << np.uint64(8 * i)
    return value
