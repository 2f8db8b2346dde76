"""Append-only Zarr v3 arrays, in bounded memory and with the same bytes on every run.

zarr-python encodes a shard in one call. Here a chunk is encoded and written as soon as it is full,
and the shard's index at its end: the memory is a few chunks. A test compares the bytes of both.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from google_crc32c import value as crc32c
from numcodecs import Blosc, VLenUTF8, Zstd, blosc

from scatlas._util.numbers import parse_bytes
from scatlas.compute.threads import n_threads
from scatlas.io.chunks.native_codecs import run_encoder
from scatlas.io.files.checksums import VALUES_DIGEST
from scatlas.io.files.local_zarr import LocalArray
from scatlas.io.zarr_writer.node_metadata import write_sharded_array_metadata
from scatlas.io.zarr_writer.shard_files import CHECKSUM_BYTES, EncodedRun, ShardFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Future
    from pathlib import Path

    from scatlas.io.chunks.encoded_text import EncodedText
    from scatlas.io.chunks.native_codecs import RunEncoder
    from scatlas.io.files.local_zarr import StoredArray

# Values per chunk, which a reader decodes at once. 0.25 to 2 MB fit the cache of a core,
# and the overhead of one call per chunk is small beside decoding.
CHUNK_VALUES = 2**18
# Values per shard, that is per file. 15e9 values, the largest plate known, are 224 files per array.
# A reader reads the index of a shard (256 entries, 4 kB) at once.
SHARD_VALUES = 2**26
# Bytes per value of a piece that is copied: decoded value and index, and the copies in flight.
_PIECE_BYTES = 64
# Bytes to encode in one call: enough chunks that threads rarely wait for the interpreter's lock,
# and few enough that all threads have work.
_RUN_BYTES = 2**21
# Bytes of a single chunk that is encoded without the interpreter's lock.
_LARGE_BYTES = 2**17
_ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
# Bytes of the number of strings before the strings of a chunk.
_VLEN_HEADER = 4


def values_per_piece(block_budget: str | int) -> int:
    """Values of a sparse matrix to copy at once, read and written, in whole chunks."""
    return max(1, parse_bytes(block_budget) // (_PIECE_BYTES * CHUNK_VALUES)) * CHUNK_VALUES


@dataclass(frozen=True)
class Compression:
    """Blosc's LZ4 at a level, after a shuffle of bytes or bits."""

    level: int
    shuffle: Literal["noshuffle", "shuffle", "bitshuffle"]

    def encoder(self) -> Blosc:
        # In the main thread numcodecs lets Blosc start threads, which write the blocks of a chunk
        # in the order in which they finish: other bytes on each run. Importing zarr-python sets
        # this, too.
        blosc.use_threads = False
        return Blosc("lz4", self.level, self._shuffle_number)

    def run_encoder(self) -> RunEncoder | None:
        """Compressor of several chunks in one call; None if a C function is missing."""
        return run_encoder("lz4", self.level, self._shuffle_number)

    @property
    def _shuffle_number(self) -> int:
        return {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}[self.shuffle]

    def metadata(self, itemsize: int) -> dict[str, Any]:
        configuration = {
            "typesize": itemsize,
            "cname": "lz4",
            "clevel": self.level,
            "shuffle": self.shuffle,
            "blocksize": 0,
        }
        return {"name": "blosc", "configuration": configuration}


