"""Zarr v3 stores on local disks, read without zarr-python.

With zarr-python, opening an array takes a millisecond and reading one several, in an event loop; a
table has thirty arrays. zarrs is a codec pipeline within zarr-python and does not change this.
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from scatlas.errors import InputError
from scatlas.io.chunks.chunk_reader import read_text_chunks, read_values
from scatlas.io.chunks.chunked_array import ChunkedArray, ZarrChunks
from scatlas.io.chunks.codecs import Blosc, ChunkError, Crc32c, Decoder, Deflate, Zstd
from scatlas.io.chunks.encoded_text import EncodedText
from scatlas.io.files.listing import list_files
from scatlas.io.files.read_errors import REMEDY, UnsupportedLayoutError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from scatlas.io.files.stored_nodes import StoredGroup

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
# Attribute of the root of a store that scatlas has written: its sharded arrays have all chunks,
# also those of zeros alone.
WRITER_ATTRIBUTE = {"written_by": "scatlas"}


def open_store(path: Path, *, is_complete: bool = False) -> StoredGroup:
    """Open a Zarr store on a local disk, with zarr-python if it has version 2; ``is_complete`` if
    :func:`check_complete` has passed for these very files.
    """
    file = path / "zarr.json"
    document = json.loads(file.read_bytes()) if file.is_file() else {}
    if document.get("zarr_format") != 3 or document.get("node_type") != "group":
        return _open_node_with_zarr_python(path, "")
    if not is_complete:
        check_complete(path, document)
    return LocalGroup(path, "", document, _consolidated(document))


def open_with_zarr_python(path: Path | str) -> StoredGroup:
    """Open a store as ``zarr.Group``, after :func:`open_store` has checked that it is complete."""
    return as_zarr_python(open_store(Path(path)))


def _consolidated(document: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]] | None:
    """Metadata of all nodes of a store by key; None if they are not in its root."""
    return (document.get("consolidated_metadata") or {}).get("metadata")


def check_complete(path: Path | str, document: Mapping[str, Any]) -> None:
    """Refuse a store of scatlas, by its root metadata, that lacks a file of values, which Zarr
    would read as zeros.
    """
    if not WRITER_ATTRIBUTE.items() <= document.get("attributes", {}).items():
        return
    files = list_files(path)
    if files is None:
        return
    for key, node in (_consolidated(document) or {}).items():
        # zarr-python, which writes the other arrays, omits chunks of the fill value alone.
        if node["node_type"] != "array" or not _has_checksums(node):
            continue
        shard = node["chunk_grid"]["configuration"]["chunk_shape"]
        n_files = -(-node["shape"][0] // shard[0])
        rest = "/0" * (len(shard) - 1)
        missing = [i for i in range(n_files) if f"{key}/c/{i}{rest}" not in files]
        if missing:
            msg = (
                f"{path}: {key} lacks {len(missing):,} of {n_files:,} files, the first is "
                f"{key}/c/{missing[0]}{rest}: {REMEDY}"
            )
            raise InputError(msg)


def _has_checksums(array: Mapping[str, Any]) -> bool:
    """Whether the array has shards with a checksum per chunk."""
    first = array["codecs"][0]
    inner = first.get("configuration", {}).get("codecs", [{}])
    return first["name"] == "sharding_indexed" and inner[-1].get("name") == "crc32c"


class LocalGroup:
    """A group, with the part of ``zarr.Group`` that scatlas uses; ``nodes`` is the consolidated
    metadata.
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

    def _key_of(self, name: str) -> str:
        return f"{self._key}/{name}" if self._key else name

    def __contains__(self, name: str) -> bool:
        return self._document(self._key_of(name)) is not None

    def __iter__(self) -> Iterator[str]:
        if self._nodes is None:
            folder = self._root / self._key
            return (file.parent.name for file in sorted(folder.glob("*/zarr.json")))
        prefix = self._key_of("")
        return (
            key[len(prefix) :]
            for key in self._nodes
            if key.startswith(prefix) and "/" not in key[len(prefix) :]
        )

    def __getitem__(self, name: str) -> Any:
        key = self._key_of(name)
        document = self._document(key)
        if document is None:
            raise KeyError(key)
        if document["node_type"] == "group":
            return LocalGroup(self._root, key, document, self._nodes)
        try:
            return LocalArray(self._root, key, document)
        except UnsupportedLayoutError:
            return _open_node_with_zarr_python(self._root, key)

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def as_zarr_python(self) -> Any:
        return _open_node_with_zarr_python(self._root, self._key)


