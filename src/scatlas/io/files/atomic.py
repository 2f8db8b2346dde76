"""Outputs that exist whole or not at all."""

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
    """Give a hidden path beside ``final`` to write to; it takes the final name on success.

    The body creates a file or a directory at the path it is given. When the body ends, it is
    renamed over ``final``, replacing an older file or directory, also one that Snakemake has
    made empty for an output inside it. When the body raises, it is removed and ``final`` stays
    as it was. What a killed run has left behind is removed before the body starts.

    The hidden names are fixed (``.{name}.partial``, ``.{name}.old``), so that the next run finds
    them: only one process may write an output at a time, which Snakemake's lock provides.

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
    aside = final.with_name(f".{final.name}.old")
    final.parent.mkdir(parents=True, exist_ok=True)
    _remove(partial)
    _remove(aside)
    try:
        yield partial
        _sync(partial)
        _replace(partial, final, aside)
    except BaseException:  # also Ctrl-C: nothing half-written may stay
        _remove(partial)
        raise


def _replace(new: Path, final: Path, aside: Path) -> None:
    if not new.is_dir() and not final.is_dir():
        new.replace(final)
        return
    try:
        # Works where `final` is absent or an empty folder.
        new.rename(final)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR}:
            raise
        # No portable call swaps two folders. A kill between these renames leaves no `final`:
        # the step counts as not done and runs again.
        final.rename(aside)
        try:
            new.rename(final)
        except OSError:
            aside.rename(final)
            raise
        _remove(aside)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Flush a file, or a Zarr store's root metadata, before it takes its final name.

    The chunks of a store are left to the kernel: flushing hundreds of gigabytes would cost more
    than the run that a power cut (not a killed job) makes necessary.
    """
    target = path / "zarr.json" if path.is_dir() else path
    if path.is_dir() and not target.exists():
        return
    handle = os.open(target, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
