"""Locations of the chunks of an array, from the metadata that h5py or zarr-python reads.

h5py's ``chunk_iter`` lists 512 chunks in 1 ms, a loop over ``get_chunk_info`` in 37 ms. Its
``read_direct_chunk`` is as fast as ``pread`` at these locations but takes HDF5's lock.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from scatlas.io.chunks.chunk_reader import read_values
from scatlas.io.chunks.chunked_array import ChunkedArray, Hdf5Chunks, ZarrChunks
from scatlas.io.chunks.codecs import Blosc, Decoder, Deflate, Fletcher32, Lzf, Shuffle, Zstd
from scatlas.io.files.local_zarr import LocalArray
from scatlas.io.files.read_errors import UnsupportedLayoutError
from scatlas.io.files.zarr_metadata import zarr_chunked_array

if TYPE_CHECKING:
    from scatlas.io.files.anndata_file import Store
    from scatlas.io.files.local_zarr import StoredGroup

logger = logging.getLogger(__name__)

# Registered numbers of HDF5 filters, and decoders of the compressors.
_DEFLATE, _SHUFFLE, _FLETCHER32, _LZF, _BLOSC, _ZSTD = 1, 2, 3, 32000, 32001, 32015
_HDF5_COMPRESSORS: dict[int, Decoder] = {
    _DEFLATE: Deflate(),
    _LZF: Lzf(),
    _BLOSC: Blosc(),
    _ZSTD: Zstd(),
}
_ZARR2_COMPRESSORS: dict[str, Decoder] = {
    "blosc": Blosc(),
    "zstd": Zstd(),
    "gzip": Deflate("gzip"),
    "zlib": Deflate("zlib"),
}
# HDF5's reference to a text: its bytes, offset of its heap collection, its number there.
TEXT_REFERENCE = np.dtype([("length", "<u4"), ("heap", "<u8"), ("number", "<u4")])
# Values per chunk of a contiguous dataset, any part of which can be read alone.
_RAW_CHUNK_VALUES = 2**18


def locate_chunks(store: Store, root: StoredGroup, key: str) -> ChunkedArray | None:
    """Find the chunks of an array of numbers; None, with a log line, if only a library reads it."""
    element = root[key]
    if store.is_url:
        return None
    try:
        if isinstance(element, h5py.Dataset):
            return hdf5_chunked_array(store.path, key, element)
        return _zarr_array_chunks(store.path, key, element)
    except UnsupportedLayoutError as error:
        library = "h5py" if store.kind == "h5ad" else "zarr"
        logger.info(
            "%s: %s is read through %s, which takes longer: %s", store.path, key, library, error
        )
        return None


def read_without_plugins(dataset: h5py.Dataset, rows: slice = slice(None)) -> np.ndarray:
    """Read numbers without HDF5's filter plugins, which damaged sizes crash; its own are safe."""
    properties = dataset.id.get_create_plist()
    codes = {properties.get_filter(i)[0] for i in range(properties.get_nfilters())}
    local = Path(dataset.file.filename).is_file()  # not one that is read through fsspec
    if not local or not codes & {_BLOSC, _ZSTD}:
        return dataset[rows]
    begin, end, _ = rows.indices(dataset.shape[0])
    try:
        array = hdf5_chunked_array(dataset.file.filename, dataset.name, dataset)
    except UnsupportedLayoutError as error:
        logger.info("%s: %s is read through h5py: %s", dataset.file.filename, dataset.name, error)
        return dataset[rows]
    return read_values(array, begin, max(begin, end), dtype=array.dtype.newbyteorder("="))


