"""HDF5 files of which no failed write goes unnoticed.

HDF5 writes what it has cached when a dataset is closed, and h5py drops the errors of that: a disk
that failed once leaves a file with a hole, and no exception. Here HDF5 writes through a file object
that remembers them.
"""

from __future__ import annotations

import io
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import h5py

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from anndata import AnnData


class _RememberingFile(io.FileIO):
    """File that keeps its first failure in ``error`` and takes no more writes after it.

    HDF5 is told that all is well: with a file that it could not close it crashes later.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        try:
            while left and self.error is None:
                left = left[self._write_some(left) :]
        except OSError as error:
            self.error = error
        return len(data)

    def _write_some(self, data: memoryview) -> int:
        return super().write(data)

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0


@contextmanager
def open_h5(path: Path | str) -> Iterator[h5py.File]:
    """Open a new HDF5 file for writing.

    Raises
    ------
    OSError
        At the end, if a write has failed.
    """
    with _RememberingFile(path, "w+") as raw:
        try:
            with h5py.File(raw, "w") as file:
                yield file
        finally:
            if raw.error is not None:
                # Before whatever HDF5 has made of it.
                raise OSError(raw.error.errno, raw.error.strerror, str(path)) from raw.error


def write_h5ad(path: Path | str, adata: AnnData) -> None:
    """Write an AnnData as gzip h5ad, as ``AnnData.write_h5ad`` does.

    Text columns of ``adata`` with few values become categorical, there as in the file.
    """
    from anndata.io import write_elem

    adata.strings_to_categoricals()
    if adata.raw is not None:
        adata.strings_to_categoricals(adata.raw.var)
    with open_h5(path) as file:
        write_elem(file, "/", adata, dataset_kwargs={"compression": "gzip"})
