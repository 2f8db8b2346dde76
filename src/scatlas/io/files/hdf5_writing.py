"""Elements of h5ad files, decoded and compressed by threads, into files that report failed writes.

HDF5 flushes its cache when a dataset is closed, and h5py drops the errors of that: a disk that
failed once leaves a file with a hole, and no exception. Here HDF5 writes through a file object that
records the first error.
"""

from __future__ import annotations

import io
import logging
import math
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from anndata import AnnData
from anndata.io import read_elem
from deflate import zlib_compress
from pandas.api.types import is_string_dtype
from scipy import sparse

from scatlas.blocks import map_in_order
from scatlas.compute.threads import n_cores
from scatlas.io.chunks.chunk_reader import read_values
from scatlas.io.files.chunk_locations import TEXT_REFERENCE, hdf5_chunked_array
from scatlas.io.files.read_errors import UnsupportedLayoutError, reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pandas as pd

    from scatlas.io.files.local_zarr import StoredArray

_SPARSE = (sparse.csr_matrix, sparse.csc_matrix, sparse.csr_array, sparse.csc_array)
_MOST_CATEGORIES = 10_000  # values of a text column that become categories
SMALL_VALUES = 2**16  # up to which compression by threads is not worth their start
# Bytes per chunk: h5py reads chunks of up to 1 MB through its cache.
_CHUNK_BYTES = 2**18
# Level of gzip by libdeflate: the size of zlib's default to 10%, in a third of its time.
_LEVEL = 1
# Share of its bytes above which an array is not compressed, but stored in gzip's format, whose
# checksum finds damage.
_WORTH_IT, _STORE = 0.9, 0
logger = logging.getLogger(__name__)
# Values that a thread reads at once, about.
_VALUES = 2**20
_SPARSE_KINDS = {"csr_matrix": sparse.csr_matrix, "csc_matrix": sparse.csc_matrix}


class _ErrorRecordingFile(io.FileIO):
    """File that stores its first ``error``, then ignores writes: a failed close crashes HDF5."""

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
def create_hdf5(path: Path | str, *, append: bool = False) -> Iterator[h5py.File]:
    """Create or `append` to an HDF5 file; OSError at the end, if a write has failed."""
    with _ErrorRecordingFile(path, "r+" if append else "w+") as raw:
        try:
            with h5py.File(raw, "r+" if append else "w") as file:
                yield file
        finally:
            if raw.error is not None:
                # Instead of the error that HDF5 made of it.
                raise OSError(raw.error.errno, raw.error.strerror, str(path)) from raw.error


def write_h5ad(path: Path | str, adata: AnnData) -> None:
    """Write a gzip-compressed h5ad, to the same bytes for any number of threads; text columns of up
    to 10,000 values become categorical, in ``adata``, too.
    """
    for table in [adata.obs, adata.var] + ([] if adata.raw is None else [adata.raw.var]):
        few_texts_to_categories(table)
    with create_hdf5(path) as file:
        write_element(file, "/", adata)


def few_texts_to_categories(table: pd.DataFrame) -> None:
    text = [name for name in table if is_string_dtype(table[name].dtype)]
    few = table[[name for name in text if table[name].nunique() <= _MOST_CATEGORIES]].copy()
    AnnData().strings_to_categoricals(few)
    for name, column in few.items():
        table[name] = column


def write_element(group: h5py.Group, key: str, value: Any) -> None:
    """Write an element of an AnnData as :func:`write_h5ad` does."""
    from anndata.experimental import write_dispatched

    options = {"compression": "gzip"}
    write_dispatched(group, key, value, callback=_write_element, dataset_kwargs=options)


def _write_element(
    write_func: Callable[..., None], group: h5py.Group, key: str, value: Any, **options: Any
) -> None:
    """Write an element in AnnData's encoding: large arrays of numbers here, others by anndata."""
    if key == "/raw" and value is None:
        return  # AnnData.write_h5ad writes no such element, and anndata 0.10 and 0.11 refuse it
    is_array = type(value) is np.ndarray and value.dtype.kind in "biuf"
    if (is_array or isinstance(value, _SPARSE)) and value.size > SMALL_VALUES:
        spec = options["iospec"]
        write_large(group, key, value, spec.encoding_type, spec.encoding_version)
    else:
        write_func(group, key, value, dataset_kwargs=options["dataset_kwargs"])


