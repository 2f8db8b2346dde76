"""AnnData files, found and opened: h5ad or Zarr, local path or URL.

``AnnData.write_h5ad`` truncates its file before it computes the lazy arrays to write. HDF5 refuses
to truncate or change a file that the same process has open for reading: lazy arrays hold theirs.
"""

from __future__ import annotations

import errno
import json
import math
import re
import time
import weakref
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import h5py

from scatlas.errors import InputError, ScatlasError
from scatlas.io.files.anndata_checks import STRUCTURE
from scatlas.io.files.listing import file_stamp, filesystem, folder_stamp
from scatlas.io.files.local_zarr import check_complete, open_any_group, open_store
from scatlas.io.files.read_errors import (
    REMEDY,
    read_error,
    reading,
    way_out_of_file,
    way_out_of_folder,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_ZARR_ROOTS = ("zarr.json", ".zgroup", ".zmetadata")
# Files whose time and size change when an AnnData Zarr store is rewritten. They alone are checked
# in remote stores, and in local ones between two checks of all files.
_ZARR_STAMPS = (*_ZARR_ROOTS, "X/zarr.json", "X/.zattrs", "X/.zarray")
# Filters in every HDF5 build of h5py; hdf5plugin has the others.
_HDF5_FILTERS = frozenset({1, 2, 3, 4, 5, 6, 32000})
# Files without damage that hangs libhdf5, see :mod:`scatlas.io.files.hdf5_probe`, and Zarr stores
# at an address without a missing file: one look per process.
_PROBED: set[Store] = set()
# Time of the next check of all files of a Zarr store, which takes 60 ms for 10,000 files. A pause
# of 50 times the duration limits the checks, one per block, to 2% of the time.
_NEXT_CHECK: dict[Store, float] = {}
_PAUSE_PER_CHECK = 50
_OPEN_FILES: weakref.WeakSet[OpenFile] = weakref.WeakSet()
# What the operating system answers if another program has locked a file.
_HELD = {errno.EAGAIN, errno.EACCES}


@dataclass(frozen=True)
class Store:
    """An AnnData file that exists, not opened yet; small and picklable."""

    path: str  # as the user gave it: a local path or a URL
    kind: Literal["h5ad", "zarr"]
    # Changes with the file: time and size, for a local Zarr store those of every file.
    stamp: str

    @classmethod
    def find(cls, path: Path | str) -> Store:
        """Find the file at a path or a URL; InputError if missing, or neither HDF5 nor Zarr."""
        if "://" in str(path):
            url = str(path)
            kind = _remote_kind(url)
            return cls(url, kind, _remote_stamp(url, kind))
        path = Path(path)
        kind = _local_kind(path)
        with reading(str(path), "the list of its files"):
            return cls(str(path), kind, _local_stamp(path, kind))

    @property
    def is_url(self) -> bool:
        """Whether fsspec opens the file."""
        return "://" in self.path

    def check_unchanged(self, *, at_end: bool = False) -> None:
        """Refuse a local file that has changed since it was opened: offsets in memory may not fit.
        ``at_end`` checks every file of a Zarr store, even shortly after the last check.
        """
        if self.is_url:
            return
        try:
            changed = self._is_changed(at_end)
        except FileNotFoundError:
            changed = True
        if changed:
            msg = f"{self.path}: the file has changed since it was opened: open it again"
            raise InputError(msg)

    def _is_changed(self, at_end: bool) -> bool:
        path = Path(self.path)
        if self.kind == "h5ad":
            return file_stamp(path) != self.stamp
        if not self.stamp.startswith(_root_stamp(path)):
            return True
        start = time.monotonic()
        if start < _NEXT_CHECK.get(self, 0) and not at_end:
            return False
        _NEXT_CHECK[self] = math.inf  # other threads go on reading meanwhile
        try:
            return _local_stamp(path, self.kind) != self.stamp
        finally:
            end = time.monotonic()
            _NEXT_CHECK[self] = end + _PAUSE_PER_CHECK * (end - start)

    @contextmanager
    def open(self) -> Iterator[Any]:
        """Open it: ``h5py.File``, `scatlas.io.files.local_zarr.LocalGroup` or ``zarr.Group``."""
        with ExitStack() as stack:
            yield self.open_on(stack)

    def open_on(self, stack: ExitStack) -> Any:
        """Open the file; ``stack`` closes it."""
        if self.kind == "h5ad":
            return self._open_hdf5(stack)
        with reading(self.path, "the Zarr metadata"):
            if not self.is_url:
                return _open_local(self)
            import zarr

            if self not in _PROBED:
                files, inner = filesystem(self.path)
                metadata = f"{inner.rstrip('/')}/zarr.json"
                if files.exists(metadata):
                    check_complete(self.path, json.loads(files.cat_file(metadata)))
                _PROBED.add(self)
            remote = zarr.storage.FsspecStore.from_url(self.path, read_only=True)
            return open_any_group(remote)

    def _open_hdf5(self, stack: ExitStack) -> h5py.File:
        source: Any = None
        is_new = not self.is_url and self not in _PROBED
        text_is_sound = False
        if is_new:
            # Imports Numba, half a second, which Zarr stores do not need.
            from scatlas.io.files.hdf5_probe import probe_structure

            text_is_sound = probe_structure(self.path)
        if self.is_url:
            fs, inner = filesystem(self.path)
            source = stack.enter_context(fs.open(inner, "rb"))
        file = stack.enter_context(open_hdf5(self.path, source))
        if is_new:
            if not text_is_sound:
                self._check_text(file)
            _PROBED.add(self)
        return file

    def _check_text(self, file: h5py.File) -> None:
        from scatlas.io.files.hdf5_probe import find_damaged_text

        with reading(self.path, STRUCTURE):
            offset = find_damaged_text(self.path, file)
        if offset is not None:
            raise InputError(f"{self.path}: the text at byte {offset:,} is damaged: {REMEDY}")


@lru_cache(maxsize=64)
def _open_local(store: Store) -> Any:
    """A local Zarr store, whose metadata are read and files checked once: its stamp changes with
    each of its files.
    """
    return open_store(Path(store.path))


def _local_kind(path: Path) -> Literal["h5ad", "zarr"]:
    if not path.exists():
        raise InputError(f"{path}: no such file: correct the path")
    if path.is_dir():
        roots = [path / name for name in _ZARR_ROOTS if (path / name).is_file()]
        if not roots:
            way_out = way_out_of_folder(path)
            way_out = way_out or "give the folder that holds one of them, or an h5ad file"
            what = "a folder with neither zarr.json nor .zgroup is not a Zarr store"
            raise InputError(f"{path}: {what}: {way_out}")
        if way_out := way_out_of_file(roots[0]):
            raise InputError(f"{roots[0]}: no metadata of a Zarr store: {way_out}")
        return "zarr"
    hint = way_out_of_file(path)
    if hint is None and h5py.is_hdf5(path):
        return "h5ad"
    hint = hint or "give an AnnData file, as AnnData.write_h5ad or AnnData.write_zarr writes it"
    raise InputError(f"{path}: neither an HDF5 file nor a Zarr store: {hint}")


def _local_stamp(path: Path, kind: str) -> str:
    return file_stamp(path) if kind == "h5ad" else f"{_root_stamp(path)} {folder_stamp(path)}"


def _root_stamp(path: Path) -> str:
    files = (path / name for name in _ZARR_STAMPS)
    return " ".join(file_stamp(file) for file in files if file.exists())


def _remote_kind(url: str) -> Literal["h5ad", "zarr"]:
    fs, inner = filesystem(url)
    with reading(url, "the address"):
        roots = () if inner.endswith((".h5ad", ".h5", ".loom")) else _ZARR_ROOTS
        if any(fs.exists(f"{inner.rstrip('/')}/{name}") for name in roots):
            return "zarr"
        exists = fs.exists(inner)
    if not exists:
        raise InputError(f"{url}: no such file: correct the address")
    return "h5ad"


def _remote_stamp(url: str, kind: str) -> str:
    fs, inner = filesystem(url)
    files = [inner] if kind == "h5ad" else [f"{inner.rstrip('/')}/{n}" for n in _ZARR_STAMPS]
    with reading(url, "the address"):
        return " ".join(str(fs.ukey(file)) for file in files if fs.exists(file))


def load_filters(path: str, element: Any) -> None:
    """Register the HDF5 filters that a dataset, or those of a group, need; Zarr needs none."""
    if isinstance(element, h5py.Group):
        for child in element.values():
            load_filters(path, child)
    if not isinstance(element, h5py.Dataset):
        return
    properties = element.id.get_create_plist()
    codes = {properties.get_filter(i)[0] for i in range(properties.get_nfilters())}
    if codes <= _HDF5_FILTERS:
        return
    import hdf5plugin  # noqa: F401  (importing it registers its filters)

    missing = sorted(code for code in codes if not h5py.h5z.filter_avail(code))
    if missing:
        raise InputError(
            f"{path}: {element.name} is compressed with HDF5 filter {missing[0]}, which is not "
            "installed: write the file again with compression='gzip'"
        )


def open_hdf5(path: str, source: Any = None) -> h5py.File:
    """Open an HDF5 file for reading: a path, or a file object of the address ``path``."""
    try:
        if source is None:
            close_if_changed(path)
        return h5py.File(source or path, "r")
    except (OSError, RuntimeError, KeyError) as error:
        raise _refusal(path, error) from error


def _refusal(path: str, error: Exception) -> ScatlasError:
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
    """Close a file that another process has changed: HDF5 would read it by the old structure."""
    inode_and_stamp = _inode_and_stamp(path)
    for file in list(_OPEN_FILES):
        file.close_if_changed(*inode_and_stamp)


def _inode_and_stamp(path: str) -> tuple[tuple[int, int], tuple[int, int]]:
    stat = Path(path).stat()
    return (stat.st_dev, stat.st_ino), (stat.st_mtime_ns, stat.st_size)
