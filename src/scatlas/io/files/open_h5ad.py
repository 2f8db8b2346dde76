"""The opener of HDF5 files, and files that stay open for lazy arrays.

``AnnData.write_h5ad`` truncates its file before it computes the lazy arrays to write. HDF5 refuses
to truncate or change a file that the same process has open for reading: lazy arrays hold theirs.
"""

from __future__ import annotations

import errno
import re
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py

from scatlas.errors import InputError, ScatlasError
from scatlas.io.files.read_errors import read_error

if TYPE_CHECKING:
    from scatlas.io.files.anndata_file import Store

_OPEN_FILES: weakref.WeakSet[OpenFile] = weakref.WeakSet()
# What the operating system answers if another program has locked a file.
_HELD = {errno.EAGAIN, errno.EACCES}


def open_hdf5(path: str, source: Any = None) -> h5py.File:
    """Open an HDF5 file for reading: a path, or a file object of the address ``path``."""
    try:
        if source is None:
            close_if_changed(path)
        return h5py.File(source or path, "r")
    except (OSError, RuntimeError, KeyError) as error:
        raise _refusal(path, error) from error


def _refusal(path: str, error: Exception) -> ScatlasError:
    """Error for a file that libhdf5 does not open."""
    text = " ".join(str(error).split())
    lock = re.search(r"unable to lock file, errno = (\d+)", text)
    if (lock and int(lock[1]) in _HELD) or "already open for write" in text:
        return InputError(
            f"{path}: another program has it open to write, or was killed meanwhile: wait until "
            "that program ends, or write the file again"
        )
    if lock:
        return InputError(
            f"{path}: its file system has no locks, which HDF5 asks for ({text}): "
            "set the environment variable HDF5_USE_FILE_LOCKING=FALSE"
        )
    if sizes := re.search(r"truncated file: eof = (\d+),.*stored_eof = (\d+)", text):
        what = f"the file is truncated ({int(sizes[1]):,} of {int(sizes[2]):,} bytes)"
        return InputError(f"{path}: {what}: copy or download it again")
    return read_error(path, "the file", error)


class OpenFile:
    """Handle that keeps a local h5ad file open until nothing refers to it."""

    def __init__(self, path: str) -> None:
        self._inode, self._stamp = _inode_and_stamp(path)
        self._close = weakref.finalize(self, open_hdf5(path).close)
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
    """Close a file that another process has changed in place: HDF5 would interpret the new bytes by
    the old structure.
    """
    inode_and_stamp = _inode_and_stamp(path)
    for file in list(_OPEN_FILES):
        file.close_if_changed(*inode_and_stamp)


def _inode_and_stamp(path: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Device and inode, and time and size."""
    stat = Path(path).stat()
    return (stat.st_dev, stat.st_ino), (stat.st_mtime_ns, stat.st_size)
