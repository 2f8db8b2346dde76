"""Text of variable length in an HDF5 file, read without libhdf5.

libhdf5 looks each text up on its own, a quarter of a microsecond under two locks. Here a range of
them is read and gathered at once; whatever looks unusual is left to libhdf5.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import h5py
import numpy as np

from scatlas.io.chunks import chunk_reader
from scatlas.io.chunks.chunked_array import Hdf5Chunks
from scatlas.io.files.chunk_locations import hdf5_chunked_array
from scatlas.io.files.hdf5_heap_loops import copy_texts
from scatlas.io.files.hdf5_heaps import TEXT_REFERENCE
from scatlas.io.files.read_errors import UnsupportedLayoutError

if TYPE_CHECKING:
    from scatlas.io.chunks.chunked_array import ChunkedArray

# What a collection takes, unless a text is longer (H5HGprivate.h: at least 4096).
_COLLECTION = 2**16
# Bytes of the collections that are read at once: of a range of texts hardly more than a few MB.
_MOST = 2**26


def references_of(dataset: h5py.Dataset) -> ChunkedArray | None:
    """Where the references of a data set to its texts lie; None where only libhdf5 can tell."""
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
    places = found.locations
    absent = isinstance(places, Hdf5Chunks) and bool((places.offsets < 0).any())
    return None if absent else found


def read_strings(references: ChunkedArray, path: str, lo: int, hi: int) -> np.ndarray | None:
    """Texts ``lo`` to ``hi``, ``object`` array of ``str``; None where libhdf5 should read them.

    Raises
    ------
    UnicodeDecodeError
        A text is not UTF-8.
    Exception
        Whatever the decoders of chunks raise.
    """
    from numcodecs import VLenUTF8

    found = chunk_reader.read_values(references, lo, hi, dtype=TEXT_REFERENCE)
    lengths, heaps = found["length"].copy(), found["heap"].copy()
    n_bytes = int(lengths.sum(dtype=np.uint64))
    # Texts follow each other in their collections: few runs, and fewer collections.
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
    return VLenUTF8().decode(out)


def _collections(path: str, places: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
    """Heap collections of a file, one after the other, and where each begins; None: too much."""
    begins = np.zeros(places.size, np.int64)
    parts = [b""]
    n_bytes = 0
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for i, place in enumerate(places.tolist()):
            begins[i] = n_bytes
            if place in (0, 2**64 - 1):  # of texts without a byte
                continue
            part = os.pread(fd, _COLLECTION, place) if place < 2**63 else b""
            size = int.from_bytes(part[8:16], "little")
            if not 16 <= size <= _MOST - n_bytes:
                return None, begins
            if size > len(part):
                part += os.pread(fd, size - len(part), place + len(part))
            parts.append(part[:size])
            n_bytes += len(parts[-1])
    finally:
        os.close(fd)
    return np.frombuffer(b"".join(parts), np.uint8), begins
