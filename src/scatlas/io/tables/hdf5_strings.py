"""Text of variable length in an HDF5 file, read a range at a time without libhdf5, in less than
half of h5py's time (2.2 times as fast for 500,000 cell names).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import h5py
import numpy as np

from scatlas.io.chunks import chunk_reader
from scatlas.io.chunks.chunked_array import Hdf5Chunks
from scatlas.io.chunks.encoded_text import EncodedText
from scatlas.io.files.chunk_locations import TEXT_REFERENCE, hdf5_chunked_array
from scatlas.io.files.hdf5_probe import heap_number, is_collection
from scatlas.io.files.read_errors import UnsupportedLayoutError
from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from scatlas.io.chunks.chunked_array import ChunkedArray

# Bytes to read first: most collections are not larger (H5HGprivate.h: at least 4096).
_COLLECTION = 2**16
# Maximum bytes of the collections read at once; a range of texts needs a few MB.
_MOST = 2**26


def references_of(dataset: h5py.Dataset) -> ChunkedArray | None:
    """Chunks of a dataset's references to its texts; None if only libhdf5 can read them."""
    kind = dataset.id.get_type()
    usual = (
        isinstance(kind, h5py.h5t.TypeStringID)
        and kind.is_variable_str()
        and kind.get_cset() == h5py.h5t.CSET_UTF8
        and dataset.file.id.get_create_plist().get_sizes() == (8, 8)
        and dataset.file.driver == "sec2"
    )
    if not usual:
        return None
    try:
        found = hdf5_chunked_array(dataset.file.filename, dataset.name, dataset, TEXT_REFERENCE)
    except UnsupportedLayoutError:
        return None
    offsets = found.locations
    absent = isinstance(offsets, Hdf5Chunks) and bool((offsets.offsets < 0).any())
    return None if absent else found


def read_strings(references: ChunkedArray, path: str, lo: int, hi: int) -> EncodedText | None:
    """Texts ``lo`` to ``hi``; None if libhdf5 should read them, ValueError if one is not UTF-8."""
    found = chunk_reader.read_values(references, lo, hi, dtype=TEXT_REFERENCE)
    lengths, heaps = found["length"].copy(), found["heap"].copy()
    n_bytes = int(lengths.sum(dtype=np.uint64))
    # Neighbouring texts are in the same collection: few runs, and fewer collections.
    starts = np.flatnonzero(np.diff(heaps, prepend=~heaps[:1]))
    used, which = np.unique(heaps[starts], return_inverse=True)
    raw, begins = _collections(path, used)
    if raw is None or n_bytes > raw.size:
        return None
    begins = np.repeat(begins[which], np.diff(starts, append=heaps.size))
    out = np.empty(4 + 4 * found.size + n_bytes, np.uint8)
    out[:4] = np.frombuffer(np.array(found.size, "<u4"), np.uint8)
    if not copy_texts(raw, begins, found["number"].copy(), lengths, out):
        return None
    return EncodedText.of_chunk(out)


def _collections(path: str, offsets: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
    """Heap collections of a file in one array, and where each begins; None if too large."""
    begins = np.zeros(offsets.size, np.int64)
    parts = [b""]
    n_bytes = 0
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for i, offset in enumerate(offsets.tolist()):
            begins[i] = n_bytes
            if offset in (0, 2**64 - 1):  # of empty texts
                continue
            part = os.pread(fd, _COLLECTION, offset) if offset < 2**63 else b""
            size = int.from_bytes(part[8:16], "little")
            if not 16 <= size <= _MOST - n_bytes:
                return None, begins
            if size > len(part):
                part += os.pread(fd, size - len(part), offset + len(part))
            parts.append(part[:size])
            n_bytes += len(parts[-1])
    finally:
        os.close(fd)
    return np.frombuffer(b"".join(parts), np.uint8), begins


@njit(nogil=True, cache=True)
def copy_texts(
    raw: np.ndarray, begins: np.ndarray, numbers: np.ndarray, lengths: np.ndarray, out: np.ndarray
) -> bool:
    """Copy texts to ``out``, each after its length, as Zarr's vlen-utf8 behind the number of texts;
    False if one is missing, has another length, or contains a zero.
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
            if begin + 16 > raw.size or not is_collection(raw, begin) or raw[begin + 4] != 1:
                return False
            size = heap_number(raw, begin + 8, 8)
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
        n_bytes = heap_number(raw, spot + 8, 8)
        if spot_number == 0 or n_bytes > np.uint64(stop - spot - 16):
            break
        if spot_number == number:
            return spot, n_bytes
        spot += 16 + (np.int64(n_bytes) + 7) // 8 * 8
    return np.int64(-1), np.uint64(0)
