"""Rows of numbers that Harmony reads and writes again and again: in memory, a file or on a GPU."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from scatlas.compute.memory import HARMONY_CELLS_IN_MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    Float32s = NDArray[np.float32]
    Ints = NDArray[np.int64]


class Rows(Protocol):
    """Rows of numbers [cells, components], an array or in a file."""

    shape: tuple[int, ...]

    def __getitem__(self, rows: slice, /) -> Any: ...
    def __setitem__(self, rows: slice, values: Any, /) -> None: ...
    def take(self, rows: Any, axis: int) -> Any: ...


class FileRows:
    """float32 rows in a temporary file, of which memory holds what is read."""

    shape: tuple[int, ...]

    def __init__(self, fd: int, shape: tuple[int, int]) -> None:
        self.shape, self._fd, self._row = shape, fd, 4 * shape[1]
        os.ftruncate(fd, shape[0] * self._row)

    def __getitem__(self, rows: slice) -> Float32s:
        return self._read([(rows.start, min(rows.stop, self.shape[0]))])

    def take(self, rows: Ints, axis: int) -> Float32s:  # noqa: ARG002
        """Rows of ascending numbers, read in runs of neighbours."""
        cuts = np.flatnonzero(np.diff(rows) != 1) + 1
        firsts, lasts = rows[np.r_[0, cuts]], rows[np.r_[cuts, rows.size] - 1]
        return self._read(list(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True)))

    def _read(self, runs: list[tuple[int, int]]) -> Float32s:
        out = np.empty((sum(stop - first for first, stop in runs), self.shape[1]), np.float32)
        view, at = out.reshape(-1).view(np.uint8).data, 0
        for first, stop in runs:
            end = at + (stop - first) * self._row
            offset = first * self._row - at
            while at < end:
                n_read = os.preadv(self._fd, [view[at:end]], offset + at)
                if not n_read:
                    raise OSError("the temporary file of Harmony ends too early")
                at += n_read
        return out

    def __setitem__(self, rows: slice, values: Float32s) -> None:
        view = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8).data
        at, offset = 0, rows.start * self._row
        while at < len(view):
            at += os.pwrite(self._fd, view[at:], offset + at)


@contextmanager
def scratch_rows(n_cells: int, n_comps: int, folder: Path, *, gpu: bool = False) -> Iterator[Rows]:
    """Rows to write and read again: on the GPU, or in memory for few cells, else in a file in
    ``folder``.
    """
    with ExitStack() as stack:
        if gpu:
            from scatlas.arrays import cupy_arrays

            yield cupy_arrays.empty((n_cells, n_comps), np.float32)
        elif n_cells <= HARMONY_CELLS_IN_MEMORY:
            yield np.empty((n_cells, n_comps), np.float32)
        else:
            file = stack.enter_context(TemporaryFile(dir=folder))
            yield FileRows(file.fileno(), (n_cells, n_comps))
