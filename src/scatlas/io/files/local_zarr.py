"""Zarr v3 stores on local disks, read without zarr-python.

Through zarr-python opening an array takes a millisecond and reading one takes several, in an event
loop; a table has thirty. The nodes here do what :mod:`scatlas.io` asks of a ``zarr.Group`` and a
``zarr.Array``, from the same metadata; whatever they do not know, zarr-python opens.
"""

from __future__ import annotations

import json
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.errors import InputError
from scatlas.io.chunks.chunked_array import ChunkedArray, ShardFiles, decoded_bytes, read
from scatlas.io.chunks.codecs import Blosc, ChunkError, Crc32c, Decoder, Deflate, Zstd

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import zarr

_BYTE_ORDERS = {"little": "<", "big": ">"}
_NUMBERS = frozenset(
    {"bool", "float16", "float32", "float64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


# All that the metadata of an array may hold; what has another name, or is damaged, is for
# zarr-python to judge.
_KEYS = frozenset(
    {
        *("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding"),
        *("fill_value", "codecs", "attributes", "dimension_names", "storage_transformers"),
    }
)


# Attribute of the root of a store that scatlas has written: each chunk of its sharded arrays is
# there, also where it holds nothing but zeros.
WRITTEN_BY = {"written_by": "scatlas"}
AGAIN = "copy or download the file again, or write it anew from its source"


class NotDirectError(Exception):
    """An array that has to be read through its library, and why."""


def open_store(path: Path) -> LocalGroup | zarr.Group:
    """Open a Zarr store on a local disk for reading, through zarr-python if it is of version 2."""
    file = path / "zarr.json"
    document = json.loads(file.read_bytes()) if file.is_file() else {}
    if document.get("zarr_format") != 3 or document.get("node_type") != "group":
        return _through_zarr(path, "")
    nodes = (document.get("consolidated_metadata") or {}).get("metadata")
    if WRITTEN_BY.items() <= document.get("attributes", {}).items():
        _check_complete(path, nodes or {})
    return LocalGroup(path, "", document, nodes)


def open_through_zarr(path: Path | str) -> zarr.Group:
    """Open a store of scatlas as ``zarr.Group``, if it lacks no file."""
    return through_zarr(open_store(Path(path)))


def _check_complete(path: Path, nodes: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a store of ours that lost a file of values: by the format it would read as zeros."""
    for key, node in nodes.items():
        # In arrays that zarr-python wrote a chunk of nothing but the fill value has no file.
        if node["node_type"] != "array" or not _has_checksums(node):
            continue
        shard = node["chunk_grid"]["configuration"]["chunk_shape"]
        n_files = -(-node["shape"][0] // shard[0])
        rest = "/0" * (len(shard) - 1)
        there = {
            os.path.relpath(Path(folder, name), path / key / "c")
            for folder, _, names in os.walk(path / key / "c")
            for name in names
        }
        lost = [i for i in range(n_files) if f"{i}{rest}" not in there]
        if lost:
            msg = (
                f"{path}: {key} lacks {len(lost):,} of {n_files:,} files, the first is "
                f"{key}/c/{lost[0]}{rest}: {AGAIN}"
            )
            raise InputError(msg)


def _has_checksums(array: Mapping[str, Any]) -> bool:
    """Whether the array is cut into shards whose chunks carry checksums."""
    first = array["codecs"][0]
    inner = first.get("configuration", {}).get("codecs", [{}])
    return first["name"] == "sharding_indexed" and inner[-1].get("name") == "crc32c"


class LocalGroup:
    """A group, with what is asked of ``zarr.Group``.

    Parameters
    ----------
    root
        Folder of the store.
    key
        Where the group is in it; empty for the root.
    document
        Its metadata.
    nodes
        Metadata of all nodes of the store by key, if they are consolidated.
    """

    def __init__(
        self,
        root: Path,
        key: str,
        document: Mapping[str, Any],
        nodes: Mapping[str, Mapping[str, Any]] | None,
    ) -> None:
        self._root = root
        self._key = key
        self._nodes = nodes
        self.name = f"/{key}"
        self.attrs: Mapping[str, Any] = document.get("attributes", {})

    def _document(self, key: str) -> Mapping[str, Any] | None:
        if self._nodes is not None:
            return self._nodes.get(key)
        file = self._root / key / "zarr.json"
        return json.loads(file.read_bytes()) if file.is_file() else None

    def _below(self, name: str) -> str:
        return f"{self._key}/{name}" if self._key else name

    def __contains__(self, name: str) -> bool:
        return self._document(self._below(name)) is not None

    def __iter__(self) -> Iterator[str]:
        if self._nodes is None:
            folder = self._root / self._key
            return (file.parent.name for file in sorted(folder.glob("*/zarr.json")))
        start = self._below("")
        return (
            key[len(start) :]
            for key in self._nodes
            if key.startswith(start) and "/" not in key[len(start) :]
        )

    def __getitem__(self, name: str) -> Any:
        key = self._below(name)
        document = self._document(key)
        if document is None:
            raise KeyError(key)
        if document["node_type"] == "group":
            return LocalGroup(self._root, key, document, self._nodes)
        try:
            return LocalArray(self._root, key, document)
        except NotDirectError:
            return _through_zarr(self._root, key)

    def get(self, name: str, default: Any = None) -> Any:
        """The node of this name, or ``default``."""
        try:
            return self[name]
        except KeyError:
            return default

    def through_zarr(self) -> Any:
        """The same as ``zarr.Group``."""
        return _through_zarr(self._root, self._key)


class LocalArray:
    """A one-dimensional array of numbers or text, with what is asked of ``zarr.Array``."""

    def __init__(self, root: Path, key: str, document: Mapping[str, Any]) -> None:
        self.name = f"/{key}"
        self.document = document
        self.places = located(str(root), key, document)
        self.attrs: Mapping[str, Any] = document.get("attributes", {})
        self._root, self._key = root, key
        self._text = document["data_type"] == "string"

    @property
    def shape(self) -> tuple[int]:
        """Number of values, as NumPy has it."""
        return (self.places.n_values,)

    ndim = 1

    @cached_property
    def dtype(self) -> np.dtype:
        """Of the values in memory; text is that of `numpy.dtypes.StringDType`."""
        return np.dtypes.StringDType() if self._text else self.places.dtype.newbyteorder("=")

    @property
    def chunks(self) -> tuple[int]:
        """Values that are decoded at once."""
        return (self.places.chunk_values,)

    @property
    def shards(self) -> tuple[int] | None:
        """Values of a file, where it holds several chunks."""
        n_chunks = self.places.places.shard_chunks
        return (n_chunks * self.places.chunk_values,) if n_chunks else None

    def __getitem__(self, rows: slice) -> np.ndarray:
        begin, end, _ = rows.indices(self.places.n_values)
        end = max(begin, end)
        if not self._text:
            return read(self.places, begin, end, dtype=self.dtype, store=None)
        return self._read_text(begin, end)

    def _read_text(self, begin: int, end: int) -> np.ndarray:
        from numcodecs import VLenUTF8

        size = self.places.chunk_values
        parts = [np.empty(0, object)]
        for chunk, raw in decoded_bytes(self.places, *self.places.chunks_of(begin, end)):
            if raw is None:
                texts = np.full(size, self.places.fill, object)
            elif int.from_bytes(raw[:4], "little") == size:
                texts = VLenUTF8().decode(raw)
            else:
                msg = f"chunk {chunk} does not hold {size:,} texts"
                raise ChunkError(msg)
            parts.append(texts[max(begin - chunk * size, 0) : end - chunk * size])
        return np.concatenate(parts)

    def through_zarr(self) -> Any:
        """The same as ``zarr.Array``."""
        return _through_zarr(self._root, self._key)


def through_zarr(node: Any) -> Any:
    """A node as zarr-python's or h5py's, for functions of other packages."""
    return node.through_zarr() if isinstance(node, LocalGroup | LocalArray) else node


def _through_zarr(root: Path, key: str) -> Any:
    import zarr

    group = zarr.open_group(root, mode="r")
    return group[key] if key else group


def located(path: str, key: str, document: Mapping[str, Any]) -> ChunkedArray:
    """Where the chunks of an array of a Zarr v3 store are, and how they are decoded.

    Parameters
    ----------
    path, key
        The store, and the array in it.
    document
        The array's metadata.

    Raises
    ------
    NotDirectError
        It is stored in a way that is not known here.
    """
    if document["zarr_format"] != 3 or document["node_type"] != "array" or set(document) - _KEYS:
        raise NotDirectError("it is described in an unusual way")
    if len(document["shape"]) != 1:
        raise NotDirectError("it has several dimensions")
    if document.get("storage_transformers"):
        raise NotDirectError("it has storage transformers")
    keys = document["chunk_key_encoding"]
    separator = _setting(keys, "separator", "/")
    usual = keys["name"] == "default" and separator in ("/", ".")
    if not usual or document["chunk_grid"]["name"] != "regular":
        raise NotDirectError("its chunks are cut or named in an unusual way")
    (chunk_values,) = document["chunk_grid"]["configuration"]["chunk_shape"]
    codecs = document["codecs"]
    shard_chunks, at_end = 0, True
    if len(codecs) == 1 and codecs[0]["name"] == "sharding_indexed":
        sharding = codecs[0]["configuration"]
        at_end = _index_at_end(sharding)
        (inner,) = sharding["chunk_shape"]
        if chunk_values % inner:
            raise NotDirectError("its shards do not hold whole chunks")
        shard_chunks, chunk_values = chunk_values // inner, inner
        codecs = sharding["codecs"]
    name = document["data_type"]
    text = name == "string"
    if not isinstance(name, str) or not (text or name in _NUMBERS):
        msg = f"it holds {name if isinstance(name, str) else name['name']}"
        raise NotDirectError(msg)
    dtype = np.dtype(np.uint8 if text else name)
    steps, dtype = _pipeline(codecs, dtype, "vlen-utf8" if text else "bytes")
    fill = document["fill_value"]
    if not text:
        try:
            fill = dtype.type(0 if fill is None else fill).item()
        except ValueError as error:  # bytes in hexadecimal
            raise NotDirectError("what it is filled with is written in an unusual way") from error
    prefix = str(Path(path, *key.split("/"), f"c{separator}"))
    prefix += "/" if separator == "/" else ""
    places = ShardFiles(prefix, shard_chunks, at_end)
    return ChunkedArray(key, document["shape"][0], dtype, chunk_values, steps, places, fill)


def _setting(part: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """The only setting that a part of the metadata may have."""
    settings = part.get("configuration", {})
    if set(settings) - {name}:
        msg = f"its {part['name']} has unusual settings"
        raise NotDirectError(msg)
    return settings.get(name, default)


def _index_at_end(sharding: Mapping[str, Any]) -> bool:
    codecs = sharding["index_codecs"]
    location = sharding.get("index_location", "end")
    usual = [codec["name"] for codec in codecs] == ["bytes", "crc32c"]
    usual = usual and _setting(codecs[0], "endian") == "little" and location in ("start", "end")
    if not usual or set(sharding) - {"chunk_shape", "codecs", "index_codecs", "index_location"}:
        raise NotDirectError("the index of its shards is encoded in an unusual way")
    return location == "end"


def _pipeline(
    codecs: list[Mapping[str, Any]], dtype: np.dtype, first: str
) -> tuple[tuple[Decoder, ...], np.dtype]:
    """Decoders in the order of decoding, and the type with its byte order."""
    known: dict[str, tuple[Decoder | None, int]] = {
        first: (None, 0),
        "blosc": (Blosc(), 1),
        "zstd": (Zstd(), 1),
        "gzip": (Deflate("gzip"), 1),
        "crc32c": (Crc32c(), 2),
    }
    steps, stages = [], []
    for codec in codecs:
        name = codec["name"]
        if name not in known:
            msg = f"it is encoded by {name}"
            raise NotDirectError(msg)
        step, stage = known[name]
        stages.append(stage)
        if step is not None:
            steps.append(step)
        elif name == "bytes" and (endian := _setting(codec, "endian")) is not None:
            if endian not in _BYTE_ORDERS:
                msg = f"its byte order is {endian!r}"
                raise NotDirectError(msg)
            dtype = dtype.newbyteorder(_BYTE_ORDERS[endian])
    if first == "vlen-utf8" and not all(isinstance(step, Zstd | Crc32c) for step in steps):
        raise NotDirectError("its text is compressed in an unusual way")
    if stages != sorted(set(stages)) or stages[:1] != [0]:
        raise NotDirectError("its codecs stand in an unusual order")
    return tuple(reversed(steps)), dtype