def hdf5_chunked_array(
    path: str, key: str, dataset: h5py.Dataset, dtype: np.dtype | None = None
) -> ChunkedArray:
    """Describe a dataset's chunks, of whole rows; ``dtype`` is that on disk if not of numbers."""
    if dataset.is_virtual or dataset.external or dataset.file.userblock_size:
        raise UnsupportedLayoutError("the values lie in other files, or after a user block")
    if dtype is None:
        dtype = dataset.dtype
        if not dataset.id.get_type().equal(h5py.h5t.py_create(dtype, logical=True)):
            raise UnsupportedLayoutError(
                "its numbers are of a type that only HDF5 knows, as 20 of 32 bits"
            )
    n_values = int(dataset.size)
    if dataset.chunks is None:
        start = dataset.id.get_offset()
        if start is None:
            raise UnsupportedLayoutError("the values lie within the metadata")
        return _contiguous(path, key, n_values, dtype, start)
    if dataset.chunks[1:] != dataset.shape[1:]:
        raise UnsupportedLayoutError("its chunks are not of whole rows")
    pipeline, n_filters = _hdf5_pipeline(dataset)
    chunk_rows = int(dataset.chunks[0])
    chunk_values = chunk_rows * math.prod(dataset.shape[1:])
    n_chunks = -(-dataset.shape[0] // chunk_rows)
    offsets = np.full(n_chunks, -1)
    sizes = np.zeros(n_chunks, np.int64)
    skipped_filters = np.zeros(n_chunks, np.uint32)

    def add_chunk(chunk: Any) -> None:
        i = chunk.chunk_offset[0] // chunk_rows
        if i < n_chunks:  # a dataset that shrank may keep chunks beyond its end
            offsets[i], sizes[i] = chunk.byte_offset, chunk.size
            skipped_filters[i] = chunk.filter_mask

    dataset.id.chunk_iter(add_chunk)
    locations = Hdf5Chunks(path, 0, offsets, sizes, skipped_filters, n_filters)
    return ChunkedArray(key, n_values, dtype, chunk_values, pipeline, locations)


def _contiguous(path: str, key: str, n_values: int, dtype: np.dtype, start: int) -> ChunkedArray:
    n_chunks = -(-n_values // _RAW_CHUNK_VALUES)
    firsts = np.arange(n_chunks) * _RAW_CHUNK_VALUES
    sizes = (np.minimum(firsts + _RAW_CHUNK_VALUES, n_values) - firsts) * dtype.itemsize
    skipped_filters = np.zeros(n_chunks, np.uint32)
    offsets = start + firsts * dtype.itemsize
    locations = Hdf5Chunks(path, 0, offsets, sizes, skipped_filters, 0)
    return ChunkedArray(key, n_values, dtype, _RAW_CHUNK_VALUES, (), locations)


def _hdf5_pipeline(dataset: h5py.Dataset) -> tuple[tuple[Decoder, ...], int]:
    """Decoders in the order of decoding, and number of filters."""
    properties = dataset.id.get_create_plist()
    steps: list[Decoder] = []
    stages: list[int] = []
    for i in range(properties.get_nfilters()):
        code, _, values, name = properties.get_filter(i)
        step: Decoder
        if code == _SHUFFLE:
            step, stage = Shuffle(int(values[0]) if values else dataset.dtype.itemsize), 0
        elif code == _FLETCHER32:
            step, stage = Fletcher32(), 2
        elif code in _HDF5_COMPRESSORS:
            step, stage = _HDF5_COMPRESSORS[code], 1
        else:
            msg = f"it is compressed by {name.decode(errors='replace') or f'filter {code}'}"
            raise UnsupportedLayoutError(msg)
        steps.append(step)
        stages.append(stage)
    if stages != sorted(set(stages)):
        raise UnsupportedLayoutError("the order of its filters is unusual")
    return tuple(reversed(steps)), len(steps)


def _zarr_array_chunks(path: str, key: str, array: Any) -> ChunkedArray:
    if isinstance(array, LocalArray):
        return array.chunked_array
    metadata = array.metadata
    if metadata.zarr_format == 3:
        return zarr_chunked_array(path, key, metadata.to_dict())
    first_file = metadata.encode_chunk_key((0,))
    if not first_file.endswith("0"):
        raise UnsupportedLayoutError("its files have unusual names")
    prefix = str(Path(path, *key.split("/"), first_file)).removesuffix("0")
    return ChunkedArray(
        key,
        n_values=int(array.shape[0]),
        dtype=np.dtype(array.dtype),
        chunk_values=int(metadata.chunks[0]),
        pipeline=_zarr2_pipeline(metadata),
        locations=ZarrChunks(prefix, shard_chunks=0),
        fill_value=0 if metadata.fill_value is None else metadata.fill_value,
    )


def _zarr2_pipeline(metadata: Any) -> tuple[Decoder, ...]:
    if metadata.filters:
        raise UnsupportedLayoutError("it has filters")
    compressor = metadata.compressor
    if compressor is None:
        return ()
    if compressor.codec_id not in _ZARR2_COMPRESSORS:
        raise UnsupportedLayoutError(f"it is compressed by {compressor.codec_id}")
    return (_ZARR2_COMPRESSORS[compressor.codec_id],)
