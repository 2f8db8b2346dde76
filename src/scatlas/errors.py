"""Errors that end a job with one clear sentence for the user."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class ScatlasError(Exception):
    """Base of every error that scatlas raises on purpose."""


class InputError(ScatlasError, ValueError):
    """Data that cannot be used: the message names the file, the element and the mend."""


@contextmanager
def about(subject: str) -> Iterator[None]:
    """Name what an `InputError` is about, where its sentence does not: many jobs share a log."""
    try:
        yield
    except InputError as error:
        if subject in str(error):
            raise
        msg = f"{subject}: {error}"
        raise InputError(msg) from error


class ConfigError(ScatlasError, ValueError):
    """A config or plate sheet that cannot be used: the message names the key and the mend."""


class TooLargeError(ScatlasError, MemoryError):
    """A result that does not fit the memory: the message has the arithmetic."""


class DiskError(ScatlasError, OSError):
    """A disk without space: the message names the disk and the mend."""


class GpuError(ScatlasError, RuntimeError):
    """A GPU that cannot be used: the message says why and how to mend it."""
