"""Copies between main memory and GPU through two pinned buffers: the bus transfers one, several
times as fast as other memory, while the thread fills or empties the other.
"""

from __future__ import annotations

from contextlib import contextmanager
from threading import BoundedSemaphore
from typing import TYPE_CHECKING

import cupy as cp
import numpy as np
from cupy.cuda import runtime
from cupyx import empty_pinned

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECE = 8 << 20  # bytes per buffer
# CUDA copies smaller arrays.
_MIN_BYTES = 1 << 20
# Threads that copy at once, which saturate the bus. It limits the pinned memory to 128 MB.
_MAX_THREADS = 8

_turns = BoundedSemaphore(_MAX_THREADS)
# Pairs of buffers that no thread uses.
_idle: list[list[np.ndarray]] = []


def to_gpu(x: np.ndarray) -> cp.ndarray:
    """Copy on the current GPU, complete on return."""
    x = np.ascontiguousarray(x)
    copy = cp.empty(x.shape, x.dtype)
    if x.nbytes < _MIN_BYTES:
        copy.set(x)
        return copy
    source = x.reshape(-1).view(np.uint8)
    with _pieces() as (pieces, events, stream):
        for i, start in enumerate(range(0, x.nbytes, PIECE)):
            piece, moved = pieces[i % 2], events[i % 2]
            part = source[start : start + PIECE]
            moved.synchronize()  # the previous content of this buffer
            piece[: part.size] = part
            to = copy.data.ptr + start
            how = runtime.memcpyHostToDevice
            runtime.memcpyAsync(to, piece.ctypes.data, part.size, how, stream.ptr)
            moved.record(stream)
    return copy


def to_host(x: cp.ndarray) -> np.ndarray:
    """Copy in the main memory, in C order."""
    if x.nbytes < _MIN_BYTES:
        return x.get()
    with x.device:
        x = cp.ascontiguousarray(x)
        copy = np.empty(x.shape, x.dtype)
        target = copy.reshape(-1).view(np.uint8)
        parts = [target[start : start + PIECE] for start in range(0, x.nbytes, PIECE)]
        with _pieces() as (pieces, events, stream):
            for i in range(len(parts) + 1):
                if i < len(parts):
                    to, start, how = pieces[i % 2], i * PIECE, runtime.memcpyDeviceToHost
                    size = parts[i].size
                    runtime.memcpyAsync(to.ctypes.data, x.data.ptr + start, size, how, stream.ptr)
                    events[i % 2].record(stream)
                if i > 0:
                    events[(i - 1) % 2].synchronize()
                    parts[i - 1][:] = pieces[(i - 1) % 2][: parts[i - 1].size]
    return copy


@contextmanager
def _pieces() -> Iterator[tuple[list[np.ndarray], list[cp.cuda.Event], cp.cuda.Stream]]:
    """Two buffers that no other thread uses, an event for each, and the current stream, for which
    it waits at the end: all copies are complete and the buffers free.
    """
    stream = cp.cuda.get_current_stream()
    with _turns:
        try:
            pieces = _idle.pop()
        except IndexError:
            pieces = [empty_pinned(PIECE, np.uint8) for _ in range(2)]
        try:
            yield pieces, [cp.cuda.Event(disable_timing=True) for _ in range(2)], stream
        finally:
            stream.synchronize()
            _idle.append(pieces)
