"""Zarr v3 arrays of numbers without compression, for many arrays that are written at once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from scatlas.io.zarr_writer.node_metadata import write_array_metadata

if TYPE_CHECKING:
    from pathlib import Path

# Values per file. A reader takes a file at a time.
_FILE_VALUES = 2**20


class RawArray:
    """Array of numbers or bool in a new folder, whose pieces go to disk at once."""

    def __init__(self, folder: Path, dtype: np.dtype) -> None:
        self._folder = folder
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._n = 0
        (folder / "c").mkdir(parents=True)

    def append(self, values: np.ndarray) -> None:
        """Append values, converted to the type of the array."""
        values = np.ascontiguousarray(values, self._dtype)
        while len(values):
            number, offset = divmod(self._n, _FILE_VALUES)
            piece = values[: _FILE_VALUES - offset]
            # Not kept open: there may be more arrays than files that a process may open.
            with (self._folder / "c" / str(number)).open("r+b" if offset else "xb") as file:
                file.seek(offset * self._dtype.itemsize)
                file.write(piece.data.cast("B"))
            self._n += len(piece)
            values = values[len(piece) :]

    def read(self, begin: int, end: int) -> np.ndarray:
        pieces = []
        while begin < end:
            number, offset = divmod(begin, _FILE_VALUES)
            n = min(end - begin, _FILE_VALUES - offset)
            at = offset * self._dtype.itemsize
            file = self._folder / "c" / str(number)
            pieces.append(np.fromfile(file, self._dtype, n, offset=at))
            begin += n
        return np.concatenate(pieces)

    def close(self) -> None:
        """Fill the last file, as each has the same size, and write the metadata."""
        file_values = max(1, min(self._n, _FILE_VALUES))
        if self._n:
            last = self._folder / "c" / str((self._n - 1) // file_values)
            os.truncate(last, file_values * self._dtype.itemsize)
        codec: dict[str, object] = {"name": "bytes"}
        if self._dtype.itemsize > 1:
            codec |= {"configuration": {"endian": "little"}}
        write_array_metadata(
            self._folder, (self._n,), self._dtype.name, self._dtype.type(0).item(),
            grid=(file_values,), codecs=[codec], attributes={},
        )  # fmt: skip
