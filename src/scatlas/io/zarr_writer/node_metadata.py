"""``zarr.json`` of groups and arrays, with the bytes of zarr-python, which takes 5 ms per array."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy as np

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
    """Write the metadata of an array with shards of whole chunks and the index at their end."""
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
