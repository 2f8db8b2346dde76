"""h5ad files that stay open for lazy arrays, so that this process cannot empty them.

``AnnData.write_h5ad`` truncates its file before it computes the lazy arrays to write. HDF5 refuses
to truncate or change a file that the same process has open for reading.
"""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py

if TYPE_CHECKING:
    from scatlas.io.files.anndata_file import Store

_OPEN_FILES: weakref.WeakSet[OpenFile] = weakref.WeakSet()


class OpenFile:
    """Handle that keeps a local h5ad file open until nothing refers to it.

    Parameters
    ----------
    path
        The file.
    """

    def __init__(self, path: str) -> None:
        self._inode, self._stamp = _inode_and_stamp(path)
        self._close = weakref.finalize(self, h5py.File(path, "r").close)
        _OPEN_FILES.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Become None in another process, whose blocks open the file themselves."""
        return type(None), ()

    def close_if_changed(self, inode: tuple[int, int], stamp: tuple[int, int]) -> None:
        """Close the file if it has this inode and another stamp."""
        if self._inode == inode and self._stamp != stamp:
            self._close()


def keep_open(store: Store) -> OpenFile | None:
    """Open a local h5ad file until nothing refers to the handle; None for other stores."""
    return OpenFile(store.path) if store.kind == "h5ad" and not store.is_url else None


def close_if_changed(path: str) -> None:
    """Close a file that another process has changed in place since this one opened it.

    Otherwise HDF5 would reuse the open file and interpret the new bytes by the old structure.
    """
    inode_and_stamp = _inode_and_stamp(path)
    for file in list(_OPEN_FILES):
        file.close_if_changed(*inode_and_stamp)


def _inode_and_stamp(path: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Device and inode, and time and size."""
    stat = Path(path).stat()
    return (stat.st_dev, stat.st_ino), (stat.st_mtime_ns, stat.st_size)
