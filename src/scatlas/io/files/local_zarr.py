"""Zarr v3 stores on local disks, read without zarr-python.

With zarr-python, opening an array takes a millisecond and reading one several, in an event loop; a
table has thirty arrays. zarrs is a codec pipeline within zarr-python and does not change this.
"""

from __future__ import annotations

import json
import math
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from scatlas.errors import InputError
from scatlas.io.chunks.chunk_reader import read_text_chunks, read_values
from scatlas.io.chunks.chunked_array import ZarrChunks
from scatlas.io.chunks.codecs import ChunkError
from scatlas.io.chunks.encoded_text import EncodedText
from scatlas.io.files.listing import list_files
from scatlas.io.files.read_errors import REMEDY, UnsupportedLayoutError, read_error, reading
from scatlas.io.files.zarr_metadata import flat_chunked_array, zarr_chunked_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from scatlas.io.chunks.chunked_array import ChunkedArray

# Attribute of the root of a store that scatlas has written: its sharded arrays have all chunks,
# also those of zeros alone.
WRITER_ATTRIBUTE = {"written_by": "scatlas"}


class StoredGroup(Protocol):
    """The part of ``h5py.Group`` and ``zarr.Group`` that scatlas uses."""

    @property
    def name(self) -> str: ...

    @property
    def attrs(self) -> Mapping[str, Any]: ...

    def get(self, name: str, default: Any = None) -> Any: ...

    def __contains__(self, name: str) -> bool: ...

    def __iter__(self) -> Iterator[str]: ...

    def __getitem__(self, name: str) -> Any: ...


class StoredArray(Protocol):
    """The part of ``h5py.Dataset``, ``zarr.Array`` and `RowArray` that scatlas uses."""

    @property
    def dtype(self) -> np.dtype: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def chunks(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: slice) -> Any: ...


def open_store(path: Path) -> StoredGroup:
    """Open a local store, and refuse one that lacks a file."""
    file = path / "zarr.json"
    document = json.loads(file.read_bytes()) if file.is_file() else {}
    if document.get("zarr_format") != 3 or document.get("node_type") != "group":
        return _open_node_with_zarr_python(path, "")
    nodes = current_nodes(path, document)
    check_complete(path, document, nodes)
    return LocalGroup(path, "", document, nodes)


def open_with_zarr_python(path: Path | str) -> StoredGroup:
    """Open a store as ``zarr.Group``, after :func:`open_store` has checked that it is complete."""
    return as_zarr_python(open_store(Path(path)))


def _consolidated(document: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]] | None:
    """Metadata of all nodes of a store by key; None if they are not in its root."""
    return (document.get("consolidated_metadata") or {}).get("metadata")


def current_nodes(
    path: Path, document: Mapping[str, Any]
) -> Mapping[str, Mapping[str, Any]] | None:
    """Metadata of all nodes of a store with consolidated metadata, which are not believed where
    they differ from the nodes: ``anndata.io.write_elem`` leaves them as they were.
    """
    consolidated = _consolidated(document)
    if consolidated is None:
        return None
    nodes = dict(_read_nodes(path, ""))
    is_current = nodes.keys() == consolidated.keys() and all(
        _own(node) == _own(consolidated[key]) for key, node in nodes.items()
    )
    return consolidated if is_current else nodes


def _own(node: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in node.items() if name != "consolidated_metadata"}