# Measured on one core (Zen 4, chunks of 2^18 values; simulated plate of 62,710 genes with 1,275
# values per cell): bytes per value, encoded and decoded M values/s. Counts are written once and
# decoded at least twice, so that decoding decides:
#
#                        lz4 noshuffle     lz4 shuffle       lz4 bitshuffle    zstd 1
#   counts uint8         0.57  494 2331    0.57  493 2353    0.45 1282 1990    0.32  303 1069
#   counts uint16        0.80  399 1135    0.57  407 1863    0.45  866 1665    0.42  223  497
#   indices uint16       2.00 1112 9861    1.43  473 1886    1.47  606 1447    1.98  420 4369
#   log1p f32, level 5   2.31  161  981    3.13  288  787    3.21  316  821    1.25   96  222
#   log1p f32, level 9   1.80  132  879    2.83  154  490    3.17  213  689
#
# A stored count with its index takes 1.9 bytes and decodes at 0.97 G values/s per core. On real
# plates (28,455 genes, 7,100 values per cell) it takes 1.7 bytes. A cell has few distinct
# log-normalised values, which LZ4 finds as whole floats and shuffling hides.
#
# Indices are int32, because SciPy knows no uint16. Shuffled, two bytes of zeros take 0.008 bytes
# per value, and 0.1 ns to decode.
COUNTS_CODEC = Compression(5, "bitshuffle")
INDICES_CODEC = Compression(5, "shuffle")
NORMALIZED_CODEC = Compression(9, "noshuffle")
DENSE_CODEC = Compression(5, "shuffle")
# Projected cells are nearly noise: 0.88 of their size at 1.6 GB/s (byte shuffle: 0.96, 1.0 GB/s).
PROJECTED_CODEC = Compression(5, "bitshuffle")
# Stored as they are, with the checksum: what steps hand on to the next one, once.
RAW_CODEC = Compression(0, "noshuffle")


def encoding_pool() -> ThreadPoolExecutor:
    """Threads that compress chunks; Blosc and zstd release the interpreter's lock."""
    return ThreadPoolExecutor(n_threads(), thread_name_prefix="scatlas-encode")


