"""Chunks of a one-dimensional array on a local disk: where they lie, and a cache of shared ones.

HDF5 decodes under a global lock, and zarr-python whole shards through an event loop. With these
locations any thread reads and decodes any chunk (:mod:`scatlas.io.chunks.chunk_reader`).
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scatlas.compute.threads import n_threads
from scatlas.io.chunks.codecs import ChunkError, Crc32c, Decoder

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

# Offset in a shard's index of a chunk that was never written.
_NO_CHUNK = np.iinfo(np.uint64).max
# A pass that skips blocks or stops early leaves entries behind: above 64 MB evict the least
# recently used, but keep what blocks in flight wait for: a chunk of values and one of indices per
# thread, which may be larger than that.
_MAX_BYTES = 64_000_000
_CHUNKS_PER_THREAD = 2


@dataclass(frozen=True)
class ChunkedArray:
    """A one-dimensional array of numbers: picklable, and small once restricted to a range."""

    key: str  # element in the file, as X/data
    n_values: int
    dtype: np.dtype  # as stored, with its byte order
    chunk_values: int  # the last chunk is padded
    pipeline: tuple[Decoder, ...]  # in the order of decoding
    locations: Hdf5Chunks | ZarrChunks
    # Value of chunks that were never written; None if every chunk must exist.
    fill_value: float | None = None

    @property
    def is_raw(self) -> bool:
        """Whether the chunks are not encoded, so that any byte range can be read alone."""
        return not self.pipeline

    def chunk_range(self, begin: int, end: int) -> tuple[int, int]:
        """First chunk, and last chunk plus one, of values ``begin`` to ``end - 1``."""
        if begin >= end:
            return 0, 0
        return begin // self.chunk_values, -(-end // self.chunk_values)

    def for_values(self, begin: int, end: int) -> ChunkedArray:
        """The same array with the locations for values ``begin`` to ``end - 1`` alone."""
        return replace(self, locations=self.locations.for_chunks(*self.chunk_range(begin, end)))


@dataclass(frozen=True)
class Hdf5Chunks:
    """Chunks of an HDF5 dataset: byte ranges of one file."""

    path: str
    first: int  # number of the first chunk in the lists
    # int64, one per chunk; offset -1 for a chunk that was never written.
    offsets: np.ndarray = field(repr=False)
    sizes: np.ndarray = field(repr=False)
    # uint32, one per chunk: bit i is set if HDF5 did not apply filter i.
    skipped_filters: np.ndarray = field(repr=False)
    n_filters: int

    def for_chunks(self, first: int, stop: int) -> Hdf5Chunks:
        rows = slice(first - self.first, stop - self.first)
        return replace(
            self,
            first=first,
            offsets=self.offsets[rows].copy(),
            sizes=self.sizes[rows].copy(),
            skipped_filters=self.skipped_filters[rows].copy(),
        )

    def byte_ranges(self, first: int, stop: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Yield path, offsets and sizes of consecutive chunks, one file at a time."""
        rows = slice(first - self.first, stop - self.first)
        yield self.path, self.offsets[rows], self.sizes[rows]

    def have_all_filters(self, first: int, stop: int) -> bool:
        """Whether HDF5 applied all filters to chunks ``first`` to ``stop - 1``."""
        return not self.skipped_filters[first - self.first : stop - self.first].any()

    def stamp(self, chunk: int) -> None:
        """None: a change of any chunk changes the stamp of the file, which the caller has."""

    def pipeline_of(self, chunk: int, pipeline: tuple[Decoder, ...]) -> tuple[Decoder, ...]:
        """Decoders of one chunk: HDF5 skips a filter that gains nothing."""
        skipped = int(self.skipped_filters[chunk - self.first])
        if not skipped:
            return pipeline
        last = self.n_filters - 1
        return tuple(step for i, step in enumerate(pipeline) if not skipped >> (last - i) & 1)


