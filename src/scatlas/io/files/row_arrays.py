"""Rows of an array in a Zarr v3 store, such as components, in a third of zarr-python's time."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from scatlas.io.chunks.chunk_reader import read_values
from scatlas.io.files.local_zarr import as_zarr_python, open_store, zarr_chunked_array
from scatlas.io.files.read_errors import UnsupportedLayoutError, reading

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from scatlas.io.chunks.chunked_array import ChunkedArray, ZarrChunks


class RowArray:
    """A matrix or a list of numbers on disk, whose chunks of whole rows hold the same bytes as
    those of one long array; a slice of rows reads them, in any thread.
    """

    def __init__(self, path: Path, key: str, shape: tuple[int, ...], values: ChunkedArray) -> None:
        self.shape = shape
        self.dtype = values.dtype.newbyteorder("=")
        self._width = math.prod(shape[1:])
        self.chunks = (values.chunk_values // self._width, *shape[1:])
        self._path, self._key, self._values = path, key, values

    def __getitem__(self, rows: slice) -> np.ndarray:
        begin, end, _ = rows.indices(self.shape[0])
        end = max(begin, end)
        width = self._width
        with reading(str(self._path), f"{self._key}, rows {begin} to {end - 1}"):
            found = read_values(self._values, begin * width, end * width, dtype=self.dtype)
        return found.reshape(-1, *self.shape[1:])


def open_rows(path: Path, key: str) -> RowArray | Any:
    """Open an array of a local store by rows; zarr-python's array if only that can read it."""
    store = open_store(path)
    file = path / key / "zarr.json"
    try:
        if file.is_file():
            document = json.loads(file.read_bytes())
            values = _flat(path, key, document)
            return RowArray(path, key, tuple(document["shape"]), values)
    except UnsupportedLayoutError:
        pass
    return as_zarr_python(store)[key]


def _flat(path: Path, key: str, document: dict[str, Any]) -> ChunkedArray:
    """The values of an array, row by row, as one long array."""
    shape = document.get("shape", ())
    if len(shape) not in {1, 2} or document["data_type"] == "string":
        raise UnsupportedLayoutError("it is no matrix or list of numbers")
    if len(shape) == 1:
        return zarr_chunked_array(str(path), key, document)
    if document["chunk_grid"]["name"] != "regular":
        raise UnsupportedLayoutError("its chunk grid is unusual")
    width = shape[1]
    codecs = [
        _with_flat_chunk(codec, width) if codec["name"] == "sharding_indexed" else codec
        for codec in document["codecs"]
    ]
    grid = _with_flat_chunk(document["chunk_grid"], width)
    flat = {"shape": [shape[0] * width], "chunk_grid": grid, "codecs": codecs}
    values = zarr_chunked_array(str(path), key, document | flat)
    locations = cast("ZarrChunks", values.locations)
    suffix = f"{locations.prefix[-1]}0"  # the number of a chunk among those of its rows
    return replace(values, locations=replace(locations, suffix=suffix))


def _with_flat_chunk(part: dict[str, Any], width: int) -> dict[str, Any]:
    configuration = part["configuration"]
    n_rows, n_columns = configuration["chunk_shape"]
    if n_columns != width or width == 0:
        raise UnsupportedLayoutError("its chunks are not of whole rows")
    return part | {"configuration": configuration | {"chunk_shape": [n_rows * width]}}
