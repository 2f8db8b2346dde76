"""Check that a file is AnnData, by attributes and lengths of its elements."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from scatlas.errors import InputError
from scatlas.io.files.local_zarr import as_zarr_python
from scatlas.io.files.read_errors import reading, way_out_of_store

if TYPE_CHECKING:
    from scatlas.io.files.local_zarr import StoredGroup

# Element that messages name when the file as a whole is damaged.
STRUCTURE = "the structure of the file"
# Attributes of AnnData's encodings that have one value.
_SINGLE = ("encoding-type", "encoding-version", "_index", "ordered")


def attribute(elem: Any, name: str, default: str = "") -> str:
    """Text of an attribute; R stores it as an array of one, old files as bytes."""
    value = elem.attrs.get(name, default)
    if isinstance(value, np.ndarray | list) and len(value) == 1:
        value = value[0]
    return decode_text(value)


def decode_text(value: Any) -> str:
    """Text of an attribute, which old files store as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def for_anndata(node: Any) -> Any:
    """The node as anndata needs it, in memory if R stored its attributes as arrays of one."""
    node = as_zarr_python(node)
    if not isinstance(node, h5py.Group | h5py.Dataset):
        return node
    found: list[tuple[str, str]] = []

    def look(key: str, element: h5py.Group | h5py.Dataset) -> None:
        found.extend((key, name) for name in _SINGLE if np.ndim(element.attrs.get(name)) == 1)

    look(".", node)
    if isinstance(node, h5py.Group):
        node.visititems(look)
    if not found:
        return node
    file = h5py.File(io.BytesIO(), "w")
    file.copy(node, "copy")
    for key, name in found:
        attributes = file["copy"].attrs if key == "." else file["copy"][key].attrs
        (value,) = attributes[name]
        attributes[name] = decode_text(value) if isinstance(value, str | bytes) else value
    return file["copy"]


def required_attribute(path: str, root: StoredGroup, key: str, name: str) -> str:
    """Text of an attribute that the reader needs; it is an error if it is missing."""
    if name not in root[key].attrs:
        raise InputError(
            f"{path}: {key} has no attribute {name!r}, without which it cannot be read: write the "
            "file again with AnnData.write_h5ad or AnnData.write_zarr"
        )
    return attribute(root[key], name)


def is_group(element: Any) -> bool:
    return not hasattr(element, "dtype")


def check_anndata(path: str, root: StoredGroup) -> None:
    """Refuse HDF5 and Zarr files that are not AnnData; the root of old AnnData has no encoding."""
    if is_group(root):
        encoding = attribute(root, "encoding-type", "anndata")
        frames = [name for name in ("obs", "var") if name in root and is_group(root[name])]
        if encoding == "anndata" and len(frames) == 2:
            return
        content = ", ".join(sorted(root)[:8]) or "nothing"
        if encoding != "anndata":
            content = f"an object of encoding {encoding!r}"
        if "obs" in root and not is_group(root["obs"]):
            raise InputError(
                f"{path}: obs is stored as in AnnData before 0.7: read it with "
                "anndata.read_h5ad or read_zarr, write it again, and use the new file"
            )
    else:
        content = "a bare array"
    way_out = way_out_of_store(path, root) if is_group(root) else None
    way_out = way_out or "give a file that AnnData.write_h5ad or AnnData.write_zarr has written"
    msg = f"{path}: not an AnnData file (it holds {content}; obs and var are needed): {way_out}"
    raise InputError(msg)


def table_lengths(path: str, root: StoredGroup) -> tuple[int, int]:
    return frame_length(path, root, "obs"), frame_length(path, root, "var")


def check_not_empty(path: str, shape: tuple[int, int]) -> None:
    for n, name, frame in zip(shape, ("cells", "genes"), ("obs", "var"), strict=True):
        if n == 0:
            raise InputError(f"{path}: {frame} is empty, the plate has no {name}: leave it out")


def frame_length(path: str, root: StoredGroup, name: str) -> int:
    """Number of rows of ``obs`` or ``var``, from the shape of its index."""
    with reading(path, f"the index of {name}"):
        frame = root[name]
        index = frame[required_attribute(path, root, name, "_index")]
        if is_group(index):  # categorical, or strings with missing values
            index = index["codes" if "codes" in index else "values"]
        return int(index.shape[0])
