"""A first look at an HDF5 file by a child process.

libhdf5 trusts the structure of a file: damage in a B-tree or a heap makes it read outside its
memory, or go in circles, and takes the whole process with it. Here a child walks through all
structure that reading the file will need, and looks over its text; what kills it is a damaged file,
and one sentence says so.
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

import h5py
import numpy as np
from numba.core.compiler_lock import global_compiler_lock

from scatlas.errors import InputError
from scatlas.io.files.hdf5_heap_loops import walk
from scatlas.io.files.hdf5_heaps import damaged_text

logger = logging.getLogger(__name__)

# Processor time, so that a slow disk is never taken for damage: a sound file takes milliseconds,
# one of a million chunks two seconds.
_SECONDS, _SECONDS_PER_BYTE = 3, 1e-9
# Seconds that a child may sleep, for locks that nobody foresaw.
_PATIENCE = 10


def probe(path: str) -> bool:
    """Walk through the structure of a local HDF5 file in a child process.

    Returns
    -------
    Whether the text is sound as well. If not, `scatlas.io.files.hdf5_heaps.damaged_text` says where
    it is damaged, or raises what came in the way.

    Raises
    ------
    InputError
        The child crashed or did not come to an end.
    """
    size = Path(path).stat().st_size
    # Loaded, and if need be compiled, here, for bytes that are read-only as in `damaged_text`: that
    # is none of the processor time of the child.
    walk(np.frombuffer(bytes(1), np.uint8), 8)
    # No other thread has a lock that the child needs while it is made, or the child would wait for
    # ever: libhdf5's, and that of Numba's compiler.
    with h5py._objects.phil, global_compiler_lock, warnings.catch_warnings():
        # Python 3.12 warns of locks that other threads hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        ended, open_in_child = os.pipe()
        child = os.fork()
        if child == 0:
            _walk_and_exit(path, _SECONDS + int(size * _SECONDS_PER_BYTE))
        os.close(open_in_child)
    try:
        status = _end_of(child, ended)
    finally:
        os.close(ended)
    if status is None:
        logger.warning(
            "%s: the look at its structure waited for %d s and was given up: another thread had a "
            "lock that it needed",
            *(path, _PATIENCE),
        )
        return False
    if os.WIFSIGNALED(status):
        what = signal.Signals(os.WTERMSIG(status))
        happened = "goes in circles in" if what == signal.SIGXCPU else f"crashes ({what.name}) on"
        msg = (
            f"{path}: libhdf5 {happened} the structure of the file, which is damaged: copy or "
            "download the file again, or write it anew from its source"
        )
        raise InputError(msg)
    return os.waitstatus_to_exitcode(status) == 0


def _end_of(child: int, ended: int) -> int | None:
    """Wait for a process; None, and its end, if it neither works nor waits for a disk.

    ``ended`` is a pipe that the child alone can write to, so that it is readable from the moment
    when the child has ended.
    """
    stat = Path(f"/proc/{child}/stat")
    until = select.poll()
    until.register(ended)
    worked, since = None, time.monotonic()
    while True:
        until.poll(100)  # ms
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        # State, and processor time in and outside the kernel, behind the name in brackets.
        fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
        if fields[0] != "S" or fields[11:13] != worked:
            worked, since = fields[11:13], time.monotonic()
        elif time.monotonic() - since > _PATIENCE:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None


def _walk_and_exit(path: str, seconds: int) -> None:
    sound = False
    try:
        gc.disable()  # it would touch, and so copy, all memory of the parent
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        limit = int(used) + 1 + seconds
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        sound = _walk(path)
    finally:
        os._exit(0 if sound else 1)  # errors that libhdf5 reports are for the parent to find


def _walk(path: str) -> bool:
    with h5py.File(path, "r") as file:
        # This finds all chunks on the way. Attributes are text, too, of which damaged one makes
        # libhdf5 go in circles.
        if damaged_text(path, file) is not None:
            return False
        _look_at("/", file)
        file.visititems(_look_at)
    return True


def _look_at(name: str, node: h5py.Group | h5py.Dataset) -> None:  # noqa: ARG001
    with suppress(Exception):
        for key in node.attrs:
            node.attrs[key]