@dataclass(frozen=True)
class ZarrChunks:
    """Chunks of a Zarr array: one file per chunk, or one per shard of several chunks."""

    prefix: str  # path of the files without their number
    shard_chunks: int  # chunks per shard; 0 if each chunk is a file
    index_at_end: bool = True  # of a shard
    suffix: str = ""  # after the number: /0 for a matrix in chunks of whole rows

    def for_chunks(self, first: int, stop: int) -> ZarrChunks:  # noqa: ARG002
        """Itself: file names follow from the numbers of the chunks."""
        return self

    def byte_ranges(self, first: int, stop: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """As of `Hdf5Chunks`; the offset of a chunk that was never written is -1."""
        if not self.shard_chunks:
            for chunk in range(first, stop):
                path = f"{self.prefix}{chunk}{self.suffix}"
                size = _file_size(path)
                yield path, np.array([-1 if size is None else 0]), np.array([size or 0])
            return
        for shard in range(first // self.shard_chunks, -(-stop // self.shard_chunks)):
            begin = shard * self.shard_chunks
            rows = slice(max(first - begin, 0), min(stop - begin, self.shard_chunks))
            path = f"{self.prefix}{shard}{self.suffix}"
            size = _file_size(path)
            if size is None:
                offsets = sizes = np.full(self.shard_chunks, -1)
            else:
                offsets, sizes = self._read_index(path, size)
            yield path, offsets[rows], sizes[rows]

    def have_all_filters(self, first: int, stop: int) -> bool:  # noqa: ARG002
        """Always: Zarr encodes all chunks of an array alike."""
        return True

    def stamp(self, chunk: int) -> tuple[int, int] | None:
        """Time and size of the chunk's file: the stamp of a store covers its metadata alone."""
        try:
            number = chunk // max(1, self.shard_chunks)
            stat = Path(f"{self.prefix}{number}{self.suffix}").stat()
        except FileNotFoundError:
            return None
        return stat.st_mtime_ns, stat.st_size

    def pipeline_of(self, chunk: int, pipeline: tuple[Decoder, ...]) -> tuple[Decoder, ...]:  # noqa: ARG002
        return pipeline

    def _read_index(self, path: str, size: int) -> tuple[np.ndarray, np.ndarray]:
        n_bytes = 16 * self.shard_chunks + 4
        if size < n_bytes:
            raise ChunkError(f"{path} is truncated: {size:,} bytes")
        with open_to_read(path) as fd:
            raw = os.pread(fd, n_bytes, size - n_bytes if self.index_at_end else 0)
        table = np.frombuffer(Crc32c().decode(raw, n_bytes - 4), "<u8").reshape(-1, 2)
        exists = table[:, 0] != _NO_CHUNK
        # The reader refuses offsets beyond the end of the file.
        offsets, sizes = np.minimum(table, np.uint64(2**62)).astype(np.int64).T
        return np.where(exists, offsets, -1), np.where(exists, sizes, 0)


@contextmanager
def open_to_read(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _file_size(path: str) -> int | None:
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        return None


@dataclass
class _Entry:
    n_readers: int
    ready: threading.Event = field(default_factory=threading.Event)
    values: np.ndarray | None = None


class SharedChunkCache:
    """LRU cache of chunks that two or more blocks need, each dropped after the last of these."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    def get(self, key: Hashable, n_readers: int, decode: Callable[[], np.ndarray]) -> np.ndarray:
        """Values of a chunk; the first caller decodes, others wait and get its error, too."""
        with self._lock:
            entry = self._entries.get(key)
            is_first = entry is None
            if entry is None:
                entry = self._entries[key] = _Entry(n_readers)
        if is_first:
            try:
                entry.values = decode()
            finally:
                if entry.values is None:
                    with self._lock:
                        if self._entries.get(key) is entry:
                            del self._entries[key]
                entry.ready.set()
        else:
            entry.ready.wait()
            if entry.values is None:
                return decode()
        values = entry.values
        with self._lock:
            entry.n_readers -= 1
            if entry.n_readers <= 0:
                self._entries.pop(key, None)
            elif key in self._entries:
                self._entries.move_to_end(key)
            self._evict()
        return values

    def _evict(self) -> None:
        def n_bytes() -> int:
            return sum(e.values.nbytes for e in self._entries.values() if e.values is not None)

        n_kept = _CHUNKS_PER_THREAD * (n_threads() + 1)
        while len(self._entries) > n_kept and n_bytes() > _MAX_BYTES:
            oldest = next((k for k, e in self._entries.items() if e.values is not None), None)
            if oldest is None:
                return
            del self._entries[oldest]
