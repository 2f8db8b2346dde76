"""Zarr v3 arrays written front to back, in bounded memory and to the same bytes on every run.

zarr-python encodes a shard in one call, so that a writer has to hold a whole decoded shard. Here a
chunk is encoded as soon as it is full and goes straight into the shard's file; the shard's index,
which the format puts at the end, follows when the shard is complete. What is held is a few chunks,
whatever the size of a shard, and nothing is read back but for a wider dtype. The files equal those
of zarr-python byte for byte (a test holds them together).
"""

from __future__ import annotations

import hashlib
import shutil
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from google_crc32c import value as crc32c
from numcodecs import Blosc, VLenUTF8, Zstd, blosc

from scatlas._util.byte_sizes import parse_bytes
from scatlas.compute.threads import n_threads
from scatlas.io.chunks.native_codecs import run_encoder
from scatlas.io.files.checksums import VALUES_DIGEST
from scatlas.io.files.local_zarr import LocalArray
from scatlas.io.zarr_writer.array_metadata import array_metadata

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future
    from pathlib import Path

    import zarr

    from scatlas.io.chunks.native_codecs import RunEncoder

# Values of a chunk: the piece a reader decodes at once. 0.25 to 2 MB fit a core's cache, and one
# call per chunk costs little beside decoding it.
CHUNK_VALUES = 2**18
# Values of a shard, that is of a file. 15e9 values, the largest plate in sight, are 224 files an
# array; a shard's index (256 entries, 4 kB) is read at once.
SHARD_VALUES = 2**26

# Bytes a value takes while it is copied: value and index, decoded, and once more on their way.
_PIECE_BYTES = 64


