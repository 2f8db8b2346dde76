"""An h5ad file that stays open while it is read lazily, so that this process cannot empty it.

``AnnData.write_h5ad`` truncates its file before it reads what it is to write. HDF5 refuses to
truncate or change a file that the same process has open for reading.
"""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py

if TYPE_CHECKING:
    from scatlas.io.files.anndata_file import Store

_HELD: weakref.WeakSet[OpenFile] = weakref.WeakSet()


class OpenFile:
    """Keeps a local h5ad file open for as long as something refers to this object.

    Parameters
    ----------
    path
        The file.
    """

    def __init__(self, path: str) -> None:
        self._inode, self._stamp = _facts(path)
        self._close = weakref.finalize(self, h5py.File(path, "r").close)
        _HELD.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Become None in another process: its blocks open the file themselves."""
        return type(None), ()

    def release_if_changed(self, inode: tuple[int, int], stamp: tuple[int, int]) -> None:
        """Close the file if it is this one and was changed meanwhile."""
        if self._inode == inode and self._stamp != stamp:
            self._close()


def hold(store: Store) -> OpenFile | None:
    """Keep a store open; None for what HDF5 does not open from a local disk."""
    return OpenFile(store.path) if store.kind == "h5ad" and not store.is_url else None


def release_changed(path: str) -> None:
    """Close a file that another process has changed in place since it is held.

    HDF5 would take it for the file that it has open, and find the old structure in the new bytes.
    """
    facts = _facts(path)
    for held in list(_HELD):
        held.release_if_changed(*facts)


def _facts(path: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Which file it is, and its time and size."""
    stat = Path(path).stat()
    return (stat.st_dev, stat.st_ino), (stat.st_mtime_ns, stat.st_size)
