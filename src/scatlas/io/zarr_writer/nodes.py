"""Nodes of Zarr v3 stores with the bytes of zarr-python, which takes 5 ms per array: ``zarr.json``
of groups and arrays, and arrays of numbers without compression.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    Codec = Mapping[str, Any]

# Names that AnnData, Zarr or the file system reserve.
_RESERVED = frozenset({"", ".", "..", "_index", "zarr.json"})
# Bytes that a folder's name, as of an element of a Zarr store, may have.
MAX_NAME = 255
_LITTLE_ENDIAN = {"name": "bytes", "configuration": {"endian": "little"}}


def is_storable(name: object) -> bool:
    """Whether an element of a Zarr store can have this name."""
    if not isinstance(name, str) or "/" in name or name in _RESERVED:
        return False
    return len(os.fsencode(name)) <= MAX_NAME


def write_group_metadata(folder: Path, attributes: Mapping[str, Any]) -> None:
    metadata = {"attributes": dict(attributes), "zarr_format": 3, "node_type": "group"}
    _write(folder, metadata)


def write_array_metadata(
    folder: Path,
    shape: tuple[int, ...],
    data_type: str,
    fill_value: Any,
    *,
    grid: tuple[int, ...],
    codecs: Sequence[Codec],
    attributes: Mapping[str, Any],
) -> None:
    """Write the metadata of an array; ``grid`` is the shape of the part in one file."""
    metadata = {
        "shape": shape,
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": grid}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value,
        "codecs": codecs,
        "attributes": attributes,
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }
    _write(folder, metadata)


def write_sharded_array_metadata(
    folder: Path,
    shape: tuple[int, ...],
    dtype: np.dtype,
    *,
    chunk: tuple[int, ...],
    shard: tuple[int, ...],
    codecs: Sequence[Codec],
    attributes: Mapping[str, Any],
) -> None:
    """Write the metadata of an array whose shards contain whole chunks, with the index at their
    end.
    """
    serializer: Codec
    if dtype.kind == "O":
        name, fill_value, serializer = "string", "", {"name": "vlen-utf8", "configuration": {}}
    else:
        name, fill_value = dtype.name, dtype.type(0).item()
        serializer = _LITTLE_ENDIAN if dtype.itemsize > 1 else {"name": "bytes"}
    configuration = {
        "chunk_shape": chunk,
        "codecs": [serializer, *codecs],
        "index_codecs": [_LITTLE_ENDIAN, {"name": "crc32c"}],
        "index_location": "end",
    }
    sharding = {"name": "sharding_indexed", "configuration": configuration}
    write_array_metadata(
        folder, shape, name, fill_value, grid=shard, codecs=[sharding], attributes=attributes
    )


def _write(folder: Path, metadata: Mapping[str, Any]) -> None:
    (folder / "zarr.json").write_text(json.dumps(metadata, indent=2), encoding="utf-8")


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
