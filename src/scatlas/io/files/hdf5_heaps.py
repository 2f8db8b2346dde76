"""Check of the text in an HDF5 file before libhdf5 reads it.

HDF5 stores text in collections of objects, its global heaps. libhdf5 (2.0.0 and before) steps
through a collection by the length of each object. If a length is zero, for example overwritten with
zeros, it never ends, under the interpreter lock (``H5HG__cache_heap_deserialize``). It also
allocates the memory that a reference requests for its text, before it looks. Format:
https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html (III.E, global heap).
No library offers this check; without it one damaged byte can stop a job forever.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np

from scatlas.io.files.hdf5_heap_loops import find_empty_object

if TYPE_CHECKING:
    from collections.abc import Iterator

# Bytes to read at once.
_READ_BYTES = 2**24
# A reference to a text: its bytes, offset of its collection in the file, its number there.
TEXT_REFERENCE = np.dtype([("length", "<u4"), ("heap", "<u8"), ("number", "<u4")])


def find_damaged_text(path: str, file: h5py.File) -> int | None:
    """Offset of the first text that would hang libhdf5, or that is longer than the file; None
    without one. Reads no numbers.
    """
    n_bytes = Path(path).stat().st_size
    address_bytes, length_bytes = file.id.get_create_plist().get_sizes()
    extents, references = _extents(file)
    with Path(path).open("rb", buffering=0) as raw:
        for first, stop in _gaps(extents, n_bytes):
            at = first
            while at < stop:
                stored = os.pread(raw.fileno(), min(_READ_BYTES, stop - at), at)
                piece = np.frombuffer(stored, np.uint8)
                damage, n_checked = find_empty_object(piece, length_bytes)
                if damage >= 0:
                    return int(at + damage)
                if not piece.size or at + piece.size >= stop:
                    break
                at += int(n_checked) or piece.size
        for first, stop in references if address_bytes == 8 else ():
            for at in range(first, stop, _READ_BYTES):  # a multiple of 16 bytes per reference
                stored = os.pread(raw.fileno(), min(_READ_BYTES, stop - at) // 16 * 16, at)
                if (np.frombuffer(stored, TEXT_REFERENCE)["length"] > n_bytes).any():
                    return at
    return None


def _extents(file: h5py.File) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Byte ranges of the values of all datasets, and of those that are unfiltered references."""
    extents: list[tuple[int, int]] = []
    references: list[tuple[int, int]] = []

    def visit(name: bytes) -> None:
        node = h5py.h5o.open(file.id, name)
        if not isinstance(node, h5py.h5d.DatasetID):
            return
        properties = node.get_create_plist()
        ranges: list[tuple[int, int]] = []
        if properties.get_layout() == h5py.h5d.CHUNKED:
            node.chunk_iter(lambda c: ranges.append((c.byte_offset, c.byte_offset + c.size)))
        elif node.get_offset() is not None:
            ranges.append((node.get_offset(), node.get_offset() + node.get_storage_size()))
        extents.extend(ranges)
        kind = node.get_type()
        if isinstance(kind, h5py.h5t.TypeStringID) and kind.is_variable_str():
            references.extend([] if properties.get_nfilters() else ranges)

    h5py.h5o.visit(file.id, visit)
    return sorted(extents), references


def _gaps(extents: list[tuple[int, int]], n_bytes: int) -> Iterator[tuple[int, int]]:
    at = 0
    for first, stop in [*extents, (n_bytes, n_bytes)]:
        if first > at:
            yield at, min(first, n_bytes)
        at = max(at, stop)
