"""Small plates on disk, and damage to them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anndata as ad
import h5py

Spoil = Callable[[h5py.File], None]


def write(adata: ad.AnnData, path: Path, zarr_format: int = 2, **options: Any) -> Path:
    """Write h5ad or Zarr, as the suffix says, without anndata's warnings: names, new defaults."""
    with (
        warnings.catch_warnings(action="ignore"),
        ad.settings.override(zarr_write_format=zarr_format),
    ):
        getattr(adata, f"write_{path.suffix[1:]}")(path, **options)
    return path


def attribute(element: str, name: str, value: Any = None) -> Spoil:
    """Replace an attribute, or remove it."""

    def spoil(file: h5py.File) -> None:
        del file[element].attrs[name]
        if value is not None:
            file[element].attrs[name] = value

    return spoil


def array(part: str, values: Any = None) -> Spoil:
    """Replace an array but not its attributes, or remove it."""

    def spoil(file: h5py.File) -> None:
        kept = dict(file[part].attrs)
        del file[part]
        if values is not None:
            file[part] = values
            file[part].attrs.update(kept)

    return spoil


def spoiled(path: Path, *spoils: Spoil) -> Path:
    """Damage an HDF5 file."""
    with h5py.File(path, "r+") as file:
        for spoil in spoils:
            spoil(file)
    return path


def flip(path: Path, offset: int, size: int) -> None:
    """Turn each bit of some bytes."""
    content = bytearray(path.read_bytes())
    content[offset : offset + size] = bytes(byte ^ 0xFF for byte in content[offset : offset + size])
    path.write_bytes(content)
