"""Addresses of C functions of the packages that decode, for kernels that call them in a loop.

The packages promise their Python functions alone. Where a symbol is missing, chunks are decoded one
by one through those, and the log says so.
"""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from scatlas.io.codecs import Blosc, Crc32c, Deflate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from scatlas.io.codecs import Decoder

    # Of the raw bytes, where the chunks begin in them and their sizes, to an array of bytes:
    # how many chunks were decoded before one that is damaged.
    RunDecoder = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int], int]

logger = logging.getLogger(__name__)


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
def _say_once(why: str) -> None:
    logger.info("chunks are decoded one by one, which takes longer: %s", why)


@cache
def _unblosc(*, checked: bool) -> RunDecoder:
    from scatlas.kernels.decode_cpu import unblosc

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
    from scatlas.kernels.decode_cpu import inflate

    names = ("alloc_decompressor", f"{container}_decompress", "free_decompressor")
    functions = tuple(_address("deflate._deflate", f"libdeflate_{name}") for name in names)

    def decode(
        raw: np.ndarray, starts: np.ndarray, sizes: np.ndarray, out: np.ndarray, n_bytes: int
    ) -> int:
        return inflate(functions, raw.ctypes.data, starts, sizes, out.ctypes.data, n_bytes)

    return decode
