"""Check that a file is AnnData: attributes and lengths of its elements, before they are read."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np

from scatlas.errors import InputError
from scatlas.io.files.anndata_file import reading


def attribute(elem: Any, name: str, default: str = "") -> str:
    """Text of an attribute, which R stores as an array of one, and old files hold as bytes."""
    value = elem.attrs.get(name, default)
    if isinstance(value, np.ndarray | list) and len(value) == 1:
        value = value[0]
    return attribute_text(value)


def attribute_text(value: Any) -> str:
    """Text of an attribute, which old files hold as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


STRUCTURE = "the structure of the file"


def required_attribute(path: str, root: Any, key: str, name: str) -> Any:
    """An attribute without which an element cannot be understood.

    Raises
    ------
    InputError
        It is missing.
    """
    if name not in root[key].attrs:
        msg = (
            f"{path}: {key} has no attribute {name!r}, without which it cannot be read: write the "
            "file again with AnnData.write_h5ad or AnnData.write_zarr"
        )
        raise InputError(msg)
    return attribute(root[key], name)


def is_group(element: Any) -> bool:
    """Whether an element is a group, in HDF5 or Zarr."""
    return not hasattr(element, "dtype")


def check_anndata(path: str, root: Any) -> None:
    """Refuse files that are HDF5 or Zarr, but not AnnData.

    Old AnnData files do not say so at their root; ``obs`` and ``var`` with an encoding are enough.

    Raises
    ------
    InputError
        Naming what is there instead.
    """
    if is_group(root):
        encoding = attribute(root, "encoding-type", "anndata")
        frames = [name for name in ("obs", "var") if name in root and is_group(root[name])]
        if encoding == "anndata" and len(frames) == 2:
            return
        there = ", ".join(sorted(root)[:8]) or "nothing"
        if encoding != "anndata":
            there = f"an object of encoding {encoding!r}"
        if isinstance(root.get("obs"), h5py.Dataset):
            msg = (
                f"{path}: obs is stored as AnnData before 0.7 did: read it with "
                "anndata.read_h5ad, write it again, and use the new file"
            )
            raise InputError(msg)
    else:
        there = "a bare array"
    msg = (
        f"{path}: not an AnnData file (it holds {there}; obs and var are needed): "
        "give a file that AnnData.write_h5ad or AnnData.write_zarr has written"
    )
    raise InputError(msg)


def frame_length(path: str, root: Any, name: str) -> int:
    """Rows of the data frame ``obs`` or ``var``, without reading it."""
    with reading(path, f"the index of {name}"):
        frame = root[name]
        index = frame[required_attribute(path, root, name, "_index")]
        if is_group(index):  # categorical, or strings with missing values
            index = index["codes" if "codes" in index else "values"]
        return int(index.shape[0])
