"""Errors of readers, and failures to read an element as one sentence that names it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from scatlas.errors import InputError, ScatlasError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# What a user can do about damaged data; :mod:`scatlas.workflow.script` replaces it for outputs.
REMEDY = "copy or download the file again, or write it again from its source"


class UnsupportedLayoutError(Exception):
    """Only h5py or zarr-python can read an array; the message is the reason."""


def permission_error(path: Path | str, element: str = "the file") -> InputError:
    """Error for a file or element that the user may not read."""
    return InputError(f"{path}: no permission to read {element}: ask the owner for read access")


@contextmanager
def reading(path: str, element: str) -> Iterator[None]:
    """Turn any failure to decode an element into an `InputError` that names it."""
    try:
        yield
    except ScatlasError:
        raise
    except MemoryError as error:
        # Nearly always a damaged length, because all reads are of bounded size.
        msg = (
            f"{path}: {element} needs more memory than there is: the data are damaged, or the job "
            f"has too little memory; {REMEDY}"
        )
        raise InputError(msg) from error
    except PermissionError as error:
        raise permission_error(path, element) from error
    # h5py, zarr, numcodecs and anndata raise a dozen classes here, some of them private.
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        msg = f"{path}: {element} cannot be read ({reason}): the data are damaged; {REMEDY}"
        if "No Zarr data type" in reason:
            what = f"{element} has a data type that this zarr-python does not know ({reason})"
            msg = f"{path}: {what}: update the package zarr, or write the file again without it"
        raise InputError(msg) from error
