"""Find the chunks of an array on disk, with the help of the library that wrote it.

Layouts that are not known here are read by the library, which stays the reference that the tests
compare with; the log says which and why.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from scatlas.io.chunks.chunked_array import ChunkedArray, Extents, ShardFiles, read
from scatlas.io.chunks.codecs import Blosc, Decoder, Deflate, Fletcher32, Lzf, Shuffle, Zstd
from scatlas.io.files.local_zarr import LocalArray, NotDirectError, located

if TYPE_CHECKING:
    from scatlas.io.files.anndata_file import Store

logger = logging.getLogger(__name__)

# HDF5's filters by their registered number.
_DEFLATE, _SHUFFLE, _FLETCHER32, _LZF, _BLOSC, _ZSTD = 1, 2, 3, 32000, 32001, 32015
# Values of a piece of an array that is not compressed, hence not cut into chunks that have to be
# decoded as a whole.
_RAW_CHUNK = 2**18


def locate(store: Store, root: Any, key: str) -> ChunkedArray | None:
    """Find the chunks of an array on disk.

    Parameters
    ----------
    store, root
        The file, and the same opened.
    key
        One-dimensional array of numbers, as ``X/data``.

    Returns
    -------
    None when only the library can read it; the log says why.
    """
    element = root[key]
    if store.is_url:
        return None
    try:
        if isinstance(element, h5py.Dataset):
            return in_hdf5(store.path, key, element)
        return _in_zarr(store.path, key, element)
    except NotDirectError as why:
        library = "h5py" if store.kind == "h5ad" else "zarr"
        logger.info(
            "%s: %s is read through %s, which takes longer: %s", store.path, key, library, why
        )
        return None


def read_plugged(dataset: h5py.Dataset, rows: slice = slice(None)) -> np.ndarray:
    """Numbers of a data set of one dimension, without the filters that come as plugins.

    Those take the sizes in a damaged chunk on trust, and crash. What HDF5 brings itself is as good.
    """
    properties = dataset.id.get_create_plist()
    codes = {properties.get_filter(i)[0] for i in range(properties.get_nfilters())}
    local = Path(dataset.file.filename).is_file()  # not one that is read through fsspec
    if not local or not codes & {_BLOSC, _ZSTD}:
        return dataset[rows]
    begin, end, _ = rows.indices(dataset.shape[0])
    try:
        places = in_hdf5(dataset.file.filename, dataset.name, dataset)
    except NotDirectError as why:
        logger.info("%s: %s is read through h5py: %s", dataset.file.filename, dataset.name, why)
        return dataset[rows]
    return read(places, begin, max(begin, end), dtype=places.dtype.newbyteorder("="))


def in_hdf5(
    path: str, key: str, dataset: h5py.Dataset, dtype: np.dtype | None = None
) -> ChunkedArray:
    """Find the chunks of a data set.

    Parameters
    ----------
    path, key
        File and element.
    dataset
        Of one dimension.
    dtype
        What its values are on disk, where that are no numbers.

    Raises
    ------
    NotDirectError
        They are stored in a way that is not known here.
    """
    if dataset.is_virtual or dataset.external or dataset.file.userblock_size:
        raise NotDirectError("the values lie in other files, or after a user block")
    if dtype is None:
        dtype = dataset.dtype
        if not dataset.id.get_type().equal(h5py.h5t.py_create(dtype, logical=True)):
            raise NotDirectError("its numbers are of a type that only HDF5 knows, as 20 of 32 bits")
    n_values = int(dataset.shape[0])
    if dataset.chunks is None:
        start = dataset.id.get_offset()
        if start is None:
            raise NotDirectError("the values lie within the metadata")
        return _contiguous(path, key, n_values, dtype, start)
    pipeline, n_filters = _hdf5_pipeline(dataset)
    chunk_values = int(dataset.chunks[0])
    n_chunks = -(-n_values // chunk_values)
    offsets = np.full(n_chunks, -1)
    sizes = np.zeros(n_chunks, np.int64)
    skipped = np.zeros(n_chunks, np.uint32)

    def place(chunk: Any) -> None:
        i = chunk.chunk_offset[0] // chunk_values
        if i < n_chunks:  # an array that was cut shorter may keep chunks beyond its end
            offsets[i], sizes[i], skipped[i] = chunk.byte_offset, chunk.size, chunk.filter_mask

    dataset.id.chunk_iter(place)
    places = Extents(path, 0, offsets, sizes, skipped, n_filters)
    return ChunkedArray(key, n_values, dtype, chunk_values, pipeline, places)


def _contiguous(path: str, key: str, n_values: int, dtype: np.dtype, start: int) -> ChunkedArray:
    n_chunks = -(-n_values // _RAW_CHUNK)
    firsts = np.arange(n_chunks) * _RAW_CHUNK
    sizes = (np.minimum(firsts + _RAW_CHUNK, n_values) - firsts) * dtype.itemsize
    none = np.zeros(n_chunks, np.uint32)
    places = Extents(path, 0, start + firsts * dtype.itemsize, sizes, none, 0)
    return ChunkedArray(key, n_values, dtype, _RAW_CHUNK, (), places)


def _hdf5_pipeline(dataset: h5py.Dataset) -> tuple[tuple[Decoder, ...], int]:
    """Decoders in the order of decoding, and how many filters there are."""
    properties = dataset.id.get_create_plist()
    steps: list[Decoder] = []
    stages: list[int] = []
    for i in range(properties.get_nfilters()):
        code, _, values, name = properties.get_filter(i)
        if code == _SHUFFLE:
            step, stage = Shuffle(int(values[0]) if values else dataset.dtype.itemsize), 0
        elif code == _FLETCHER32:
            step, stage = Fletcher32(), 2
        elif code in (_DEFLATE, _LZF, _BLOSC, _ZSTD):
            step, stage = _hdf5_compressors()[code], 1
        else:
            msg = f"it is compressed by {name.decode(errors='replace') or f'filter {code}'}"
            raise NotDirectError(msg)
        steps.append(step)
        stages.append(stage)
    if stages != sorted(set(stages)):
        raise NotDirectError("its filters stand in an unusual order")
    return tuple(reversed(steps)), len(steps)


@cache
def _hdf5_compressors() -> dict[int, Decoder]:
    return {_DEFLATE: Deflate(), _LZF: Lzf(), _BLOSC: Blosc(), _ZSTD: Zstd()}


def _in_zarr(path: str, key: str, array: Any) -> ChunkedArray:
    if isinstance(array, LocalArray):
        return array.places
    metadata = array.metadata
    if metadata.zarr_format == 3:
        return located(path, key, metadata.to_dict())
    first_file = metadata.encode_chunk_key((0,))
    if not first_file.endswith("0"):
        raise NotDirectError("its files have unusual names")
    prefix = str(Path(path, *key.split("/"), first_file)).removesuffix("0")
    dtype, steps = np.dtype(array.dtype), _zarr2_pipeline(metadata)
    fill = 0 if metadata.fill_value is None else metadata.fill_value
    places = ShardFiles(prefix, 0)
    size = int(metadata.chunks[0])
    return ChunkedArray(key, int(array.shape[0]), dtype, size, steps, places, fill)


def _zarr2_pipeline(metadata: Any) -> tuple[Decoder, ...]:
    if metadata.filters:
        raise NotDirectError("it has filters")
    compressor = metadata.compressor
    if compressor is None:
        return ()
    known = {
        "blosc": Blosc(),
        "zstd": Zstd(),
        "gzip": Deflate("gzip"),
        "zlib": Deflate("zlib"),
    }
    if compressor.codec_id not in known:
        msg = f"it is compressed by {compressor.codec_id}"
        raise NotDirectError(msg)
    return (known[compressor.codec_id],)
