"""One-dimensional arrays on local disks, read chunk by chunk without HDF5 or zarr-python.

HDF5 decodes under a lock of its own, so that threads wait for each other, and zarr-python decodes
whole shards through an event loop. Once the places of the chunks are known
(:mod:`scatlas.io.files.chunk_locations`), any thread here reads (``pread``) and decodes any chunk.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scatlas.arrays import buffer_pool
from scatlas.io.chunks.codecs import (
    Blosc,
    ChunkError,
    Crc32c,
    Decoder,
    decode,
)
from scatlas.io.chunks.native_codecs import run_decoder
from scatlas.io.chunks.shared_chunks import SharedChunkCache

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scatlas.io.files.anndata_file import Store

# Chunks that lie together are read together, up to this many bytes and over gaps of this many.
_READ_BYTES = 2**22
_GAP_BYTES = 2**14
_FEWEST_TOGETHER = 4
_ABSENT = np.iinfo(np.uint64).max
_local = threading.local()
_shared_chunks = SharedChunkCache()


@dataclass(frozen=True)
class ChunkedArray:
    """A one-dimensional array of numbers: where its chunks lie and how they are decoded.

    Picklable, and small once cut to a range (:meth:`part`).

    Attributes
    ----------
    key
        Element in the file, as ``X/data``.
    n_values, dtype
        Length and type as stored, with its byte order.
    chunk_values
        Values of a chunk; the last one is padded.
    pipeline
        Decoders in the order of decoding.
    places
        Where the chunks lie.
    fill
        What a chunk without a place holds; None where there must be a place.
    """

    key: str
    n_values: int
    dtype: np.dtype
    chunk_values: int
    pipeline: tuple[Decoder, ...]
    places: Extents | ShardFiles
    fill: float | None = None

    @property
    def is_raw(self) -> bool:
        """Whether any byte range can be read alone."""
        return not self.pipeline

    def chunks_of(self, begin: int, end: int) -> tuple[int, int]:
        """First chunk and the one after the last that hold values ``begin`` to ``end - 1``."""
        if begin >= end:
            return 0, 0
        return begin // self.chunk_values, -(-end // self.chunk_values)

    def part(self, begin: int, end: int) -> ChunkedArray:
        """The same array, knowing no more places than ``begin`` to ``end - 1`` need."""
        return replace(self, places=self.places.part(*self.chunks_of(begin, end)))


@dataclass(frozen=True)
class Extents:
    """Byte ranges of one file: chunks of an HDF5 dataset.

    Attributes
    ----------
    path
        The file.
    first
        Number of the first chunk that is listed.
    offsets, sizes
        int64, one a chunk; offset -1 for a chunk that was never written.
    skipped
        uint32, one a chunk: bit *i* is set where step *i* of HDF5's pipeline was left out.
    n_filters
        Steps of HDF5's pipeline.
    """

    path: str
    first: int
    offsets: np.ndarray = field(repr=False)
    sizes: np.ndarray = field(repr=False)
    skipped: np.ndarray = field(repr=False)
    n_filters: int

    def part(self, first: int, stop: int) -> Extents:
        """These chunks only."""
        rows = slice(first - self.first, stop - self.first)
        return replace(
            self,
            first=first,
            offsets=self.offsets[rows].copy(),
            sizes=self.sizes[rows].copy(),
            skipped=self.skipped[rows].copy(),
        )

    def locate(self, first: int, stop: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Yield path, offsets and sizes of runs of chunks, in order."""
        rows = slice(first - self.first, stop - self.first)
        yield self.path, self.offsets[rows], self.sizes[rows]

    def is_plain(self, run: _Run) -> bool:
        """Whether all steps of the pipeline were taken for these chunks."""
        return not self.skipped[run.first - self.first : run.stop - self.first].any()

    def stamp(self, chunk: int) -> None:
        """Nothing: the file's own stamp, which `Store` has, changes with each of its chunks."""

    def pipeline_of(self, chunk: int, pipeline: tuple[Decoder, ...]) -> tuple[Decoder, ...]:
        """Decoders of one chunk: a filter that found nothing to gain is marked as skipped."""
        skipped = int(self.skipped[chunk - self.first])
        if not skipped:
            return pipeline
        last = self.n_filters - 1
        return tuple(step for i, step in enumerate(pipeline) if not skipped >> (last - i) & 1)


