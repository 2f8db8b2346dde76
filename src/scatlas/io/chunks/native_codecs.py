"""C functions of numcodecs, google-crc32c and deflate, which are not public, called by kernels in a
loop; where one is missing, chunks are processed one by one, and the log says so.
"""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

from scatlas.arrays import buffer_pool
from scatlas.io.chunks.codecs import Blosc, Crc32c, Deflate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scatlas.io.chunks.codecs import Decoder

    # Arguments: raw bytes, offsets and sizes of the chunks in them, output array, bytes per decoded
    # chunk. Returns the number of chunks before the first damaged one.
    RunDecoder = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int], int]
    # Arguments: consecutive chunks, bytes per chunk. Returns all encoded chunks, their sizes, and
    # the CRC-32C of each chunk before encoding.
    RunEncoder = Callable[[np.ndarray, int], tuple[memoryview, list[int], list[int]]]

logger = logging.getLogger(__name__)
# Bytes that an encoded chunk may need beyond its decoded size: Blosc's header and the checksum.
_OVERHEAD = 20


@cache
def _address(module: str, name: str) -> int:
    library = ctypes.CDLL(import_module(module).__file__)
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    if address is None:
        raise AttributeError(f"{module}: {name} has no address")
    return address


def run_decoder(pipeline: Sequence[Decoder]) -> RunDecoder | None:
    """Function that decodes a run of chunks in one call; None if the pipeline has no such."""
    try:
        match pipeline:
            case (Blosc(),):
                return _blosc_decoder(has_checksums=False)
            case (Crc32c(), Blosc()):
                return _blosc_decoder(has_checksums=True)
            case (Deflate(container),):
                return _deflate_decoder(container)
    except (AttributeError, OSError, ImportError) as error:
        _log_once(str(error))
    return None


def index_decoder(
    pipeline: Sequence[Decoder], stored: np.dtype, n_columns: int
) -> RunDecoder | None:
    """As :func:`run_decoder`, for indices below ``n_columns`` and an output of another type."""
    is_native = stored.kind in "iu" and stored.isnative and n_columns > 0
    if not (is_native and isinstance(pipeline[-1], Blosc) and run_decoder(pipeline)):
        return None
    from scatlas.io.chunks.codec_loops import decode_blosc_indices

    functions = _blosc_functions(has_checksums=len(pipeline) > 1)
    # Negative numbers are large ones without a sign.
    unsigned = np.dtype(f"u{stored.itemsize}")
    highest = unsigned.type(min(n_columns - 1, np.iinfo(stored).max))

    def decode(
        raw: np.ndarray, starts: np.ndarray, sizes: np.ndarray, out: np.ndarray, n_bytes: int
    ) -> int:
        chunk = buffer_pool.empty(n_bytes // stored.itemsize, unsigned)
        places = raw.ctypes.data, chunk.ctypes.data
        return decode_blosc_indices(functions, raw, starts, sizes, places, chunk, out, highest)

    return decode


@cache
def run_encoder(compressor: str, level: int, shuffle: int) -> RunEncoder | None:
    """Find the function that compresses runs of chunks with checksums; None if one is missing."""
    try:
        functions = (
            _address("numcodecs.blosc", "blosc_compress_ctx"),
            _address("google_crc32c._crc32c", "crc32c_extend"),
        )
    except (AttributeError, OSError, ImportError) as error:
        _log_once(str(error))
        return None
    from scatlas.io.chunks.codec_loops import encode_blosc_chunks

    name = ctypes.create_string_buffer(compressor.encode())

    def encode(chunks: np.ndarray, chunk_bytes: int) -> tuple[memoryview, list[int], list[int]]:
        sizes = np.empty(chunks.nbytes // chunk_bytes, np.int64)
        checksums = np.empty(sizes.size, np.uint32)
        out = np.empty(chunks.nbytes + _OVERHEAD * sizes.size, np.uint8)
        n_bytes = encode_blosc_chunks(
            functions, ctypes.addressof(name), level, shuffle, chunks.itemsize,
            chunks.ctypes.data, chunk_bytes, out, out.ctypes.data, sizes, checksums,
        )  # fmt: skip
        if n_bytes < 0:
            raise RuntimeError(f"Blosc cannot encode {chunk_bytes:,} bytes")
        return out.data[:n_bytes], sizes.tolist(), checksums.tolist()

    return encode


@cache
def _log_once(reason: str) -> None:
    logger.info("chunks are processed one by one, which takes longer: %s", reason)


def _blosc_functions(*, has_checksums: bool) -> tuple[int, int]:
    decompress = _address("numcodecs.blosc", "blosc_decompress_ctx")
    return decompress, _address("google_crc32c._crc32c", "crc32c_extend") if has_checksums else 0


@cache
def _blosc_decoder(*, has_checksums: bool) -> RunDecoder:
    from scatlas.io.chunks.codec_loops import decode_blosc_chunks

    functions = _blosc_functions(has_checksums=has_checksums)

    def decode(
        raw: np.ndarray, starts: np.ndarray, sizes: np.ndarray, out: np.ndarray, n_bytes: int
    ) -> int:
        source, target = raw.ctypes.data, out.ctypes.data
        return decode_blosc_chunks(functions, raw, source, starts, sizes, target, n_bytes)

    return decode


@cache
def _deflate_decoder(container: str) -> RunDecoder:
    from scatlas.io.chunks.codec_loops import decode_deflate_chunks

    names = ("alloc_decompressor", f"{container}_decompress", "free_decompressor")
    functions = tuple(_address("deflate._deflate", f"libdeflate_{name}") for name in names)

    def decode(
        raw: np.ndarray, starts: np.ndarray, sizes: np.ndarray, out: np.ndarray, n_bytes: int
    ) -> int:
        source, target = raw.ctypes.data, out.ctypes.data
        return decode_deflate_chunks(functions, source, starts, sizes, target, n_bytes)

    return decode