class LocalArray:
    """A one-dimensional array of numbers or text, with the interface of ``zarr.Array`` in part."""

    ndim = 1

    def __init__(self, root: Path, key: str, document: Mapping[str, Any]) -> None:
        self.name = f"/{key}"
        self.document = document
        self.chunked_array = zarr_chunked_array(str(root), key, document)
        self.attrs: Mapping[str, Any] = document.get("attributes", {})
        self._root, self._key = root, key
        self._is_text = document["data_type"] == "string"

    @property
    def shape(self) -> tuple[int]:
        return (self.chunked_array.n_values,)

    @cached_property
    def dtype(self) -> np.dtype:
        """Type of the values in memory; `numpy.dtypes.StringDType` for text."""
        if self._is_text:
            return np.dtypes.StringDType()
        return self.chunked_array.dtype.newbyteorder("=")

    @property
    def chunks(self) -> tuple[int]:
        return (self.chunked_array.chunk_values,)

    @property
    def shards(self) -> tuple[int] | None:
        """Values per shard; None without shards."""
        locations = self.chunked_array.locations
        n_chunks = locations.shard_chunks if isinstance(locations, ZarrChunks) else 0
        return (n_chunks * self.chunked_array.chunk_values,) if n_chunks else None

    def __getitem__(self, rows: slice) -> np.ndarray:
        begin, end, _ = rows.indices(self.chunked_array.n_values)
        end = max(begin, end)
        if not self._is_text:
            return read_values(self.chunked_array, begin, end, dtype=self.dtype)
        return self._read_text(begin, end)

    def _read_text(self, begin: int, end: int) -> np.ndarray:
        from numcodecs import VLenUTF8

        array, size = self.chunked_array, self.chunked_array.chunk_values
        parts = [np.empty(0, object)]
        for chunk, raw in self._text_chunks(begin, end):
            texts = (
                np.full(size, array.fill_value, object) if raw is None else VLenUTF8().decode(raw)
            )
            parts.append(texts[max(begin - chunk * size, 0) : end - chunk * size])
        return np.concatenate(parts)

    def encoded_text(self, begin: int, end: int) -> EncodedText:
        """Texts ``begin`` to ``end`` without Python strings."""
        array, size = self.chunked_array, self.chunked_array.chunk_values
        parts = []
        for chunk, raw in self._text_chunks(begin, end):
            if raw is None:
                texts = EncodedText.encode(np.full(size, array.fill_value, object))
            else:
                texts = EncodedText.of_chunk(raw)
            parts.append(texts[max(begin - chunk * size, 0) : end - chunk * size])
        return EncodedText.join(parts)

    def _text_chunks(self, begin: int, end: int) -> Iterator[tuple[int, bytes | None]]:
        array, size = self.chunked_array, self.chunked_array.chunk_values
        for chunk, raw in read_text_chunks(array, *array.chunk_range(begin, end)):
            if raw is not None and int.from_bytes(raw[:4], "little") != size:
                msg = f"chunk {chunk} does not hold {size:,} texts"
                raise ChunkError(msg)
            yield chunk, raw

    def as_zarr_python(self) -> Any:
        return _open_node_with_zarr_python(self._root, self._key)


def as_zarr_python(node: Any) -> Any:
    """The same node as an object of zarr-python, for functions of other packages."""
    return node.as_zarr_python() if isinstance(node, LocalGroup | LocalArray) else node


def open_any_group(store: Any) -> Any:
    """Open a store with zarr-python, its nodes in the order of the consolidated metadata if it can:
    that of a listing of files differs from run to run, and so would the bytes of copies.
    """
    import zarr

    try:
        return zarr.open_group(store, mode="r")
    except ValueError:  # the data type of an element, needed or not, is unknown to this zarr
        return zarr.open_group(store, mode="r", use_consolidated=False)


def _open_node_with_zarr_python(root: Path, key: str) -> Any:
    group = open_any_group(root)
    return group[key] if key else group


def zarr_chunked_array(path: str, key: str, document: Mapping[str, Any]) -> ChunkedArray:
    """Describe the chunks of a Zarr v3 array, unless only zarr-python reads it."""
    _check_document(document)
    separator = _chunk_separator(document)
    chunk_values, shard_chunks, index_at_end, codecs = _chunking(document)
    name, fill_value = document["data_type"], document["fill_value"]
    if name == "string":
        pipeline, dtype = _pipeline(codecs, np.dtype(np.uint8), "vlen-utf8")
    else:
        pipeline, dtype = _pipeline(codecs, _number_dtype(name), "bytes")
        fill_value = _number_fill_value(dtype, fill_value)
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


def _chunk_separator(document: Mapping[str, Any]) -> str:
    encoding = document["chunk_key_encoding"]
    separator: str = _setting(encoding, "separator", "/")
    if encoding["name"] != "default" or separator not in ("/", "."):
        raise UnsupportedLayoutError("its chunks have unusual names")
    return separator


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


def _number_dtype(name: Any) -> np.dtype:
    if not isinstance(name, str) or name not in _NUMBERS:
        msg = f"it holds {name if isinstance(name, str) else name['name']}"
        raise UnsupportedLayoutError(msg)
    return np.dtype(name)


def _number_fill_value(dtype: np.dtype, fill_value: Any) -> Any:
    try:
        return dtype.type(0 if fill_value is None else fill_value).item()
    except ValueError as error:  # bytes in hexadecimal
        raise UnsupportedLayoutError("the form of its fill value is unusual") from error


def _setting(part: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """Value of the only setting that a part of the metadata may have."""
    settings = part.get("configuration", {})
    if set(settings) - {name}:
        msg = f"its {part['name']} has unusual settings"
        raise UnsupportedLayoutError(msg)
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
    """Decoders in the order of decoding after the codec ``first``, which serializes, and the stored
    type.
    """
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
            msg = f"it is encoded by {name}"
            raise UnsupportedLayoutError(msg)
        step, stage = supported[name]
        stages.append(stage)
        if step is not None:
            steps.append(step)
        elif name == "bytes" and (endian := _setting(codec, "endian")) is not None:
            if endian not in _BYTE_ORDERS:
                msg = f"its byte order is {endian!r}"
                raise UnsupportedLayoutError(msg)
            dtype = dtype.newbyteorder(_BYTE_ORDERS[endian])
    if first == "vlen-utf8" and not all(isinstance(step, Zstd | Crc32c) for step in steps):
        raise UnsupportedLayoutError("the compression of its text is unusual")
    if stages != sorted(set(stages)) or stages[:1] != [0]:
        raise UnsupportedLayoutError("the order of its codecs is unusual")
    return tuple(reversed(steps)), dtype
