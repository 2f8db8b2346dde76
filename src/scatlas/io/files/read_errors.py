"""Errors of readers, and failures to read an element as one sentence that names it."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

from scatlas.errors import (
    DiskError,
    InputError,
    MissingPackageError,
    ScatlasError,
    TooLargeError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# What a user can do about damaged data; :mod:`scatlas.workflow.script` replaces it for outputs.
REMEDY = "copy or download the file again, or write it again from its source"
# What packages say about types that newer versions of them may know.
_UNKNOWN = {"No Zarr data type": "zarr", "No read method registered": "anndata"}
MORE_MEMORY = "needs more memory than there is: give the job more memory"


class UnsupportedLayoutError(Exception):
    """Only h5py or zarr-python can read an array; the message is the reason."""


def permission_error(path: Path | str, element: str = "the file") -> InputError:
    """Error for a file or element that the user may not read."""
    return InputError(f"{path}: no permission to read {element}: ask the owner for read access")


@contextmanager
def reading(path: str, element: str) -> Iterator[None]:
    """Turn any failure to decode an element into the error that :func:`read_error` names."""
    try:
        yield
    except ScatlasError:
        raise
    # h5py, zarr, numcodecs and anndata raise a dozen classes here, some of them private.
    except Exception as error:
        raise read_error(path, element, error) from error


def read_error(path: str, element: str, error: Exception) -> ScatlasError:
    """Error for a failed read. Only a decoder's refusal says that data are damaged: without a
    package, memory or a disk that works, a plate is no bad input, which would be left out.
    """
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    code = getattr(error, "errno", None)
    # Of numcodecs and zarr, which are not imported here.
    if isinstance(error, ImportError) or type(error).__name__ == "UnknownCodecError":
        msg = f"{path}: {element} needs a package that does not load ({reason}): install it"
        return MissingPackageError(msg)
    if isinstance(error, MemoryError) or code == errno.ENOMEM:
        return TooLargeError(f"{path}: {element} {MORE_MEMORY}")
    if isinstance(error, PermissionError):
        return permission_error(path, element)
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        msg = f"{path}: {element} cannot be read, as a file is missing ({reason}): {REMEDY}"
        return InputError(msg)
    # Damaged bytes name places that no file has: the system calls these arguments invalid.
    by_system = isinstance(error, OSError) and code not in (None, errno.EINVAL)
    if by_system or isinstance(error, TimeoutError | ConnectionError):
        msg = (
            f"{path}: {element} cannot be read, as the system reports ({reason}): check the disk "
            "or the network, and give the same command again"
        )
        return DiskError(msg)
    msg = f"{path}: {element} cannot be read ({reason}): the data are damaged; {REMEDY}"
    for words, package in _UNKNOWN.items():
        if words in reason:
            what = f"{element} cannot be read, as {package} does not know its type ({reason})"
            msg = f"{path}: {what}: update the package {package}, or write the file without it"
    return InputError(msg)
