"""Loops over the global heaps of an HDF5 file (Numba), see :mod:`scatlas.io.files.hdf5_heaps`."""

from __future__ import annotations

import numpy as np

from scatlas.kernels.build.numba_cache import njit


@njit(nogil=True, cache=True)
def find_empty_object(raw: np.ndarray, length_bytes: int) -> tuple[np.int64, np.int64]:
    """Step through all collections in ``raw`` as libhdf5 does: offset of the first with an object
    of length zero, or -1, and the number of bytes checked.
    """
    header = (8 + length_bytes + 7) // 8 * 8  # of a collection, and of an object
    at = np.int64(0)
    while at + header <= raw.size:
        if not _is_collection(raw, at):
            at += 1
            continue
        size = _number(raw, at + 8, length_bytes)
        # Version 1; the rest is no size of a collection.
        if raw[at + 4] != 1 or size < np.uint64(4096) or size > np.uint64(2**40):
            at += 8
            continue
        stop = at + np.int64(size)
        if stop > raw.size:
            return np.int64(-1), at
        spot = at + header
        while spot + header <= stop:
            length = _number(raw, spot + 8, length_bytes)
            if length > size:  # libhdf5 refuses to leave the collection
                break
            need = np.int64(length)
            # An object, or free space, whose length includes its header.
            if raw[spot] or raw[spot + 1]:
                need = header + (need + 7) // 8 * 8
            if need == 0:
                return at, at
            spot += need
        at = stop
    return np.int64(-1), at


@njit(nogil=True, cache=True)
def copy_texts(
    raw: np.ndarray,
    begins: np.ndarray,
    numbers: np.ndarray,
    lengths: np.ndarray,
    out: np.ndarray,
) -> bool:
    """Copy texts out of their collections in ``raw`` to ``out``, each after its length, as in
    Zarr's vlen-utf8 behind the number of texts; False if one is missing, has another length, or
    contains a zero.
    """
    to = np.int64(4)
    begin = np.int64(-1)  # of the current collection
    stop = np.int64(0)
    spot = np.int64(0)  # current object: nearly always the next text follows it
    for i in range(begins.size):
        length = np.int64(lengths[i])
        for k in range(4):
            out[to + k] = (length >> (8 * k)) & 255
        to += 4
        if length == 0:
            continue
        if begins[i] != begin:
            begin = begins[i]
            if begin + 16 > raw.size or not _is_collection(raw, begin) or raw[begin + 4] != 1:
                return False
            size = _number(raw, begin + 8, 8)
            if size > np.uint64(raw.size - begin):
                return False
            stop, spot = begin + np.int64(size), begin + 16
        found, n_bytes = _find_object(raw, spot, stop, numbers[i])
        if found < 0:
            found, n_bytes = _find_object(raw, begin + 16, stop, numbers[i])
        if found < 0 or n_bytes != np.uint64(length):
            return False
        spot = found
        for k in range(length):
            byte = raw[spot + 16 + k]
            if byte == 0:  # libhdf5 ends the text here
                return False
            out[to + k] = byte
        to += length
    return True


@njit(nogil=True, cache=True)
def _find_object(
    raw: np.ndarray, spot: np.int64, stop: np.int64, number: np.uint32
) -> tuple[np.int64, np.uint64]:
    """Offset and length of an object, searched from the object at ``spot`` on; -1 if absent."""
    while spot + 16 <= stop:
        spot_number = np.uint32(raw[spot]) | np.uint32(raw[spot + 1]) << np.uint32(8)
        n_bytes = _number(raw, spot + 8, 8)
        if spot_number == 0 or n_bytes > np.uint64(stop - spot - 16):
            break
        if spot_number == number:
            return spot, n_bytes
        spot += 16 + (np.int64(n_bytes) + 7) // 8 * 8
    return np.int64(-1), np.uint64(0)


@njit(nogil=True, cache=True)
def _is_collection(raw: np.ndarray, at: np.int64) -> bool:
    """Whether the signature ``GCOL`` is at this offset."""
    return raw[at] == 71 and raw[at + 1] == 67 and raw[at + 2] == 79 and raw[at + 3] == 76


@njit(nogil=True, cache=True)
def _number(raw: np.ndarray, at: np.int64, n_bytes: int) -> np.uint64:
    """Unsigned little-endian number."""
    value = np.uint64(0)
    for i in range(n_bytes):
        value |= np.uint64(raw[at + i]) << np.uint64(8 * i)
    return value
