"""Stamps of local AnnData files and stores (time and size), which change when the data do."""

from __future__ import annotations

import hashlib
import os
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def stamp(path: Path | str) -> str:
    """Stamp of a plate: of the file, or of all files of the store or of a pattern."""
    try:
        if has_magic(str(path)) and not Path(path).exists():
            stamps = [f"{name} {file_stamp(name)}" for name in sorted(glob(str(path)))]  # noqa: PTH207
            return hashlib.blake2b("\n".join(stamps).encode(), digest_size=8).hexdigest()
        return folder_stamp(path) if Path(path).is_dir() else file_stamp(path)
    except OSError as error:
        return str(error)  # the step that reads the plate raises an InputError


def file_stamp(path: Path | str) -> str:
    """Modification time (ns) and size (bytes) of one file."""
    return _time_and_size(Path(path).stat())


def _time_and_size(stat: os.stat_result) -> str:
    return f"{stat.st_mtime_ns} {stat.st_size}"


def folder_stamp(folder: Path | str) -> str:
    """Hash of relative path, time and size of every file in a folder: writers change a Zarr store
    chunk by chunk, and no file of it records changes of others. 6 ms per 1,000 files.
    """
    files = walk_files(folder)
    lines = "\n".join(sorted(f"{name} {_time_and_size(entry.stat())}" for name, entry in files))
    return hashlib.blake2b(lines.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def walk_files(folder: Path | str, prefix: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield relative path and entry of every file in a folder, also behind links, in a fifth of the
    time of ``os.walk`` with ``pathlib``.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from walk_files(entry.path, f"{prefix}{entry.name}/")
            else:
                yield f"{prefix}{entry.name}", entry
