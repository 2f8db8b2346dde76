"""Check of the structure of an HDF5 file in a child process.

libhdf5 trusts the structure of a file: damage in a B-tree or a heap makes it read outside its
memory or loop forever, and kills the whole process. The child reads all structure that a reader
needs, and checks the text. If the child crashes, an `InputError` names the damaged file.
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

from scatlas._util.operating_system import sleeping_since
from scatlas.errors import InputError, TooLargeError
from scatlas.io.files.hdf5_heap_loops import find_empty_object
from scatlas.io.files.hdf5_heaps import find_damaged_text
from scatlas.io.files.read_errors import MORE_MEMORY, REMEDY

logger = logging.getLogger(__name__)

# Limit of processor time, so that a slow disk never counts as damage. An intact file takes
# milliseconds, one of a million chunks two seconds.
_SECONDS, _SECONDS_PER_BYTE = 3, 1e-9
# Seconds that a child may sleep, in case it waits for a lock.
_MAX_SLEEP = 10


def probe_structure(path: str) -> bool:
    """Read the structure of a local HDF5 file in a child process, whose crash is an error here;
    True if the text is intact as well.
    """
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