def write_large(group: h5py.Group, key: str, value: Any, encoding: str, version: str) -> None:
    """Write numbers: an array, or a sparse matrix of three; of those on disk a part at a time."""
    if hasattr(value, "indptr"):
        node = group.create_group(key)
        node.attrs["shape"] = value.shape
        for name in ("data", "indices", "indptr"):
            _write_numbers(node, name, getattr(value, name), maxshape=(None,))  # as anndata does
    else:
        node = _write_numbers(group, key, value)
    node.attrs["encoding-type"], node.attrs["encoding-version"] = encoding, version


def _write_numbers(
    group: h5py.Group, name: str, values: StoredArray, *, maxshape: tuple[None] | None = None
) -> h5py.Dataset:
    """Write an array in chunks of whole rows that threads compress, as HDF5 does under its lock."""
    n, *rest = values.shape
    width = max(1, math.prod(rest))
    row_bytes = values.dtype.itemsize * width
    n_rows = max(1, min(n, _CHUNK_BYTES // row_bytes))
    # Several chunks at a time: those on disk may be larger.
    step = max(1, _VALUES // (n_rows * width)) * n_rows

    def compress(part: np.ndarray, level: int) -> bytearray:
        if len(part) < n_rows:  # HDF5 has whole chunks alone
            part = np.concatenate([part, np.zeros((n_rows - len(part), *rest), part.dtype)])
        return zlib_compress(np.ascontiguousarray(part).data.cast("B"), level)

    def compress_rows(number: int) -> list[bytearray]:
        rows = values[number * step : (number + 1) * step]
        return [compress(rows[lo : lo + n_rows], level) for lo in range(0, len(rows), n_rows)]

    first = len(compress(values[:n_rows], _LEVEL))
    level = _LEVEL if first < _WORTH_IT * n_rows * row_bytes else _STORE
    dataset = group.create_dataset(
        *(name, values.shape, values.dtype),
        chunks=(n_rows, *rest),
        maxshape=maxshape,
        compression="gzip",
        compression_opts=level,
    )
    parts = map_in_order(compress_rows, -(-n // step), workers=n_cores())
    for number, chunk in enumerate(chain.from_iterable(parts)):
        dataset.id.write_direct_chunk((number * n_rows, *[0 for _ in rest]), chunk)
    return dataset


def read_element(node: h5py.Dataset | h5py.Group) -> Any:
    """Read an element of an h5ad file, as ``anndata.io.read_elem`` does."""
    kind = _SPARSE_KINDS.get(node.attrs.get("encoding-type"))
    if kind is not None:
        parts = tuple(read_element(node[name]) for name in ("data", "indices", "indptr"))
        return kind(parts, shape=tuple(node.attrs["shape"]))
    has_values = isinstance(node, h5py.Dataset) and node.size and node.ndim
    if not has_values or node.dtype.kind not in "iuf":
        return read_elem(node)
    values = np.empty(node.shape, node.dtype.newbyteorder("="))
    flat = values.reshape(-1)
    for begin, part in decode(node):
        flat[begin : begin + part.size] = part
    return values


def decode(dataset: h5py.Dataset) -> Iterator[tuple[int, np.ndarray]]:
    """Yield a dataset's numbers, or references to text, in parts, each with its first position."""
    path = dataset.file.filename
    text = h5py.check_string_dtype(dataset.dtype)
    stored = TEXT_REFERENCE if text is not None and text.length is None else None
    with reading(path, dataset.name.lstrip("/")):
        try:
            array = hdf5_chunked_array(path, dataset.name, dataset, stored)
        except UnsupportedLayoutError as error:
            logger.info("%s: %s is read through h5py: %s", path, dataset.name, error)
            yield 0, dataset[()].reshape(-1)
            return
        dtype = array.dtype.newbyteorder("=")
        step = max(1, _VALUES // array.chunk_values) * array.chunk_values

        def read(i: int) -> tuple[int, np.ndarray]:
            lo, hi = i * step, min((i + 1) * step, array.n_values)
            return lo, read_values(array, lo, hi, dtype=dtype)

        yield from map_in_order(read, -(-array.n_values // step), workers=n_cores())