@dataclass(frozen=True)
class ShardFiles:
    """Files of a Zarr array: one a chunk, or one for a shard of several.

    Attributes
    ----------
    prefix
        Path of the first file without its number.
    shard_chunks
        Chunks a shard; 0 where each chunk is a file.
    index_at_end
        Whether a shard's table of places stands at its end.
    """

    prefix: str
    shard_chunks: int
    index_at_end: bool = True

    def part(self, first: int, stop: int) -> ShardFiles:  # noqa: ARG002
        """Itself: file names follow from numbers."""
        return self

    def locate(self, first: int, stop: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Yield path, offsets and sizes of runs of chunks, in order; offset -1: not there."""
        if not self.shard_chunks:
            for chunk in range(first, stop):
                path = f"{self.prefix}{chunk}"
                size = _size(path)
                yield path, np.array([-1 if size is None else 0]), np.array([size or 0])
            return
        for shard in range(first // self.shard_chunks, -(-stop // self.shard_chunks)):
            begin = shard * self.shard_chunks
            rows = slice(max(first - begin, 0), min(stop - begin, self.shard_chunks))
            path = f"{self.prefix}{shard}"
            size = _size(path)
            if size is None:
                offsets = sizes = np.full(self.shard_chunks, -1)
            else:
                offsets, sizes = self._index(path, size)
            yield path, offsets[rows], sizes[rows]

    def is_plain(self, run: _Run) -> bool:  # noqa: ARG002
        """Always: all chunks are encoded alike."""
        return True

    def stamp(self, chunk: int) -> tuple[int, int] | None:
        """Time and size of the chunk's file: a store's own stamp holds its metadata alone."""
        try:
            stat = Path(f"{self.prefix}{chunk // max(1, self.shard_chunks)}").stat()
        except FileNotFoundError:
            return None
        return stat.st_mtime_ns, stat.st_size

    def _index(self, path: str, size: int) -> tuple[np.ndarray, np.ndarray]:
        n_bytes = 16 * self.shard_chunks + 4
        if size < n_bytes:
            msg = f"{path} is cut off: {size:,} bytes"
            raise ChunkError(msg)
        with _opened(path) as fd:
            raw = os.pread(fd, n_bytes, size - n_bytes if self.index_at_end else 0)
        table = np.frombuffer(Crc32c().decode(raw, n_bytes - 4), "<u8").reshape(-1, 2)
        there = table[:, 0] != _ABSENT
        # What lies beyond the file is refused where it is read.
        offsets, sizes = np.minimum(table, np.uint64(2**62)).astype(np.int64).T
        return np.where(there, offsets, -1), np.where(there, sizes, 0)

    def pipeline_of(self, chunk: int, pipeline: tuple[Decoder, ...]) -> tuple[Decoder, ...]:  # noqa: ARG002
        """Decoders of one chunk: the same for all."""
        return pipeline


def read(
    array: ChunkedArray,
    begin: int,
    end: int,
    *,
    dtype: np.dtype | type,
    store: Store | None = None,
    uses: tuple[int, int] = (1, 1),
    limit: int | None = None,
) -> np.ndarray:
    """Values ``begin`` to ``end - 1``.

    Parameters
    ----------
    array
        Or a part of it that covers the range.
    dtype
        Type of the result: one that holds the values, or, with ``limit``, the numbers below it.
    store
        Whose array it is, where ``uses`` are given: names the chunks that ranges share.
    uses
        How many ranges of the same pass hold the first chunk and the last one: a chunk at the
        border of two ranges is decoded for the first of them and kept for the other.
    limit
        The values are positions below this number; others are refused.

    Returns
    -------
    A new array, whose memory is reused when it and all its views are gone.

    Raises
    ------
    ChunkError
        The data are damaged; also other errors of the decoders, and ``OSError``.
    """
    out = buffer_pool.empty(end - begin, dtype)
    first, stop = array.chunks_of(begin, end)
    if array.is_raw:
        stored = out if array.dtype == out.dtype else np.empty(end - begin, array.dtype)
        _read_raw(array, begin, end, stored)
        _check_limit(stored, limit)
        if stored is not out:
            out[:] = stored
        return out
    size = array.chunk_values

    def put(chunk: int, values: np.ndarray) -> None:
        start = chunk * size
        piece = values[max(begin - start, 0) : end - start]
        _check_limit(piece, limit)
        at = max(start - begin, 0)
        out[at : at + piece.size] = piece

    for chunk, n in dict(zip((first, stop - 1), uses, strict=True)).items():
        # The chunks at the ends of the range: shared with the block before or after, or not.
        if n > 1 and first <= chunk < stop:
            key = (store, array.key, chunk, array.places.stamp(chunk))
            put(chunk, _shared_chunks.get(key, n, lambda chunk=chunk: _decoded(array, chunk)))
            first, stop = (first + 1, stop) if chunk == first else (first, stop - 1)
    # A few chunks are decoded before the kernel for runs of them is even loaded.
    many = stop - first >= _FEWEST_TOGETHER and out.dtype == array.dtype
    decode_run = run_decoder(array.pipeline) if many else None
    for run in _raw_runs(array, first, stop):
        done = range(0)
        if decode_run is not None and run.window is not None and array.places.is_plain(run):
            # The chunks that lie within, to where they belong. The first that is damaged is left
            # to the decoders of single chunks, which say what is wrong.
            lo = max(run.first, -(-begin // size))
            hi = max(lo, min(run.stop, end // size))
            target = out[lo * size - begin : hi * size - begin]
            rows = slice(lo - run.first, hi - run.first)
            places = np.frombuffer(run.window, np.uint8), run.starts[rows], run.sizes[rows]
            n_done = decode_run(*places, target, size * array.dtype.itemsize)
            _check_limit(target[: n_done * size], limit)
            done = range(lo, lo + n_done)
        for chunk, raw in run.chunks():
            if chunk in done:
                continue
            values = _decode(array, chunk, raw, out, chunk * size - begin)
            if values is not None:
                put(chunk, values)
            else:
                at = chunk * size - begin
                _check_limit(out[at : at + size], limit)
    return out


def encoded(array: ChunkedArray, first: int, stop: int) -> Iterator[memoryview]:
    """Yield chunks as they lie on disk, after a look at their checksum if they have one.

    Each is valid until the next.

    Raises
    ------
    ChunkError
        A chunk is missing or damaged.
    """
    for chunk, raw in _raw_chunks(array, first, stop):
        if raw is None:
            msg = f"chunk {chunk} is missing"
            raise ChunkError(msg)
        if isinstance(array.pipeline[0], Crc32c):
            array.pipeline[0].decode(raw, len(raw))
        yield raw


def decoded_bytes(array: ChunkedArray, first: int, stop: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield chunks of text with their numbers, as bytes; None: not written.

    Raises
    ------
    ChunkError
        A chunk is damaged; also other errors of the decoders, and ``OSError``.
    """
    for chunk, raw in _raw_chunks(array, first, stop):
        decoded = raw
        for step in array.pipeline if raw is not None else ():
            decoded = step.decode(decoded, None)
        yield chunk, None if decoded is None else bytes(decoded)


def _check_limit(values: np.ndarray, limit: int | None) -> None:
    if limit is None or not values.size:
        return
    worst = int(values.max())
    if worst < limit and values.dtype.kind == "i":
        worst = int(values.min())
    if not 0 <= worst < limit:
        raise IndexRangeError(worst)


class IndexRangeError(ChunkError):
    """A stored position lies outside the matrix."""

    def __init__(self, found: int) -> None:
        super().__init__(f"a position of {found}")
        self.found = found


def _decoded(array: ChunkedArray, chunk: int) -> np.ndarray:
    """One chunk, in memory of its own."""
    ((_, raw),) = _raw_chunks(array, chunk, chunk + 1)
    values = _decode(array, chunk, raw, None, 0)
    # What is not compressed is still a view of the read buffer, which the next read changes.
    own = raw is None or not np.may_share_memory(values, np.frombuffer(raw, np.uint8))
    return values if own else values.copy()


def _decode(
    array: ChunkedArray, chunk: int, raw: memoryview | None, out: np.ndarray | None, at: int
) -> np.ndarray | None:
    """Values of a chunk; None when they were decoded straight to ``out[at:]``."""
    size = array.chunk_values
    if raw is None:
        if array.fill is None:
            msg = f"chunk {chunk} was never written: the file is not complete"
            raise ChunkError(msg)
        return np.full(min(size, array.n_values - chunk * size), array.fill, array.dtype)
    pipeline = array.places.pipeline_of(chunk, array.pipeline)
    fits = out is not None and out.dtype == array.dtype and 0 <= at <= out.size - size
    if fits and pipeline and isinstance(pipeline[-1], Blosc):
        for step in pipeline[:-1]:
            raw = step.decode(raw, len(raw))
        pipeline[-1].decode_into(raw, out[at : at + size])
        return None
    return decode(pipeline, raw, array.dtype, size)[: array.n_values - chunk * size]


@dataclass(frozen=True)
class _Run:
    """Chunks that were read at once, as they lie on disk.

    Attributes
    ----------
    first
        Number of the first.
    window
        The bytes; None for chunks that were never written.
    starts, sizes
        int64: chunk i is ``window[starts[i] : starts[i] + sizes[i]]``.
    """

    first: int
    window: memoryview | None
    starts: np.ndarray
    sizes: np.ndarray

    @property
    def stop(self) -> int:
        """Number of the last and 1."""
        return self.first + self.starts.size

    def chunks(self) -> Iterator[tuple[int, memoryview | None]]:
        """Yield number and bytes of each."""
        places = zip(self.starts.tolist(), self.sizes.tolist(), strict=True)
        for chunk, (start, size) in enumerate(places, self.first):
            yield chunk, None if self.window is None else self.window[start : start + size]


def _raw_chunks(
    array: ChunkedArray, first: int, stop: int
) -> Iterator[tuple[int, memoryview | None]]:
    """Yield the chunks as they lie on disk, each valid until the next; None: not written."""
    for run in _raw_runs(array, first, stop):
        yield from run.chunks()


def _raw_runs(array: ChunkedArray, first: int, stop: int) -> Iterator[_Run]:
    """Yield all chunks in runs, each valid until the next."""
    chunk = first
    if first >= stop:
        return
    for path, offsets, sizes in array.places.locate(first, stop):
        if (offsets < 0).all():
            yield _Run(chunk, None, offsets, sizes)
            chunk += offsets.size
            continue
        with _opened(path) as fd:
            _check_inside(path, fd, offsets, sizes)
            for lo, hi in _runs(offsets, sizes):
                starts, run_sizes = offsets[lo:hi] - offsets[lo], sizes[lo:hi]
                window = None
                if offsets[lo] >= 0:
                    window = _pread(fd, int(offsets[lo]), int(starts[-1] + run_sizes[-1]))
                yield _Run(chunk, window, starts, run_sizes)
                chunk += hi - lo


def _check_inside(path: str, fd: int, offsets: np.ndarray, sizes: np.ndarray) -> None:
    """Refuse chunks beyond the end of their file, before memory is set aside for them."""
    length = os.fstat(fd).st_size
    there = offsets >= 0
    if (sizes[there] < 0).any() or (offsets[there] > length - sizes[there]).any():
        msg = f"a chunk lies beyond the end of {path} ({length:,} bytes)"
        raise ChunkError(msg)


def _runs(offsets: np.ndarray, sizes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Cut chunks into runs that are read at once."""
    starts, lengths = offsets.tolist(), sizes.tolist()
    lo = 0
    for i in range(1, len(starts) + 1):
        if i < len(starts):
            gap = starts[i] - (starts[i - 1] + lengths[i - 1])
            together = starts[lo] >= 0 and starts[i] >= 0 and 0 <= gap <= _GAP_BYTES
            if together and starts[i] + lengths[i] - starts[lo] <= _READ_BYTES:
                continue
        yield lo, i
        lo = i


def _read_raw(array: ChunkedArray, begin: int, end: int, out: np.ndarray) -> None:
    """Fill ``out`` straight from the file: nothing to decode."""
    item, size = array.dtype.itemsize, array.chunk_values
    target = memoryview(out).cast("B") if out.size else memoryview(b"")
    chunk, stop = array.chunks_of(begin, end)
    if chunk >= stop:
        return
    for path, offsets, sizes in array.places.locate(chunk, stop):
        # What is wanted of each chunk, in values.
        starts = np.arange(chunk, chunk + offsets.size) * size
        lo, hi = np.maximum(starts, begin), np.minimum(starts + size, end)
        there = offsets >= 0
        short = there & (sizes < (hi - starts) * item)
        if short.any():
            first = int(np.argmax(short))
            msg = f"chunk {chunk + first} has {int(sizes[first]):,} bytes"
            raise ChunkError(msg)
        for i in np.flatnonzero(~there).tolist():
            out[lo[i] - begin : hi[i] - begin] = _decode(array, chunk + i, None, None, 0)[0]
        # Chunks that follow each other in the file are read at once: a call for each would leave
        # and take the interpreter's lock a hundred times a block.
        places = offsets + (lo - starts) * item
        together = there[1:] & there[:-1] & (np.diff(places) == (hi - lo)[:-1] * item)
        firsts = np.flatnonzero(np.append(True, ~together))
        with _opened(path) if there.any() else nullcontext() as fd:
            for a, b in zip(firsts.tolist(), [*firsts[1:].tolist(), offsets.size], strict=True):
                if there[a]:
                    piece = target[(lo[a] - begin) * item : (hi[b - 1] - begin) * item]
                    _fill(fd, piece, int(places[a]))
        chunk += offsets.size


def _pread(fd: int, offset: int, n_bytes: int) -> memoryview:
    """Bytes of a file in a buffer that the calling thread uses again and again."""
    held = getattr(_local, "buffer", None)
    if held is None or len(held) < n_bytes:
        held = _local.buffer = bytearray(max(n_bytes, _READ_BYTES))
    window = memoryview(held)[:n_bytes]
    _fill(fd, window, offset)
    return window


def _fill(fd: int, window: memoryview, offset: int) -> None:
    done = 0
    while done < len(window):
        n = os.preadv(fd, [window[done:]], offset + done)
        if n == 0:
            msg = f"the file ends {len(window) - done:,} bytes too early"
            raise ChunkError(msg)
        done += n


@contextmanager
def _opened(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _size(path: str) -> int | None:
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        return None
