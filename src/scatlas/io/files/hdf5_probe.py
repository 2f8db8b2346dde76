"""Check of an HDF5 file's structure and text, in a child process, before libhdf5 reads it.

libhdf5 trusts the structure of a file: damage in a B-tree or a heap makes it read outside its
memory or loop forever, and kills the process; of a crashed child an `InputError` names the file.
Through text in global heaps libhdf5 (2.0.0 and before) steps by the length of each object: one of
zero never ends, under the interpreter lock (``H5HG__cache_heap_deserialize``). It also allocates
the memory that a reference requests before it reads the text. No library offers this check. Format:
https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html (III.E, global heap).
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import resource
import select
import signal
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np
from numba.core.compiler_lock import global_compiler_lock

from scatlas._util.operating_system import sleeping_since
from scatlas.errors import InputError, TooLargeError
from scatlas.io.files.chunk_locations import TEXT_REFERENCE
from scatlas.io.files.read_errors import MORE_MEMORY, REMEDY
from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

# Limit of processor time, so that a slow disk never counts as damage. An intact file takes
# milliseconds, one of a million chunks two seconds.
_SECONDS, _SECONDS_PER_BYTE = 3, 1e-9
# Seconds that a child may sleep, in case it waits for a lock.
_MAX_SLEEP = 10
# Bytes to read at once.
_READ_BYTES = 2**24


def probe_structure(path: str) -> bool:
    """Read the structure in a child process, whose crash is an error; True if text is intact."""
    size = Path(path).stat().st_size
    # Compile in the parent, for read-only bytes as in `find_damaged_text`, so that compiling does
    # not count towards the child's limit.
    find_empty_object(np.frombuffer(bytes(1), np.uint8), 8)
    # Hold libhdf5's lock and that of Numba's compiler during the fork: a lock that another thread
    # held would stay locked in the child forever.
    with h5py._objects.phil, global_compiler_lock, warnings.catch_warnings():
        # Python 3.12 warns of locks that other threads hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            _check_and_exit(path, _SECONDS + int(size * _SECONDS_PER_BYTE))
        os.close(write_end)
    try:
        status = _wait(child, read_end)
    finally:
        os.close(read_end)
    if status is None:
        logger.warning(
            "%s: the check of its structure waited for %d s and was given up: another thread held "
            "a lock that it needed",
            *(path, _MAX_SLEEP),
        )
        return False
    if os.WIFSIGNALED(status):
        killer = signal.Signals(os.WTERMSIG(status))
        if killer == signal.SIGKILL:  # by Linux, which kills where memory ends
            raise TooLargeError(f"{path}: the check of its structure {MORE_MEMORY}")
        failure = "loops forever in" if killer == signal.SIGXCPU else f"crashes ({killer.name}) on"
        msg = f"{path}: libhdf5 {failure} the structure of the file, which is damaged: {REMEDY}"
        raise InputError(msg)
    return os.waitstatus_to_exitcode(status) == 0


def _wait(child: int, read_end: int) -> int | None:
    """Exit status of a process, the only holder of the pipe's other end; None after killing it, if
    it neither computes nor waits for a disk.
    """
    poll = select.poll()
    poll.register(read_end)
    cpu_time, since = None, time.monotonic()
    while True:
        poll.poll(100)  # ms
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        sleeps, cpu_time = sleeping_since(child, cpu_time)
        if not sleeps:
            since = time.monotonic()
        elif time.monotonic() - since > _MAX_SLEEP:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None


def _check_and_exit(path: str, seconds: int) -> None:
    is_intact = False
    try:
        gc.disable()  # a collection would touch, and so copy, all memory of the parent
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        limit = int(used) + 1 + seconds
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        is_intact = _check(path)
    finally:
        os._exit(0 if is_intact else 1)  # the parent finds the errors that libhdf5 reports


def _check(path: str) -> bool:
    with h5py.File(path, "r") as file:
        # Finds all chunks, too. Before the attributes, which may be damaged text.
        if find_damaged_text(path, file) is not None:
            return False
        _read_attributes("/", file)
        file.visititems(_read_attributes)
    return True


def _read_attributes(name: str, node: h5py.Group | h5py.Dataset) -> None:  # noqa: ARG001
    with suppress(Exception):
        for key in node.attrs:
            node.attrs[key]


def find_damaged_text(path: str, file: h5py.File) -> int | None:
    """Offset of the first text that would hang libhdf5 or exceeds the file; reads no numbers."""
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


@njit(nogil=True, cache=True)
def find_empty_object(raw: np.ndarray, length_bytes: int) -> tuple[np.int64, np.int64]:
    """Offset of the first collection with an object of length zero, or -1, and bytes checked."""
    header = (8 + length_bytes + 7) // 8 * 8  # of a collection, and of an object
    at = np.int64(0)
    while at + header <= raw.size:
        if not is_collection(raw, at):
            at += 1
            continue
        size = heap_number(raw, at + 8, length_bytes)
        # Version 1; the rest is no size of a collection.
        if raw[at + 4] != 1 or size < np.uint64(4096) or size > np.uint64(2**40):
            at += 8
            continue
        stop = at + np.int64(size)
        if stop > raw.size:
            return np.int64(-1), at
        spot = at + header
        while spot + header <= stop:
            length = heap_number(raw, spot + 8, length_bytes)
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
def is_collection(raw: np.ndarray, at: np.int64) -> bool:
    """Whether the signature ``GCOL`` is at this offset."""
    return raw[at] == 71 and raw[at + 1] == 67 and raw[at + 2] == 79 and raw[at + 3] == 76


@njit(nogil=True, cache=True)
def heap_number(raw: np.ndarray, at: np.int64, n_bytes: int) -> np.uint64:
    """Unsigned little-endian number."""
    value = np.uint64(0)
    for i in range(n_bytes):
        value |= np.uint64(raw[at + i]) << np.uint64(8 * i)
    return value
