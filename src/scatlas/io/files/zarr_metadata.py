"""The chunks of a Zarr v3 array by its metadata, as far as they are read without zarr-python."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from scatlas.io.chunks.chunked_array import ChunkedArray, ZarrChunks
from scatlas.io.chunks.codecs import Blosc, Crc32c, Decoder, Deflate, Zstd
from scatlas.io.files.read_errors import UnsupportedLayoutError

if TYPE_CHECKING:
    from collections.abc import Mapping

_BYTE_ORDERS: dict[str, Literal["<", ">"]] = {"little": "<", "big": ">"}
_NUMBERS = frozenset(
    {"bool", "float16", "float32", "float64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
# Keys that the metadata of an array may have; zarr-python judges metadata with others.
_KEYS = frozenset(
    {
        *("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding"),
        *("fill_value", "codecs", "attributes", "dimension_names", "storage_transformers"),
    }
)


def zarr_chunked_array(path: str, key: str, document: Mapping[str, Any]) -> ChunkedArray:
    """Describe the chunks of a Zarr v3 array, unless only zarr-python reads it."""
    _check_document(document)
    encoding = document["chunk_key_encoding"]
    separator: str = _setting(encoding, "separator", "/")
    if encoding["name"] != "default" or separator not in ("/", "."):
        raise UnsupportedLayoutError("its chunks have unusual names")
    chunk_values, shard_chunks, index_at_end, codecs = _chunking(document)
    name, fill_value = document["data_type"], document["fill_value"]
    if name == "string":
        pipeline, dtype = _pipeline(codecs, np.dtype(np.uint8), "vlen-utf8")
    else:
        if not isinstance(name, str) or name not in _NUMBERS:
            what = name if isinstance(name, str) else name["name"]
            raise UnsupportedLayoutError(f"it holds {what}")
        pipeline, dtype = _pipeline(codecs, np.dtype(name), "bytes")
        try:
            fill_value = dtype.type(0 if fill_value is None else fill_value).item()
        except ValueError as error:  # bytes in hexadecimal
            raise UnsupportedLayoutError("the form of its fill value is unusual") from error
    prefix = str(Path(path, *key.split("/"), f"c{separator}"))
    prefix += "/" if separator == "/" else ""
    locations = ZarrChunks(prefix, shard_chunks, index_at_end)
    n_values = document["shape"][0]
    return ChunkedArray(key, n_values, dtype, chunk_values, pipeline, locations, fill_value)


def _check_document(document: Mapping[str, Any]) -> None:
    if document["zarr_format"] != 3 or document["node_type"] != "array" or set(document) - _KEYS:
        raise UnsupportedLayoutError("its metadata are unusual")
    if len(document["shape"]) != 1:
        raise UnsupportedLayoutError("it has several dimensions")
    if document.get("storage_transformers"):
        raise UnsupportedLayoutError("it has storage transformers")
    if document["chunk_grid"]["name"] != "regular":
        raise UnsupportedLayoutError("its chunk grid is unusual")


def _chunking(document: Mapping[str, Any]) -> tuple[int, int, bool, list[Mapping[str, Any]]]:
    """Values per chunk, chunks per shard (0: none), whether its index is at the end, and codecs."""
    (n_values,) = document["chunk_grid"]["configuration"]["chunk_shape"]
    codecs = document["codecs"]
    if len(codecs) != 1 or codecs[0]["name"] != "sharding_indexed":
        return n_values, 0, True, codecs
    sharding = codecs[0]["configuration"]
    index_at_end = _index_at_end(sharding)
    (chunk_values,) = sharding["chunk_shape"]
    if n_values % chunk_values:
        raise UnsupportedLayoutError("the size of its shards is no multiple of that of its chunks")
    return chunk_values, n_values // chunk_values, index_at_end, sharding["codecs"]


def _setting(part: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """Value of the only setting that a part of the metadata may have."""
    settings = part.get("configuration", {})
    if set(settings) - {name}:
        raise UnsupportedLayoutError(f"its {part['name']} has unusual settings")
    return settings.get(name, default)


def _index_at_end(sharding: Mapping[str, Any]) -> bool:
    codecs = sharding["index_codecs"]
    location = sharding.get("index_location", "end")
    is_supported = (
        [codec["name"] for codec in codecs] == ["bytes", "crc32c"]
        and _setting(codecs[0], "endian") == "little"
        and location in ("start", "end")
        and not set(sharding) - {"chunk_shape", "codecs", "index_codecs", "index_location"}
    )
    if not is_supported:
        raise UnsupportedLayoutError("the encoding of the index of its shards is unusual")
    return location == "end"


def _pipeline(
    codecs: list[Mapping[str, Any]], dtype: np.dtype, first: str
) -> tuple[tuple[Decoder, ...], np.dtype]:
    """Decoders in their order after the codec ``first``, which serializes, and the stored type."""
    supported: dict[str, tuple[Decoder | None, int]] = {
        first: (None, 0),
        "blosc": (Blosc(), 1),
        "zstd": (Zstd(), 1),
        "gzip": (Deflate("gzip"), 1),
        "crc32c": (Crc32c(), 2),
    }
    steps: list[Decoder] = []
    stages = []
    for codec in codecs:
        name = codec["name"]
        if name not in supported:
            raise UnsupportedLayoutError(f"it is encoded by {name}")
        step, stage = supported[name]
        stages.append(stage)
        if step is not None:
            steps.append(step)
        elif name == "bytes" and (endian := _setting(codec, "endian")) is not None:
            if endian not in _BYTE_ORDERS:
                raise UnsupportedLayoutError(f"its byte order is {endian!r}")
            dtype = dtype.newbyteorder(_BYTE_ORDERS[endian])
    if first == "vlen-utf8" and not all(isinstance(step, Zstd | Crc32c) for step in steps):
        raise UnsupportedLayoutError("the compression of its text is unusual")
    if stages != sorted(set(stages)) or stages[:1] != [0]:
        raise UnsupportedLayoutError("the order of its codecs is unusual")
    return tuple(reversed(steps)), dtype


def flat_chunked_array(path: Path, key: str, document: dict[str, Any]) -> ChunkedArray:
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
