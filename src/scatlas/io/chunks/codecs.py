"""Decoders of single chunks, named as in HDF5 and Zarr; all release the interpreter lock.

Sizes and checksums are checked before numcodecs and deflate run, which damaged sizes crash. A
pipeline encodes by at most one shuffle, one compressor and one checksum, in this order.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

# Largest expansion of a deflate stream (https://zlib.net/zlib_tech.html): a damaged chunk size must
# not request terabytes of memory.
_MAX_DEFLATE_RATIO = 1032
# In a Blosc header, from byte 4: bytes of the decoded chunk, of a block, of the encoded chunk.
_BLOSC_SIZES = Struct("<3I")

Buffer = bytes | bytearray | memoryview


class ChunkError(ValueError):
    """A chunk cannot be decoded."""


class Decoder(Protocol):
    """Inverse of one step of the pipeline."""

    def decode(self, raw: Buffer, n_bytes: int) -> Buffer:
        """Return the bytes before this step; `Zstd` and `Crc32c` accept None for those of text."""
        ...


@dataclass(frozen=True)
class Deflate:
    """zlib or gzip streams with their checksum, by libdeflate (HDF5's gzip is zlib)."""

    container: str = "zlib"

    def decode(self, raw: Buffer, n_bytes: int) -> Buffer:
        import deflate

        if n_bytes > _MAX_DEFLATE_RATIO * len(raw) + 64:
            raise ChunkError(f"{len(raw):,} bytes cannot hold {n_bytes:,}")
        is_zlib = self.container == "zlib"
        decompress = deflate.zlib_decompress if is_zlib else deflate.gzip_decompress
        return decompress(raw, n_bytes)


@dataclass(frozen=True)
class Lzf:
    """LZF as h5py writes it, without a checksum."""

    def decode(self, raw: Buffer, n_bytes: int) -> memoryview:
        from scatlas.io.chunks.codec_loops import decompress_lzf

        out = decompress_lzf(np.frombuffer(raw, np.uint8), n_bytes)
        if out is None:
            raise ChunkError("not an LZF stream")
        return out.data


def _zstd_size(raw: Buffer) -> int | None:
    """Decoded size in the header of a frame (RFC 8878, 3.1.1.1); None if absent."""
    if len(raw) < 5:
        return None
    flags = raw[4]
    is_single_segment = flags >> 5 & 1  # no window descriptor, but always a size
    width = (is_single_segment, 2, 4, 8)[flags >> 6]
    start = 6 - is_single_segment + (0, 1, 2, 4)[flags & 3]
    size = int.from_bytes(raw[start : start + width], "little")
    return size + 256 * (width == 2) if width else None


@dataclass(frozen=True)
class Zstd:
    """Zstandard frames."""

    def decode(self, raw: Buffer, n_bytes: int | None) -> Buffer:
        from numcodecs import zstd

        # A damaged size must not request terabytes of memory.
        size = _zstd_size(raw)
        if n_bytes is not None and size not in (None, n_bytes):
            raise ChunkError(f"a Zstandard frame of {size:,} bytes instead of {n_bytes:,}")
        return zstd.decompress(raw)


@dataclass(frozen=True)
class Blosc:
    """Blosc 1 buffers of any inner compressor, without a checksum."""

    def decode(self, raw: Buffer, n_bytes: int) -> memoryview:
        out = np.empty(n_bytes, np.uint8)
        self.decode_into(raw, out)
        return out.data

    def decode_into(self, raw: Buffer, out: np.ndarray) -> None:
        """Decode to ``out``, which has the size of the decoded chunk."""
        from numcodecs import blosc

        # c-blosc trusts the sizes in the header.
        n_bytes, _, n_encoded = _BLOSC_SIZES.unpack_from(raw, 4) if len(raw) >= 16 else (0, 0, 0)
        if n_bytes != out.nbytes or n_encoded != len(raw):
            msg = f"a Blosc header of {n_bytes:,} bytes in {n_encoded:,}, not {out.nbytes:,}"
            raise ChunkError(msg)
        blosc.decompress(raw, out)


@dataclass(frozen=True)
class Shuffle:
    """HDF5's shuffle: bytes of equal significance are adjacent."""

    itemsize: int

    def decode(self, raw: Buffer, n_bytes: int) -> memoryview:  # noqa: ARG002
        flat = np.frombuffer(raw, np.uint8)
        n = flat.size // self.itemsize * self.itemsize
        out = np.empty_like(flat)
        out[:n].reshape(-1, self.itemsize)[...] = flat[:n].reshape(self.itemsize, -1).T
        out[n:] = flat[n:]
        return out.data


@dataclass(frozen=True)
class Fletcher32:
    """HDF5's checksum, four bytes after the chunk."""

    def decode(self, raw: Buffer, n_bytes: int) -> Buffer:  # noqa: ARG002
        from numcodecs import Fletcher32 as Codec

        return Codec().decode(bytes(raw))


@dataclass(frozen=True)
class Crc32c:
    """Zarr's checksum, four bytes after the chunk."""

    def decode(self, raw: Buffer, n_bytes: int | None) -> Buffer:  # noqa: ARG002
        from google_crc32c import value

        body = memoryview(raw)[:-4]
        # google_crc32c takes bytes alone.
        if len(raw) < 4 or value(bytes(body)) != int.from_bytes(raw[-4:], "little"):
            raise ChunkError("its checksum (crc32c) does not match")
        return body


def decode(pipeline: Sequence[Decoder], raw: Buffer, dtype: np.dtype, n_values: int) -> np.ndarray:
    """Decode the numbers of a chunk, with the byte order of ``dtype`` as stored."""
    n_bytes = n_values * dtype.itemsize
    for step in pipeline:
        raw = step.decode(raw, n_bytes)
    flat = np.frombuffer(raw, np.uint8)
    if flat.size != n_bytes:
        raise ChunkError(f"it holds {flat.size:,} bytes instead of {n_bytes:,}")
    return flat.view(dtype)