def piece_values(block_budget: str | int) -> int:
    """Values of a sparse matrix to read at once within the budget, in whole chunks.

    Several pieces are in memory: one being read, one in work, and their chunks.
    """
    return max(1, parse_bytes(block_budget) // (_PIECE_BYTES * CHUNK_VALUES)) * CHUNK_VALUES


# Bytes encoded in one call: chunks enough that the interpreter, which one thread has at a time,
# does not hold up the others; few enough that all threads have work.
_RUN_BYTES = 2**21
_EMPTY = np.iinfo(np.uint64).max
_CHECKSUM_BYTES = 4
_ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
# Bytes of the number of strings before them.
_VLEN_HEADER = 4


@dataclass(frozen=True)
class Compression:
    """Blosc's LZ4 at a level, after rearranging bytes or bits."""

    level: int
    shuffle: Literal["noshuffle", "shuffle", "bitshuffle"]

    def encoder(self) -> Blosc:
        """Compressor of single chunks."""
        # In the main thread numcodecs lets Blosc use threads of its own, which write the blocks of
        # a chunk in the order in which they finish: other bytes on each run. zarr-python sets this,
        # too, where it is imported.
        blosc.use_threads = False
        return Blosc("lz4", self.level, self._mode)

    def run_encoder(self) -> RunEncoder | None:
        """The same for several chunks, with their checksums."""
        return run_encoder("lz4", self.level, self._mode)

    @property
    def _mode(self) -> int:
        return {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}[self.shuffle]

    def codec(self, itemsize: int) -> dict[str, Any]:
        """The same compressor in Zarr's metadata."""
        configuration = {
            "typesize": itemsize,
            "cname": "lz4",
            "clevel": self.level,
            "shuffle": self.shuffle,
            "blocksize": 0,
        }
        return {"name": "blosc", "configuration": configuration}


# Measured on one core (Zen 4, chunks of 2^18 values; simulated plate of 62,710 genes with 1,275
# values a cell; bytes a value, encoded and decoded M values/s). Counts are written once and
# decoded at least twice, so decoding decides:
#
#                        lz4 noshuffle     lz4 shuffle       lz4 bitshuffle    zstd 1
#   counts uint8         0.57  494 2331    0.57  493 2353    0.45 1282 1990    0.32  303 1069
#   counts uint16        0.80  399 1135    0.57  407 1863    0.45  866 1665    0.42  223  497
#   indices uint16       2.00 1112 9861    1.43  473 1886    1.47  606 1447    1.98  420 4369
#   log1p f32, level 5   2.31  161  981    3.13  288  787    3.21  316  821    1.25   96  222
#   log1p f32, level 9   1.80  132  879    2.83  154  490    3.17  213  689
#
# A stored count with its index takes 1.9 bytes and decodes at 0.97 G values/s on a core. On real
# plates (28,455 genes, 7,100 values a cell) it is 1.7 bytes. The log-normalised values of a cell
# take few distinct values, which matching whole floats finds and shuffling hides.
COUNTS = Compression(5, "bitshuffle")
INDICES = Compression(5, "shuffle")
NORMALIZED = Compression(9, "noshuffle")
DENSE = Compression(5, "shuffle")
# Projected cells are nearly noise: 0.88 of their size at 1.6 GB/s (bytes shuffled: 0.96, 1.0 GB/s).
PROJECTED = Compression(5, "bitshuffle")


def encoding_pool() -> ThreadPoolExecutor:
    """Threads that compress chunks; Blosc and zstd leave the interpreter lock."""
    return ThreadPoolExecutor(n_threads(), thread_name_prefix="scatlas-encode")


class ShardedArray:
    """An append-only Zarr v3 array, cut into chunks and shards along its first axis.

    The bytes on disk depend on the values alone: not on the pieces in which they were appended,
    nor on the number of threads. An array of less than a chunk gets one chunk of its own length.

    Parameters
    ----------
    path
        Folder of the array; made here.
    dtype
        A NumPy number or bool dtype, or ``object`` for strings (``str`` only, nothing missing).
    pool
        Threads that encode; several arrays may share them.
    compression
        How numbers are compressed; strings take zstd.
    row_shape
        Shape of one entry along the first axis; ``()`` for a 1-D array.
    attributes
        Attributes of the array, as AnnData's encoding of the element asks for.
    digest
        Whether the array gets the attribute :data:`scatlas.io.files.checksums.VALUES_DIGEST`.
    """

    def __init__(
        self,
        path: Path,
        dtype: np.dtype | type,
        pool: ThreadPoolExecutor,
        *,
        compression: Compression = DENSE,
        row_shape: tuple[int, ...] = (),
        attributes: Mapping[str, Any] | None = None,
        digest: bool = False,
    ) -> None:
        self.path = path
        self.dtype = np.dtype(dtype)
        self.n_rows = 0
        self._pool = pool
        self._row_shape = row_shape
        self._attributes = dict(attributes or {})
        self._digest = digest
        # A name takes some 20 bytes, and as a Python string 70.
        width = 8 if self.dtype.kind == "O" else max(1, int(np.prod(row_shape)))
        # Powers of two, so that chunks divide shards whatever the width.
        self._chunk_rows = max(1, 2 ** int(np.log2(max(1, CHUNK_VALUES // width))))
        self._shard_chunks = SHARD_VALUES // CHUNK_VALUES
        self._compression = compression
        self._text = self.dtype.kind == "O"
        self._encoder = Zstd(1) if self._text else compression.encoder()
        codec = _ZSTD if self._text else compression.codec(self.dtype.itemsize)
        # Four bytes a chunk tell a damaged disk from data; Blosc would decode them to anything.
        self._codecs = [codec, {"name": "crc32c"}]
        self._buffer = self._new_buffer()
        self._filled = 0
        # Two chunks a thread in flight: the encoders stay busy and memory stays small.
        self._most_in_flight = 2 * n_threads()
        self._in_flight: deque[Future[None]] = deque()
        # Writes in order, beside the thread that appends.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="scatlas-write")
        self._lengths: list[int] = []  # encoded bytes of each chunk written so far
        self._checksums: list[int] = []  # CRC-32C of each before; none of those that came encoded
        self._n_submitted = 0
        self._row_bytes = self.dtype.itemsize * max(1, int(np.prod(row_shape)))
        self._shard_file = None

    def append(self, values: np.ndarray, *, lasting: bool = False) -> None:
        """Append along the first axis.

        Parameters
        ----------
        values
            Copied, and cast if need be.
        lasting
            Nobody changes the values before the array is closed: whole chunks need no copy.
        """
        whole = lasting and values.dtype == self.dtype and values.flags.c_contiguous
        start = 0
        while start < len(values):
            stop = min(len(values), start + self._chunk_rows - self._filled)
            if whole and stop - start == self._chunk_rows:
                stop = start + self._together(len(values) - start) * self._chunk_rows
                self._submit(values[start:stop])
                start = stop
                continue
            end = self._filled + stop - start
            if self._text:
                # As bytes from the start: Python's strings take four times the memory.
                self._buffer += VLenUTF8().encode(values[start:stop])[_VLEN_HEADER:]
            else:
                self._buffer[self._filled : end] = values[start:stop]
            self._filled, start = end, stop
            if self._filled == self._chunk_rows:
                self._submit(self._buffer)
                self._buffer, self._filled = self._new_buffer(), 0
        self.n_rows += len(values)

    def takes_chunks_of(self, other: LocalArray | zarr.Array) -> bool:
        """Whether whole chunks of another array can be appended as they are encoded."""
        if self._filled or not isinstance(other, LocalArray) or other.dtype != self.dtype:
            return False
        (first, *_) = other.document["codecs"]
        configuration = first.get("configuration", {})
        return (
            first["name"] == "sharding_indexed"
            and configuration["chunk_shape"] == [self._chunk_rows, *self._row_shape]
            and configuration["codecs"][1:] == self._codecs
        )

    def append_encoded(self, chunk: bytes | memoryview) -> None:
        """Append a whole chunk as :meth:`takes_chunks_of` allows it."""
        self._drain()
        self._n_submitted += 1
        self._write(chunk, [len(chunk)], [])
        self.n_rows += self._chunk_rows

    def widened(self, dtype: np.dtype | type) -> ShardedArray:
        """Return a writer of the same values in a wider dtype; this one and its files are gone.

        The result is as if the wider dtype had been used from the start.
        """
        self._drain()
        self._writer.shutdown()
        self._close_shard_file()
        old = self.path.with_name(f"{self.path.name}.narrow")
        if self._lengths:
            self.path.rename(old)
        wide = ShardedArray(
            self.path,
            dtype,
            self._pool,
            compression=self._compression,
            row_shape=self._row_shape,
            attributes=self._attributes,
            digest=self._digest,
        )
        shape = (self._chunk_rows, *self._row_shape)
        for first in range(0, len(self._lengths), self._shard_chunks):
            file = old / self._shard_name(first // self._shard_chunks)
            with file.open("rb") as shard:
                for length in self._lengths[first : first + self._shard_chunks]:
                    chunk = self._encoder.decode(shard.read(length)[:-_CHECKSUM_BYTES])
                    wide.append(np.frombuffer(chunk, self.dtype).reshape(shape))
            file.unlink()
        wide.append(self._buffer[: self._filled])
        if self._lengths:
            shutil.rmtree(old)
        return wide

    def close(self) -> None:
        """Write what is left and the metadata."""
        n_chunks = -(-self.n_rows // self._chunk_rows)
        # An array of one shard is cut to its own size, one of a single chunk to its own length:
        # readers of small stores decode no padding.
        if n_chunks <= 1:
            self._chunk_rows = max(1, self.n_rows)
        self._shard_chunks = max(1, min(self._shard_chunks, n_chunks))
        if self._filled:
            if self._text:
                missing = np.full(self._chunk_rows - self._filled, "", object)
                last = self._buffer + VLenUTF8().encode(missing)[_VLEN_HEADER:]
            else:
                last = self._buffer[: self._chunk_rows]
                last[self._filled :] = 0
            # Here and now: a thread would cost more than most columns.
            self._drain()
            self._write(*self._encode(last))
        self._drain()
        self._writer.shutdown()
        if self._shard_file is not None:
            self._finish_shard()
        self.path.mkdir(parents=True, exist_ok=True)
        metadata = array_metadata(
            (self.n_rows, *self._row_shape),
            self.dtype,
            chunk=(self._chunk_rows, *self._row_shape),
            shard=(self._chunk_rows * self._shard_chunks, *self._row_shape),
            codecs=self._codecs,
            attributes=self._attributes | self._values_digest(),
        )
        (self.path / "zarr.json").write_text(metadata, encoding="utf-8")
        self._buffer = self._buffer[:0]

    def _values_digest(self) -> dict[str, str]:
        if not self._digest:
            return {}
        checksums = np.array(self._checksums, "<u4")
        return {VALUES_DIGEST: hashlib.blake2b(checksums, digest_size=8).hexdigest()}

    def _new_buffer(self) -> np.ndarray | bytearray:
        if self._text:
            return bytearray()
        return np.empty((self._chunk_rows, *self._row_shape), self.dtype)

    def _together(self, n_rows: int) -> int:
        """Chunks of so many rows that are encoded and written at once: of one shard."""
        left = self._shard_chunks - self._n_submitted % self._shard_chunks
        most = max(1, _RUN_BYTES // (self._chunk_rows * self._row_bytes))
        n = min(n_rows // self._chunk_rows, left, most)
        return n if n > 1 and self._compression.run_encoder() is not None else 1

    def _submit(self, chunks: np.ndarray | bytearray) -> None:
        while len(self._in_flight) >= self._most_in_flight:
            self._in_flight.popleft().result()
        self._n_submitted += 1 if self._text else len(chunks) // self._chunk_rows
        encoded = self._pool.submit(self._encode, chunks)
        self._in_flight.append(self._writer.submit(lambda: self._write(*encoded.result())))

    def _encode(
        self, chunks: np.ndarray | bytearray
    ) -> tuple[bytes | memoryview, list[int], list[int]]:
        """Chunks as they lie on disk, the bytes of each, and its checksum before."""
        if len(chunks) > self._chunk_rows and not self._text:
            return self._compression.run_encoder()(chunks, self._chunk_rows * self._row_bytes)
        if self._text:
            chunks = self._chunk_rows.to_bytes(_VLEN_HEADER, "little") + chunks
        encoded = self._encoder.encode(chunks)
        encoded += crc32c(encoded).to_bytes(_CHECKSUM_BYTES, "little")
        return encoded, [len(encoded)], [crc32c(chunks)]

    def _drain(self) -> None:
        while self._in_flight:
            self._in_flight.popleft().result()

    def _write(self, encoded: bytes | memoryview, lengths: list[int], checksums: list[int]) -> None:
        if self._shard_file is None:
            file = self.path / self._shard_name(len(self._lengths) // self._shard_chunks)
            file.parent.mkdir(parents=True, exist_ok=True)
            self._shard_file = file.open("wb")
        self._shard_file.write(encoded)
        self._lengths += lengths
        self._checksums += checksums
        if len(self._lengths) % self._shard_chunks == 0:
            self._finish_shard()

    def _finish_shard(self) -> None:
        used = len(self._lengths) % self._shard_chunks or self._shard_chunks
        lengths = np.array(self._lengths[-used:], np.uint64)
        index = np.full((self._shard_chunks, 2), _EMPTY, np.uint64)
        index[:used, 1] = lengths
        index[:used, 0] = np.cumsum(lengths) - lengths
        encoded = index.astype("<u8").tobytes()
        checksum = crc32c(encoded).to_bytes(_CHECKSUM_BYTES, "little")
        self._shard_file.write(encoded + checksum)
        self._close_shard_file()

    def _close_shard_file(self) -> None:
        if self._shard_file is not None:
            self._shard_file.close()
            self._shard_file = None

    def _shard_name(self, number: int) -> str:
        return "/".join(["c", str(number), *("0" for _ in self._row_shape)])

    def abandon(self) -> None:
        """Let go of threads and files after an error; the files are the caller's to remove."""
        for future in self._in_flight:
            future.cancel()
        self._in_flight.clear()
        self._writer.shutdown()
        self._close_shard_file()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()