def _read_nodes(path: Path, group: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Nodes below a group by their keys, as their own files describe them."""
    # Texts, not objects of pathlib: every opening of a store comes here.
    for child in sorted(os.listdir(f"{path}/{group}")):  # noqa: PTH208
        key = f"{group}/{child}" if group else child
        try:
            with open(f"{path}/{key}/zarr.json", "rb") as file:  # noqa: PTH123
                content = file.read()
            node = json.loads(content)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError) as error:
            raise read_error(str(path), f"{key}/zarr.json", error) from error
        yield key, node
        if node["node_type"] == "group":
            yield from _read_nodes(path, key)


def check_complete(
    path: Path | str,
    document: Mapping[str, Any],
    nodes: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Refuse a store of scatlas that lacks a file of values, which Zarr would read as zeros."""
    if not WRITER_ATTRIBUTE.items() <= document.get("attributes", {}).items():
        return
    files = list_files(path)
    if files is None:
        return
    for key, node in (nodes or _consolidated(document) or {}).items():
        if node["node_type"] != "array":
            continue
        # Ours have shards with a checksum per chunk; zarr-python, which writes the other arrays,
        # omits chunks of the fill value alone.
        first = node["codecs"][0]
        inner = first.get("configuration", {}).get("codecs", [{}])
        if first["name"] != "sharding_indexed" or inner[-1].get("name") != "crc32c":
            continue
        shard = node["chunk_grid"]["configuration"]["chunk_shape"]
        n_files = -(-node["shape"][0] // shard[0])
        rest = "/0" * (len(shard) - 1)
        missing = [i for i in range(n_files) if f"{key}/c/{i}{rest}" not in files]
        if missing:
            raise InputError(
                f"{path}: {key} lacks {len(missing):,} of {n_files:,} files, the first is "
                f"{key}/c/{missing[0]}{rest}: {REMEDY}"
            )


class LocalGroup:
    """The part of ``zarr.Group`` that scatlas uses; ``nodes`` is the consolidated metadata."""

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
        with reading(str(self._root), f"{key}/zarr.json"):
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
            import zarr

            return zarr.open_array(self._root, path=key, mode="r", zarr_format=3)

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
        size, locations = self.chunked_array.chunk_values, self.chunked_array.locations
        self.shape, self.chunks = (self.chunked_array.n_values,), (size,)
        n_chunks = locations.shard_chunks if isinstance(locations, ZarrChunks) else 0
        self.shards = (n_chunks * size,) if n_chunks else None

    @cached_property
    def dtype(self) -> np.dtype:
        """Type of the values in memory; `numpy.dtypes.StringDType` for text."""
        if self._is_text:
            return np.dtypes.StringDType()
        return self.chunked_array.dtype.newbyteorder("=")

    def __getitem__(self, rows: slice) -> np.ndarray:
        begin, end, _ = rows.indices(self.chunked_array.n_values)
        end = max(begin, end)
        if not self._is_text:
            return read_values(self.chunked_array, begin, end, dtype=self.dtype)
        return self._read_text(begin, end)

    def _read_text(self, begin: int, end: int) -> np.ndarray:
        from numcodecs import VLenUTF8

        parts = [VLenUTF8().decode(raw)[texts] for raw, texts in self._text_chunks(begin, end)]
        return np.concatenate([np.empty(0, object), *parts])

    def encoded_text(self, begin: int, end: int) -> EncodedText:
        """Texts ``begin`` to ``end`` without Python strings."""
        parts = [EncodedText.of_chunk(raw)[texts] for raw, texts in self._text_chunks(begin, end)]
        return EncodedText.join(parts)

    def _text_chunks(self, begin: int, end: int) -> Iterator[tuple[bytes, slice]]:
        """Decoded chunks, and which of their texts are wanted."""
        from numcodecs import VLenUTF8

        array, size = self.chunked_array, self.chunked_array.chunk_values
        for chunk, raw in read_text_chunks(array, *array.chunk_range(begin, end)):
            if raw is None:  # never written
                raw = bytes(VLenUTF8().encode(np.full(size, array.fill_value, object)))
            if int.from_bytes(raw[:4], "little") != size:
                raise ChunkError(f"chunk {chunk} does not hold {size:,} texts")
            yield raw, slice(max(begin - chunk * size, 0), end - chunk * size)

    def as_zarr_python(self) -> Any:
        return _open_node_with_zarr_python(self._root, self._key)


def as_zarr_python(node: Any) -> Any:
    """The same node as an object of zarr-python, for functions of other packages."""
    return node.as_zarr_python() if isinstance(node, LocalGroup | LocalArray) else node


def open_any_group(store: Any) -> Any:
    """Open a store, if possible in the order of its metadata: that of a listing differs by run."""
    import zarr

    file = store / "zarr.json" if isinstance(store, Path) else None
    if file and file.is_file():
        document = json.loads(file.read_bytes())
        if current_nodes(store, document) is not _consolidated(document):
            return zarr.open_group(store, mode="r", use_consolidated=False)
    try:
        return zarr.open_group(store, mode="r")
    except ValueError:  # the data type of an element, needed or not, is unknown to this zarr
        return zarr.open_group(store, mode="r", use_consolidated=False)


def _open_node_with_zarr_python(root: Path, key: str) -> Any:
    group = open_any_group(root)
    return group[key] if key else group


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
            values = flat_chunked_array(path, key, document)
            return RowArray(path, key, tuple(document["shape"]), values)
    except UnsupportedLayoutError:
        pass
    return as_zarr_python(store)[key]
