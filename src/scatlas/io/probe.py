"""A first look at an HDF5 file by a child process.

libhdf5 trusts the structure of a file: damage in a B-tree or a heap makes it read outside its
memory, or go in circles, and takes the whole process with it. Here a child walks through all
structure that reading the file will need; what kills it is a damaged file, and one sentence says
so.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import warnings
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np

from scatlas.errors import InputError
from scatlas.io.heaps import damaged_text
from scatlas.kernels.heaps_cpu import walk

# Processor time, so that a slow disk is never taken for damage: a sound file takes milliseconds,
# one of a million chunks two seconds.
_SECONDS, _SECONDS_PER_BYTE = 3, 1e-9


def probe(path: str) -> None:
    """Walk through the structure of a local HDF5 file in a child process.

    Raises
    ------
    InputError
        The child crashed or did not come to an end.
    """
    size = Path(path).stat().st_size
    # Loaded here, for the parent needs it after the child does.
    walk(np.empty(0, np.uint8), 8)
    # No thread is inside libhdf5 while the child is made, or the child would wait for it for ever.
    with h5py._objects.phil, warnings.catch_warnings():
        # Python 3.12 warns of locks that other threads hold; the child needs none but this one.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
        if child == 0:
            _walk_and_exit(path, _SECONDS + int(size * _SECONDS_PER_BYTE))
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        what = signal.Signals(os.WTERMSIG(status))
        happened = "goes in circles in" if what == signal.SIGXCPU else f"crashes ({what.name}) on"
        msg = (
            f"{path}: libhdf5 {happened} the structure of the file, which is damaged: copy or "
            "download the file again, or write it anew from its source"
        )
        raise InputError(msg)


def _walk_and_exit(path: str, seconds: int) -> None:
    try:
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        limit = int(used) + 1 + seconds
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        _walk(path)
    finally:
        os._exit(0)  # errors that libhdf5 reports are for the parent to find


def _walk(path: str) -> None:
    with h5py.File(path, "r") as file:
        # Such text makes libhdf5 go in circles, which the parent finds more quickly.
        if damaged_text(path, file) is None:
            _look_at("/", file)
            file.visititems(_look_at)


def _look_at(name: str, node: h5py.Group | h5py.Dataset) -> None:  # noqa: ARG001
    with suppress(Exception):
        for key in node.attrs:
            node.attrs[key]
        if isinstance(node, h5py.Dataset) and node.chunks is not None:
            node.id.chunk_iter(_nothing)


def _nothing(chunk: object) -> None:
    pass
