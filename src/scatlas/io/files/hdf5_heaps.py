"""Text in an HDF5 file, looked over before libhdf5 reads it.

HDF5 keeps text in collections of objects, its global heaps. libhdf5 (2.0.0 and before) steps
through a collection by the length of each object and never ends, under the interpreter lock, where
a length is zero, as where zeros were written over it (``H5HG__cache_heap_deserialize``); and it
sets aside as much memory as a reference says that its text has, before it looks. Format:
https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html (III.E, global heap).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np

from scatlas.io.files.hdf5_heap_loops import walk

if TYPE_CHECKING:
    from collections.abc import Iterator

_PIECE = 2**24
# A reference to a text: its length (4 bytes), its heap (8), its number there (4).
REFERENCE = np.dtype([("length", "<u4"), ("heap", "<u8"), ("number", "<u4")])


def damaged_text(path: str, file: h5py.File) -> int | None:
    """Find text that libhdf5 would never end to read, or that is longer than the file.

    Only metadata and text are read, no numbers: what lies between the values of the data sets.

    Returns
    -------
    Offset in the file of the first damage, or None.
    """
    n_bytes = Path(path).stat().st_size
    address_bytes, length_bytes = file.id.get_create_plist().get_sizes()
    extents, references = _extents(file)
    with Path(path).open("rb", buffering=0) as raw:
        for first, stop in _gaps(extents, n_bytes):
            at = first
            while at < stop:
                piece = np.frombuffer(os.pread(raw.fileno(), min(_PIECE, stop - at), at), np.uint8)
                bad, done = walk(piece, length_bytes)
                if bad >= 0:
                    return at + bad
                if not piece.size or at + piece.size >= stop:
                    break
                at += done or piece.size
        for first, stop in references if address_bytes == 8 else ():
            for at in range(first, stop, _PIECE):  # whole references: 16 divides the piece
                stored = os.pread(raw.fileno(), min(_PIECE, stop - at) // 16 * 16, at)
                if (np.frombuffer(stored, REFERENCE)["length"] > n_bytes).any():
                    return at
    return None


def _extents(file: h5py.File) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Byte ranges of the values of all data sets; those of them that refer to text as they lie."""
    extents: list[tuple[int, int]] = []
    references: list[tuple[int, int]] = []

    def visit(name: bytes) -> None:
        node = h5py.h5o.open(file.id, name)
        if not isinstance(node, h5py.h5d.DatasetID):
            return
        properties, found = node.get_create_plist(), []
        if properties.get_layout() == h5py.h5d.CHUNKED:
            node.chunk_iter(lambda c: found.append((c.byte_offset, c.byte_offset + c.size)))
        elif node.get_offset() is not None:
            found.append((node.get_offset(), node.get_offset() + node.get_storage_size()))
        extents.extend(found)
        kind = node.get_type()
        if isinstance(kind, h5py.h5t.TypeStringID) and kind.is_variable_str():
            references.extend([] if properties.get_nfilters() else found)

    h5py.h5o.visit(file.id, visit)
    return sorted(extents), references


def _gaps(extents: list[tuple[int, int]], n_bytes: int) -> Iterator[tuple[int, int]]:
    at = 0
    for first, stop in [*extents, (n_bytes, n_bytes)]:
        if first > at:
            yield at, min(first, n_bytes)
        at = max(at, stop)
