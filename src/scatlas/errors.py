"""Errors that end a job with one clear sentence for the user."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class ScatlasError(Exception):
    """Base class of the errors of scatlas."""


class InputError(ScatlasError, ValueError):
    """Unusable data; the message names the file, the element and the remedy."""


@contextmanager
def prefix_errors(subject: str) -> Iterator[None]:
    """Prefix an `InputError` with its subject if it lacks it, because many jobs share a log."""
    try:
        yield
    except InputError as error:
        if subject in str(error):
            raise
        raise InputError(f"{subject}: {error}") from error


# Packages whose errors come from CUDA.
_GPU_PACKAGES = ("cupy", "cupyx", "cupy_backends", "rmm")


@contextmanager
def explain_gpu_errors(doing: str) -> Iterator[None]:
    """Turn an error of CUDA, its libraries or its memory into a sentence; others pass."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        ours = type(error).__module__.partition(".")[0] in _GPU_PACKAGES
        # RMM raises Python's own MemoryError.
        if isinstance(error, ScatlasError) or not (ours or "bad_alloc" in str(error)):
            raise
        reason = str(error).partition("\n")[0]
        if isinstance(error, MemoryError):
            raise TooLargeError(
                f"the GPU's memory is too small for {doing} ({reason}): free it, give X as a Dask "
                "array of smaller blocks, or move it with scatlas.get.anndata_to_CPU"
            ) from error
        raise GpuError(
            f"{doing} failed on the GPU ({type(error).__name__}: {reason}): move X with "
            "scatlas.get.anndata_to_CPU, and check the driver with nvidia-smi"
        ) from error


class ConfigError(ScatlasError, ValueError):
    """Unusable config or plate sheet; the message names the key and the remedy."""


class TooLargeError(ScatlasError, MemoryError):
    """Result larger than the memory; the message has the arithmetic."""


class MissingPackageError(ScatlasError, ImportError):
    """A package is missing or does not load; the message names it."""


class DiskError(ScatlasError, OSError):
    """Full or failed disk; the message names the disk and the remedy."""


class GpuError(ScatlasError, RuntimeError):
    """Unusable GPU; the message has the reason and the remedy."""
