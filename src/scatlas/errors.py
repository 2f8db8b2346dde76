"""Errors that end a job with one clear sentence for the user."""

from __future__ import annotations


class ScatlasError(Exception):
    """Base of every error that scatlas raises on purpose."""


class InputError(ScatlasError, ValueError):
    """Data that cannot be used: the message names the file, the element and the mend."""


class ConfigError(ScatlasError, ValueError):
    """A config or plate sheet that cannot be used: the message names the key and the mend."""


class TooLargeError(ScatlasError, MemoryError):
    """A result that does not fit the memory: the message has the arithmetic."""


class DiskError(ScatlasError, OSError):
    """A disk without space: the message names the disk and the mend."""


class GpuError(ScatlasError, RuntimeError):
    """A GPU that cannot be used: the message says why and how to mend it."""
