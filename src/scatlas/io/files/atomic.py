"""Atomic outputs: complete, or absent."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def atomic_path(final: Path | str) -> Iterator[Path]:
    """Yield a hidden path beside ``final``, and rename it to ``final`` on success.

    The body creates a file or a directory at the hidden path. When the body ends, the result
    replaces ``final``, also an empty directory that Snakemake has made for an output inside it.
    When the body raises, the partial result is removed and ``final`` stays as it was. Leftovers of
    a killed run are removed before the body starts.

    The hidden names are fixed (``.{name}.partial``, ``.{name}.old``), so that the next run finds
    them. Only one process may write an output at a time, which Snakemake's lock guarantees.

    Parameters
    ----------
    final
        The output, a file or a directory. Its parent folders are created.

    Yields
    ------
    A path that does not exist yet, in the same folder as ``final``.

    Raises
    ------
    FileNotFoundError
        The body has ended without creating the path.
    """
    final = Path(final)
    partial = final.with_name(f".{final.name}.partial")
    backup = final.with_name(f".{final.name}.old")
    final.parent.mkdir(parents=True, exist_ok=True)
    _remove(partial)
    _remove(backup)
    try:
        yield partial
        _sync(partial)
        _replace(partial, final, backup)
    except BaseException:  # also Ctrl-C
        _remove(partial)
        raise


@contextmanager
def work_folder(out: Path) -> Iterator[Path]:
    """Yield a path beside ``out``, for files that are removed after the body."""
    # A fixed name, so that the next run removes the files of a killed one.
    work = out.with_name(f".{out.name}.work")
    shutil.rmtree(work, ignore_errors=True)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _replace(new: Path, final: Path, backup: Path) -> None:
    if not new.is_dir() and not final.is_dir():
        new.replace(final)
        return
    try:
        # Succeeds if `final` is absent or an empty folder.
        new.rename(final)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR}:
            raise
        # No portable call swaps two folders. A kill between these renames leaves no `final`, so
        # that Snakemake runs the step again.
        final.rename(backup)
        try:
            new.rename(final)
        except OSError:
            backup.rename(final)
            raise
        _remove(backup)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Flush a file, or a Zarr store's root metadata: flushing all costs more than a rerun."""
    target = path / "zarr.json" if path.is_dir() else path
    if path.is_dir() and not target.exists():
        return
    fd = os.open(target, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
