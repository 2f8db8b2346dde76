"""Nodes of a Zarr store, copied piece by piece in bounded memory to HDF5 or Zarr v2."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from scatlas.blocks import map_in_order
from scatlas.io.files.anndata_checks import is_group
from scatlas.io.files.checksums import VALUES_DIGEST
from scatlas.io.files.local_zarr import WRITER_ATTRIBUTE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    Attributes = Mapping[str, Any]

# Values of a piece: 32 MB at 8 bytes per value. A multiple of all chunks of scatlas.
_PIECE_VALUES = 2**22
# Attributes that are about the files of a store.
_FILE_ATTRIBUTES = {*WRITER_ATTRIBUTE, VALUES_DIGEST}
_INT32 = np.iinfo(np.int32)
# Values per chunk of a Zarr v2 store: a browser fetches a chunk of a gene at a time.
WEB_CHUNK_VALUES = 2**16


class Hdf5Sink:
    """An open HDF5 file. Arrays lie in one piece, which every reader maps or reads fast; those of
    text have no dtype. ``null`` is anndata's element for None.
    """

    def __init__(self, file: h5py.File) -> None:
        self._file = file

    def group(self, key: str, attributes: Attributes) -> None:
        group = self._file.require_group(key) if key else self._file
        _set_attributes(group, attributes)

    def array(
        self, key: str, shape: tuple[int, ...], dtype: np.dtype | None, attributes: Attributes
    ) -> Any:
        stored = h5py.string_dtype() if dtype is None else dtype
        array = self._file.create_dataset(key, shape=shape, dtype=stored)
        _set_attributes(array, attributes)
        return array

    def null(self, key: str, attributes: Attributes) -> None:
        _set_attributes(self._file.create_dataset(key, data=h5py.Empty("f")), attributes)


class ZarrV2Sink:
    """A new Zarr v2 store without shards, which each version of Vitessce reads."""

    def __init__(self, path: Path) -> None:
        import zarr

        self._root = zarr.create_group(path, zarr_format=2)

    def group(self, key: str, attributes: Attributes) -> None:
        group = self._root.require_group(key) if key else self._root
        group.attrs.update(dict(attributes))

    def array(
        self, key: str, shape: tuple[int, ...], dtype: np.dtype | None, attributes: Attributes
    ) -> Any:
        width = max(1, int(np.prod(shape[1:])))
        rows = max(1, WEB_CHUNK_VALUES // width)
        return self._root.create_array(
            key,
            shape=shape,
            dtype=str if dtype is None else dtype,
            chunks=tuple(max(1, n) for n in (min(rows, shape[0]), *shape[1:])) if shape else (),
            attributes=dict(attributes),
        )

    def null(self, key: str, attributes: Attributes) -> None:
        self.array(key, (), np.dtype(bool), attributes)


Sink = Hdf5Sink | ZarrV2Sink


class NodeCopy:
    """Copies nodes into ``sink``; the meter ``passed`` counts the values.

    With ``narrow`` tables and coordinates get types that browsers know: int32, float32, NaN as gap.
    """

    def __init__(self, sink: Sink, passed: Any, *, narrow: bool = False) -> None:
        self._sink = sink
        self._passed = passed
        self._narrow = narrow

    def copy(self, node: Any, key: str) -> None:
        """Copy a group with all it contains, or an array."""
        if not is_group(node):
            self._array(node, key)
            return
        encoding = node.attrs.get("encoding-type", "")
        if self._narrow and encoding.startswith("nullable-"):
            self._nullable(node, key, encoding)
            return
        self._sink.group(key, attributes(node))
        for name in sorted(node):
            self.copy(node[name], f"{key}/{name}")

    def _array(self, array: Any, key: str) -> None:
        shape, is_text = tuple(array.shape), array.dtype.kind in "OTU"
        dtype = None if is_text else np.dtype(array.dtype)
        if array.attrs.get("encoding-type") == "null":
            self._sink.null(key, attributes(array))
            return
        is_index = key.endswith(("/indptr", "/indices"))  # as SciPy needs them
        if self._narrow and dtype is not None and shape and not is_index:
            dtype = _narrow_dtype(array, dtype)
        target = self._sink.array(key, shape, dtype, attributes(array))
        if not shape:
            value = array[()]
            target[()] = str(value) if is_text else value
            return
        for rows, values in pieces(array):
            target[rows] = values.astype(object) if is_text else values.astype(dtype, copy=False)
            self._passed.update(values.size)

    def _nullable(self, node: Any, key: str, encoding: str) -> None:
        """A column with gaps, as an array: NaN in numbers, empty text."""
        values, mask = node["values"], node["mask"]
        is_text = encoding == "nullable-string-array"
        kind = "string-array" if is_text else "array"
        attributes = {"encoding-type": kind, "encoding-version": "0.2.0"}
        dtype = None if is_text else np.dtype(np.float32)
        target = self._sink.array(key, tuple(values.shape), dtype, attributes)
        for rows, piece in pieces(values):
            kept = piece.astype(object) if is_text else piece.astype(dtype)
            kept[mask[rows]] = "" if is_text else np.nan
            target[rows] = kept
            self._passed.update(2 * piece.size)


def _set_attributes(node: Any, attributes: Attributes) -> None:
    """Set attributes as anndata writes them to HDF5."""
    for name, value in attributes.items():
        kept: Any = np.bool_(value) if isinstance(value, bool) else value
        if isinstance(value, list | tuple):
            is_text = all(isinstance(item, str) for item in value)
            kept = np.array(value, h5py.string_dtype() if is_text else np.int64)
        node.attrs[name] = kept


def attributes(node: Any) -> dict[str, Any]:
    """Attributes of a node, without those about the files of a store."""
    return {name: value for name, value in dict(node.attrs).items() if name not in _FILE_ATTRIBUTES}


def pieces(array: Any) -> Iterator[tuple[slice, np.ndarray]]:
    """Rows and values of successive pieces of an array; several threads read."""
    width = max(1, int(np.prod(array.shape[1:])))
    size = max(1, _PIECE_VALUES // width)
    rows = [slice(lo, min(lo + size, array.shape[0])) for lo in range(0, array.shape[0], size)]
    with closing(map_in_order(lambda i: np.asarray(array[rows[i]]), len(rows))) as parts:
        yield from zip(rows, parts, strict=True)


def n_values(node: Any) -> int:
    """Values of a node and all below it."""
    if not is_group(node):
        return int(np.prod(node.shape)) if node.shape else 0
    return sum(n_values(node[name]) for name in node)


def _narrow_dtype(array: Any, dtype: np.dtype) -> np.dtype:
    if dtype.kind == "f":
        return np.dtype(np.float32)
    if dtype.kind not in "iu" or dtype.itemsize < 4 or dtype == np.int32:
        return dtype
    for _, values in pieces(array):
        if values.size and (values.max() > _INT32.max or values.min() < _INT32.min):
            return np.dtype(np.float32)
    return np.dtype(np.int32)


def categories(table: Any) -> Mapping[str, list[str]]:
    """Categories of the categorical columns of a table, by column."""
    names = {}
    for name in table.attrs["column-order"]:
        column = table[name]
        if is_group(column) and column.attrs.get("encoding-type") == "categorical":
            names[name] = [str(value) for value in np.asarray(column["categories"][:])]
    return names
