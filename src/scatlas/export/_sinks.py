"""Files into which nodes of a Zarr store are copied: HDF5, and Zarr v2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import h5py
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# Values per chunk of a Zarr v2 store: a browser fetches a chunk of a gene at a time.
WEB_CHUNK_VALUES = 2**16


class Sink(Protocol):
    """A file that is being written."""

    def group(self, key: str, attributes: Mapping[str, Any]) -> None:
        """Create a group; an empty key is the root."""

    def array(
        self,
        key: str,
        shape: tuple[int, ...],
        dtype: np.dtype | None,
        attributes: Mapping[str, Any],
    ) -> Any:
        """Create an array that takes slices; ``dtype`` is None for text."""

    def null(self, key: str, attributes: Mapping[str, Any]) -> None:
        """Create the element of anndata for None."""


class Hdf5Sink:
    """An open HDF5 file. Arrays lie in one piece, which every reader maps or reads fast."""

    def __init__(self, file: h5py.File) -> None:
        self._file = file

    def group(self, key: str, attributes: Mapping[str, Any]) -> None:
        """Create a group; an empty key is the root."""
        group = self._file.require_group(key) if key else self._file
        _set_attributes(group, attributes)

    def array(
        self,
        key: str,
        shape: tuple[int, ...],
        dtype: np.dtype | None,
        attributes: Mapping[str, Any],
    ) -> Any:
        """Create an array that takes slices; ``dtype`` is None for text."""
        stored = h5py.string_dtype() if dtype is None else dtype
        array = self._file.create_dataset(key, shape=shape, dtype=stored)
        _set_attributes(array, attributes)
        return array

    def null(self, key: str, attributes: Mapping[str, Any]) -> None:
        """Create the element of anndata for None."""
        _set_attributes(self._file.create_dataset(key, data=h5py.Empty("f")), attributes)


class ZarrV2Sink:
    """A new Zarr v2 store without shards, which each version of Vitessce reads."""

    def __init__(self, path: Path) -> None:
        import zarr

        self._root = zarr.create_group(path, zarr_format=2)

    def group(self, key: str, attributes: Mapping[str, Any]) -> None:
        """Create a group; an empty key is the root."""
        group = self._root.require_group(key) if key else self._root
        group.attrs.update(dict(attributes))

    def array(
        self,
        key: str,
        shape: tuple[int, ...],
        dtype: np.dtype | None,
        attributes: Mapping[str, Any],
    ) -> Any:
        """Create an array that takes slices; ``dtype`` is None for text."""
        width = max(1, int(np.prod(shape[1:])))
        rows = max(1, WEB_CHUNK_VALUES // width)
        return self._root.create_array(
            key,
            shape=shape,
            dtype=str if dtype is None else dtype,
            chunks=tuple(max(1, n) for n in (min(rows, shape[0]), *shape[1:])) if shape else (),
            attributes=dict(attributes),
        )

    def null(self, key: str, attributes: Mapping[str, Any]) -> None:
        """Create the element of anndata for None."""
        self.array(key, (), np.dtype(bool), attributes)


def _set_attributes(node: Any, attributes: Mapping[str, Any]) -> None:
    """Set attributes as anndata writes them to HDF5."""
    for name, value in attributes.items():
        kept: Any = np.bool_(value) if isinstance(value, bool) else value
        if isinstance(value, list | tuple):
            is_text = all(isinstance(item, str) for item in value)
            kept = np.array(value, h5py.string_dtype() if is_text else np.int64)
        node.attrs[name] = kept
