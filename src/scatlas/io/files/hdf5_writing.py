"""New HDF5 files that report every failed write.

HDF5 flushes its cache when a dataset is closed, and h5py drops the errors of that: a disk that
failed once leaves a file with a hole, and no exception. Here HDF5 writes through a file object that
records the first error.
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


class _ErrorRecordingFile(io.FileIO):
    """File that stores its first failure in ``error`` and ignores later writes.

    It reports success to HDF5, which crashes later if it cannot close a file.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        remaining = memoryview(data).cast("B")
        try:
            while remaining and self.error is None:
                remaining = remaining[self._write_some(remaining) :]
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
def create_hdf5(path: Path | str) -> Iterator[h5py.File]:
    """Create an HDF5 file and open it for writing.

    Raises
    ------
    OSError
        At the end, if a write has failed.
    """
    with _ErrorRecordingFile(path, "w+") as raw:
        try:
            with h5py.File(raw, "w") as file:
                yield file
        finally:
            if raw.error is not None:
                # Instead of the error that HDF5 made of it.
                raise OSError(raw.error.errno, raw.error.strerror, str(path)) from raw.error


def write_h5ad(path: Path | str, adata: AnnData) -> None:
    """Write an AnnData as gzip-compressed h5ad, as ``AnnData.write_h5ad`` does.

    Text columns with few values become categorical, in ``adata`` and in the file.
    """
    from anndata.io import write_elem

    adata.strings_to_categoricals()
    if adata.raw is not None:
        adata.strings_to_categoricals(adata.raw.var)
    with create_hdf5(path) as file:
        write_elem(file, "/", adata, dataset_kwargs={"compression": "gzip"})
