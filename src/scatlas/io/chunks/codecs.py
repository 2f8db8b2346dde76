"""Decoders of single chunks, as HDF5 and Zarr name them: all leave the interpreter lock.

A pipeline is what lies between the numbers in memory and the bytes on disk: at most a shuffle, at
most one compressor, at most one checksum, in this order. Other pipelines are read by the libraries
themselves (:mod:`scatlas.io.chunks.chunked_array` says so in the log).
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

# A deflate stream cannot expand further than this (https://zlib.net/zlib_tech.html): a damaged
# chunk size must not ask for terabytes of memory.
_MAX_DEFLATE_RATIO = 1032

_BLOSC_SIZES = Struct("<3I")

Buffer = bytes | bytearray | memoryview


class ChunkError(ValueError):
    """A chunk that cannot be decoded."""


class Decoder(Protocol):
    """Undoes one step of the pipeline."""

    def decode(self, raw: Buffer, n_bytes: int) -> Buffer | np.ndarray:
        """Return the bytes before this step.

        ``n_bytes`` is the size of the decoded chunk. `Zstd` and `Crc32c` take None: of text it is
        not known.
        """
        ...


@dataclass(frozen=True)
class Deflate:
    """zlib or gzip streams (HDF5's gzip is zlib), by libdeflate: both carry a checksum."""

    container: str = "zlib"

    def decode(self, raw: Buffer, n_bytes: int) -> Buffer:
        """See :class:`Decoder`."""
        import deflate

        if n_bytes > _MAX_DEFLATE_RATIO * len(raw) + 64:
            msg = f"{len(raw):,} bytes cannot hold {n_bytes:,}"
            raise ChunkError(msg)
        decompress = (
            deflate.zlib_decompress if self.container == "zlib" else deflate.gzip_decompress
        )
        return decompress(raw, n_bytes)


@dataclass(frozen=True)
class Lzf:
    """LZF as h5py writes it: no checksum."""

    def decode(self, raw: Buffer, n_bytes: int) -> np.ndarray:
        """See :class:`Decoder`."""
        from scatlas.io.chunks.lzf import decompress

        out = decompress(np.frombuffer(raw, np.uint8), n_bytes)
        if out is None:
            raise ChunkError("not an LZF stream")
        return out


def _zstd_size(raw: Buffer) -> int | None:
    """Decoded size in the header of a frame (RFC 8878, 3.1.1.1); None when it does not tell."""
    if len(raw) < 5:
        return None
    flags = raw[4]
    single = flags >> 5 & 1  # no window, and a size for certain
    width = (single, 2, 4, 8)[flags >> 6]
    start = 6 - single + (0, 1, 2, 4)[flags & 3]
    size = int.from_bytes(raw[start : start + width], "little")
    return size + 256 * (width == 2) if width else None


@dataclass(frozen=True)
class Zstd:
    """Zstandard frames."""

    def decode(self, raw: Buffer, n_bytes: int | None) -> Buffer:
        """See :class:`Decoder`."""
        from numcodecs import zstd

        # A damaged size must not ask for terabytes of memory.
        size = _zstd_size(raw)
        if n_bytes is not None and size not in (None, n_bytes):
            msg = f"a Zstandard frame of {size:,} bytes instead of {n_bytes:,}"
            raise ChunkError(msg)
        return zstd.decompress(raw)


@dataclass(frozen=True)
class Blosc:
    """Blosc 1 buffers of any inner compressor: no checksum."""

    def decode(self, raw: Buffer, n_bytes: int) -> np.ndarray:
        """See :class:`Decoder`."""
        out = np.empty(n_bytes, np.uint8)
        self.decode_into(raw, out)
        return out

    def decode_into(self, raw: Buffer, out: np.ndarray) -> None:
        """Decode to ``out``, which has the size of the decoded chunk."""
        from numcodecs import blosc

        # c-blosc trusts the sizes in the header: bytes before, of a block, and after compression.
        n_bytes, _, packed = _BLOSC_SIZES.unpack_from(raw, 4) if len(raw) >= 16 else (0, 0, 0)
        if n_bytes != out.nbytes or packed != len(raw):
            msg = f"a Blosc header of {n_bytes:,} bytes in {packed:,}, not {out.nbytes:,}"
            raise ChunkError(msg)
        blosc.decompress(raw, out)


@dataclass(frozen=True)
class Shuffle:
    """Bytes of equal significance side by side (HDF5's shuffle)."""

    itemsize: int

    def decode(self, raw: Buffer, n_bytes: int) -> np.ndarray:  # noqa: ARG002
        """See :class:`Decoder`."""
        flat = np.frombuffer(raw, np.uint8)
        whole = flat.size // self.itemsize * self.itemsize
        out = np.empty_like(flat)
        out[:whole].reshape(-1, self.itemsize)[...] = flat[:whole].reshape(self.itemsize, -1).T
        out[whole:] = flat[whole:]
        return out


@dataclass(frozen=True)
class Fletcher32:
    """HDF5's checksum, four bytes after the chunk."""

    def decode(self, raw: Buffer, n_bytes: int) -> Buffer:  # noqa: ARG002
        """See :class:`Decoder`."""
        from numcodecs import Fletcher32 as Codec

        return Codec().decode(bytes(raw))


@dataclass(frozen=True)
class Crc32c:
    """Zarr's checksum, four bytes after the chunk."""

    def decode(self, raw: Buffer, n_bytes: int | None) -> Buffer:  # noqa: ARG002
        """See :class:`Decoder`."""
        from google_crc32c import value

        body = memoryview(raw)[:-4]
        # The package takes bytes alone.
        if len(raw) < 4 or value(bytes(body)) != int.from_bytes(raw[-4:], "little"):
            raise ChunkError("its checksum (crc32c) does not match")
        return body


def decode(pipeline: Sequence[Decoder], raw: Buffer, dtype: np.dtype, n_values: int) -> np.ndarray:
    """Numbers of a chunk.

    Parameters
    ----------
    pipeline
        Steps in the order of decoding.
    raw
        The chunk as it lies on disk.
    dtype, n_values
        What it holds; ``dtype`` as stored, with its byte order.

    Raises
    ------
    ChunkError
        And what the libraries raise: the chunk is damaged.
    """
    n_bytes = n_values * dtype.itemsize
    decoded: Any = raw
    for step in pipeline:
        decoded = step.decode(decoded, n_bytes)
    flat = np.frombuffer(decoded, np.uint8)
    if flat.size != n_bytes:
        msg = f"it holds {flat.size:,} bytes instead of {n_bytes:,}"
        raise ChunkError(msg)
    return flat.view(dtype)
