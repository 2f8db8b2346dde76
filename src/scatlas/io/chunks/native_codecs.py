"""C functions of the packages that decode and encode, for kernels that call them in a loop.

The packages promise their Python functions alone. Where a symbol is missing, chunks are worked on
one by one through those, and the log says so.
"""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

from scatlas.io.chunks.codecs import Blosc, Crc32c, Deflate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scatlas.io.chunks.codecs import Decoder

    # Of the raw bytes, where the chunks begin in them and their sizes, to an array of bytes:
    # how many chunks were decoded before one that is damaged.
    RunDecoder = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int], int]
    # From consecutive chunks and the bytes of each: all of them encoded, the bytes that each takes,
    # and the CRC-32C of each before it was encoded.
    RunEncoder = Callable[[np.ndarray, int], tuple[memoryview, list[int], list[int]]]

logger = logging.getLogger(__name__)
# Bytes that a chunk may take beyond its own: Blosc's header and the checksum.
_OVERHEAD = 20


@cache
def _address(module: str, name: str) -> int:
    library = ctypes.CDLL(import_module(module).__file__)
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value


def run_decoder(pipeline: Sequence[Decoder]) -> RunDecoder | None:
    """Function that decodes a run of chunks in one call, if there is one for the pipeline."""
    try:
        match pipeline:
            case (Blosc(),):
                return _unblosc(checked=False)
            case (Crc32c(), Blosc()):
                return _unblosc(checked=True)
            case (Deflate(container),):
                return _inflate(container)
    except (AttributeError, OSError, ImportError) as why:
        _say_once(str(why))
    return None


@cache
def run_encoder(compressor: str, level: int, shuffle: int) -> RunEncoder | None:
    """Function that compresses a run of chunks by Blosc, each with its crc32c, in one call.

    The bytes are those of ``numcodecs.Blosc(compressor, level, shuffle)``. None where the packages
    lack what is needed.
    """
    try:
        functions = (
            _address("numcodecs.blosc", "blosc_compress_ctx"),
            _address("google_crc32c._crc32c", "crc32c_extend"),
        )
    except (AttributeError, OSError, ImportError) as why:
        _say_once(str(why))
        return None
    from scatlas.io.chunks.codec_loops import blosc

    name = ctypes.create_string_buffer(compressor.encode())

    def encode(chunks: np.ndarray, chunk_bytes: int) -> tuple[memoryview, list[int], list[int]]:
        lengths = np.empty(chunks.nbytes // chunk_bytes, np.int64)
        checksums = np.empty(lengths.size, np.uint32)
        out = np.empty(chunks.nbytes + _OVERHEAD * lengths.size, np.uint8)
        n_bytes = blosc(
            functions, ctypes.addressof(name), level, shuffle, chunks.itemsize,
            chunks.ctypes.data, chunk_bytes, out, out.ctypes.data, lengths, checksums,
        )  # fmt: skip
        if n_bytes < 0:
            msg = f"Blosc cannot encode {chunk_bytes:,} bytes"
            raise RuntimeError(msg)
        return memoryview(out)[:n_bytes], lengths.tolist(), checksums.tolist()

    return encode


@cache
def _say_once(why: str) -> None:
    logger.info("chunks are worked on one by one, which takes longer: %s", why)


@cache
def _unblosc(*, checked: bool) -> RunDecoder:
    from scatlas.io.chunks.codec_loops import unblosc

    decompress = _address("numcodecs.blosc", "blosc_decompress_ctx")
    crc32c = _address("google_crc32c._crc32c", "crc32c_extend") if checked else 0

    def decode(
        raw: np.ndarray, starts: np.ndarray, sizes: np.ndarray, out: np.ndarray, n_bytes: int
    ) -> int:
        places = raw.ctypes.data, starts, sizes, out.ctypes.data
        return unblosc(decompress, crc32c, raw, *places, n_bytes)

    return decode


@cache
def _inflate(container: str) -> RunDecoder:
    from scatlas.io.chunks.codec_loops import inflate

    names = ("alloc_decompressor", f"{container}_decompress", "free_decompressor")
    functions = tuple(_address("deflate._deflate", f"libdeflate_{name}") for name in names)

    def decode(
        raw: np.ndarray, starts: np.ndarray, sizes: np.ndarray, out: np.ndarray, n_bytes: int
    ) -> int:
        return inflate(functions, raw.ctypes.data, starts, sizes, out.ctypes.data, n_bytes)

    return decode