class ShardedArray:
    """A new append-only Zarr v3 array of numbers, bool or text; equal values give equal bytes.

    ``chunk_values`` is a power of two, and the length of a shorter array is its chunk, but with
    ``fixed_grid``: files of such arrays make one array. ``digest`` adds
    :data:`scatlas.io.files.checksums.VALUES_DIGEST`.
    """

    def __init__(
        self,
        path: Path,
        dtype: np.dtype | type,
        pool: ThreadPoolExecutor,
        *,
        compression: Compression = DENSE_CODEC,
        row_shape: tuple[int, ...] = (),
        attributes: Mapping[str, Any] | None = None,
        digest: bool = False,
        chunk_values: int | None = None,
        fixed_grid: bool = False,
    ) -> None:
        self.path = path
        self.dtype = np.dtype(dtype)
        self.n_rows = 0
        self._pool = pool
        self._row_shape = row_shape
        self._attributes = dict(attributes or {})
        self._digest = digest
        self._fixed_grid = fixed_grid
        # A name takes some 20 bytes, and as a Python string 70.
        width = 8 if self.dtype.kind == "O" else max(1, int(np.prod(row_shape)))
        # Powers of two, so that chunks divide shards whatever the width.
        self._chunk_values = chunk_values or CHUNK_VALUES
        self._chunk_rows = max(1, 2 ** int(np.log2(max(1, self._chunk_values // width))))
        self._files = ShardFiles(path, SHARD_VALUES // CHUNK_VALUES, 1 + len(row_shape))
        self._compression = compression
        self._is_text = self.dtype.kind == "O"
        self._encoder = Zstd(1) if self._is_text else compression.encoder()
        codec = _ZSTD if self._is_text else compression.metadata(self.dtype.itemsize)
        # Four bytes per chunk reveal a damaged disk; Blosc alone would decode damaged data.
        self._codecs = [codec, {"name": "crc32c"}]
        # Rows of the chunk that is not full yet: arrays, for text the encoded strings.
        self._rest: Any = self._no_rest()
        self._n_rest = 0
        # Two chunks per thread in flight keep the encoders busy and the memory small.
        self._max_in_flight = 2 * n_threads()
        self._in_flight: deque[Future[None]] = deque()
        self._n_runs = 0
        self._n_chunks = 0
        self._row_bytes = self.dtype.itemsize * max(1, int(np.prod(row_shape)))

    def append(self, values: np.ndarray | EncodedText, *, copy: bool = True) -> None:
        """Append values; with ``copy=False`` they must not change before the array is closed."""
        numbers: Any = values
        is_final = not (copy or self._is_text) and numbers.flags.c_contiguous
        start = 0
        while start < len(values):
            stop = min(len(values), start + self._chunk_rows - self._n_rest)
            if is_final and stop - start == self._chunk_rows:
                stop = start + self._chunks_per_call(len(values) - start) * self._chunk_rows
                self._submit([numbers[start:stop]])
                start = stop
                continue
            if self._is_text:
                # Bytes at once, because Python's strings take four times the memory.
                self._rest += _encoded_text(values[start:stop])
            else:
                rows = numbers[start:stop]
                self._rest.append(rows if is_final else rows.astype(self.dtype, order="C"))
            self._n_rest, start = self._n_rest + stop - start, stop
            if self._n_rest == self._chunk_rows:
                self._submit(self._rest)
                self._rest, self._n_rest = self._no_rest(), 0
        self.n_rows += len(values)

    def can_append_chunks_of(self, other: StoredArray) -> bool:
        """Whether :meth:`append_encoded_chunks` accepts the chunks of another array."""
        if self._n_rest or not isinstance(other, LocalArray) or other.dtype != self.dtype:
            return False
        (first, *_) = other.document["codecs"]
        configuration = first.get("configuration", {})
        return bool(
            first["name"] == "sharding_indexed"
            and configuration["chunk_shape"] == [self._chunk_rows, *self._row_shape]
            and configuration["codecs"][1:] == self._codecs
        )

    def append_encoded_chunks(
        self, read: Callable[[int, int], Iterable[memoryview]], n_chunks: int
    ) -> None:
        """Append whole chunks that :meth:`can_append_chunks_of` accepts; threads call ``read``."""

        def read_run(first: int, stop: int) -> EncodedRun:
            content, sizes = bytearray(), []
            for chunk in read(first, stop):
                content += chunk
                sizes.append(len(chunk))
            return EncodedRun(content, sizes, [])

        first = 0
        while first < n_chunks:
            stop = first + min(n_chunks - first, self._max_chunks_per_call)
            self._run(stop - first, partial(read_run, first, stop))
            first = stop
        self._drain()
        self.n_rows += n_chunks * self._chunk_rows

    def rewrite(self, dtype: np.dtype | type) -> ShardedArray:
        """Writer of the same values in another dtype, with files as if it had been the first."""
        self._drain()
        self._files.abandon()
        sizes, shard_chunks = self._files.sizes, self._files.shard_chunks
        before = self.path.with_name(f"{self.path.name}.before")
        if sizes:
            self.path.rename(before)
        after = ShardedArray(
            self.path,
            dtype,
            self._pool,
            compression=self._compression,
            row_shape=self._row_shape,
            attributes=self._attributes,
            digest=self._digest,
            chunk_values=self._chunk_values,
            fixed_grid=self._fixed_grid,
        )
        shape = (self._chunk_rows, *self._row_shape)
        for first in range(0, len(sizes), shard_chunks):
            file = before / self._files.name(first // shard_chunks)
            with file.open("rb") as shard:
                for size in sizes[first : first + shard_chunks]:
                    chunk = self._encoder.decode(shard.read(size)[:-CHECKSUM_BYTES])
                    after.append(np.frombuffer(chunk, self.dtype).reshape(shape))
            file.unlink()
        for rows in self._rest:
            after.append(rows)
        if sizes:
            shutil.rmtree(before)
        return after

    def close(self) -> None:
        n_chunks = -(-self.n_rows // self._chunk_rows)
        # A single shard has the chunks that exist, and a single chunk the rows that exist: readers
        # of small stores decode no padding.
        if not self._fixed_grid:
            if n_chunks <= 1:
                self._chunk_rows = max(1, self.n_rows)
            self._files.shard_chunks = max(1, min(self._files.shard_chunks, n_chunks))
        if self._n_rest:
            if self._is_text:
                padding = np.full(self._chunk_rows - self._n_rest, "", object)
                self._rest += _encoded_text(padding)
            else:
                shape = (self._chunk_rows - self._n_rest, *self._row_shape)
                self._rest.append(np.zeros(shape, self.dtype))
            # In this thread: another would cost more than most columns take.
            self._files.put(self._n_runs, self._encode(self._rest))
        self._drain()
        self._files.finish()
        self.path.mkdir(parents=True, exist_ok=True)
        if self._digest:
            checksums = np.array(self._files.checksums, "<u4")
            digest = hashlib.blake2b(checksums.data, digest_size=8).hexdigest()
            self._attributes[VALUES_DIGEST] = digest
        write_sharded_array_metadata(
            self.path,
            (self.n_rows, *self._row_shape),
            self.dtype,
            chunk=(self._chunk_rows, *self._row_shape),
            shard=(self._chunk_rows * self._files.shard_chunks, *self._row_shape),
            codecs=self._codecs,
            attributes=self._attributes,
        )
        self._rest = self._no_rest()

    def _no_rest(self) -> list[np.ndarray] | bytearray:
        return bytearray() if self._is_text else []

    def _chunks_per_call(self, n_rows: int) -> int:
        """Chunks of these rows to encode and write in one call, all in one shard."""
        n = min(n_rows // self._chunk_rows, self._max_chunks_per_call)
        return n if n > 1 and self._compression.run_encoder() is not None else 1

    @property
    def _max_chunks_per_call(self) -> int:
        left_in_shard = self._files.shard_chunks - self._n_chunks % self._files.shard_chunks
        return min(left_in_shard, max(1, _RUN_BYTES // (self._chunk_rows * self._row_bytes)))

    def _submit(self, rows: list[np.ndarray] | bytearray) -> None:
        """Let a thread join and encode the rows of whole chunks, or the text of one."""
        n_rows = sum(len(part) for part in rows) if isinstance(rows, list) else self._chunk_rows
        self._run(n_rows // self._chunk_rows, lambda: self._encode(rows))

    def _run(self, n_chunks: int, encode: Callable[[], EncodedRun]) -> None:
        while len(self._in_flight) >= self._max_in_flight:
            self._in_flight.popleft().result()
        number = self._n_runs
        self._in_flight.append(self._pool.submit(lambda: self._files.put(number, encode())))
        self._n_runs += 1
        self._n_chunks += n_chunks

    def _encode(self, rows: list[np.ndarray] | bytearray) -> EncodedRun:
        chunks: Any = rows
        if isinstance(rows, list):
            chunks = rows[0].astype(self.dtype, copy=False)
            if len(rows) > 1:
                chunks = np.concatenate(rows, dtype=self.dtype, casting="unsafe")
        # The import of Numba takes longer than a small chunk.
        is_large = len(chunks) > self._chunk_rows or len(chunks) * self._row_bytes >= _LARGE_BYTES
        if is_large and not self._is_text:
            if encode := self._compression.run_encoder():
                return EncodedRun(*encode(chunks, self._chunk_rows * self._row_bytes))
            if len(chunks) > self._chunk_rows:
                raise RuntimeError("several chunks without an encoder of runs")
        if self._is_text:
            chunks = self._chunk_rows.to_bytes(_VLEN_HEADER, "little") + chunks
        encoded = self._encoder.encode(chunks)
        encoded += crc32c(encoded).to_bytes(CHECKSUM_BYTES, "little")
        return EncodedRun(encoded, [len(encoded)], [crc32c(chunks)])

    def _drain(self) -> None:
        while self._in_flight:
            self._in_flight.popleft().result()

    def abandon(self) -> None:
        """Stop threads and close files after an error; the caller removes the files."""
        for future in self._in_flight:
            future.cancel()
        wait(self._in_flight)
        self._in_flight.clear()
        self._files.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


def _encoded_text(texts: np.ndarray | EncodedText) -> bytes | memoryview:
    """Lengths and UTF-8 of texts, as in a chunk."""
    if isinstance(texts, np.ndarray):
        return VLenUTF8().encode(texts)[_VLEN_HEADER:]
    return texts.content.data
