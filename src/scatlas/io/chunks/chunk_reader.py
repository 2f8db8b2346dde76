"""Read and decode the values of chunked arrays, in any thread, without HDF5 or zarr-python."""

from __future__ import annotations

import os
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from scatlas.arrays import buffer_pool
from scatlas.io.chunks.chunked_array import SharedChunkCache, open_to_read
from scatlas.io.chunks.codecs import Blosc, ChunkError, Crc32c, decode
from scatlas.io.chunks.native_codecs import index_decoder, run_decoder

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from scatlas.io.chunks.chunked_array import ChunkedArray
    from scatlas.io.chunks.codecs import Buffer, Zstd
    from scatlas.io.chunks.native_codecs import RunDecoder

# One system call reads neighbouring chunks, up to this many bytes and across gaps of this many.
_READ_BYTES = 2**22
_GAP_BYTES = 2**14
# Fewer chunks are decoded one by one, in less time than loading the kernel for runs takes.
_MIN_RUN_CHUNKS = 4
_thread_local = threading.local()
_shared_chunks = SharedChunkCache()


class IndexRangeError(ChunkError):
    """A stored index lies outside the matrix."""

    def __init__(self, index: int) -> None:
        super().__init__(f"an index of {index}")
        self.index = index


def read_values(
    array: ChunkedArray,
    begin: int,
    end: int,
    *,
    dtype: np.dtype | type,
    owner: Hashable = None,
    edge_readers: tuple[int, int] = (1, 1),
    limit: int | None = None,
) -> np.ndarray:
    """Read values ``begin`` to ``end - 1``, which with ``limit`` are indices below it.

    ``edge_readers`` ranges of a pass share the first and the last chunk; ``owner`` is the file with
    its stamp, for the key of these chunks.
    """
    out = buffer_pool.empty(end - begin, dtype)
    if array.is_raw:
        stored = out if array.dtype == out.dtype else np.empty(end - begin, array.dtype)
        _read_raw_values(array, begin, end, stored)
        _check_limit(stored, limit)
        if stored is not out:
            out[:] = stored
    else:
        _RangeReader(array, begin, out, limit).read(owner, edge_readers)
    return out


class _RangeReader:
    """Decode the chunks of an array to the range of its values that ``out`` holds."""

    def __init__(self, array: ChunkedArray, begin: int, out: np.ndarray, limit: int | None) -> None:
        self._array = array
        self._begin = begin
        self._out = out
        self._limit = limit
        # If False, copying casts the values.
        self._same_dtype = out.dtype == array.dtype

    def read(self, owner: Hashable, edge_readers: tuple[int, int]) -> None:
        array = self._array
        first, stop = array.chunk_range(self._begin, self._begin + self._out.size)
        n_first, n_last = edge_readers
        # The last chunk first: the next range needs it, and then waits for this one at most as long
        # as it decodes its own last chunk. If each began with its first chunk, it would wait for
        # the range before it, and that for the one before it.
        if first < stop and n_last > 1:
            stop -= 1
            self._copy_shared(stop, owner, n_last)
        shared_first = first < stop and n_first > 1
        inner = range(first + shared_first, stop)
        decode_run = None
        if len(inner) >= _MIN_RUN_CHUNKS:
            if self._same_dtype:
                decode_run = run_decoder(array.pipeline)
            elif self._limit is not None:
                decode_run = index_decoder(array.pipeline, array.dtype, self._limit)
        for run in _read_runs(array, inner.start, inner.stop):
            decoded = self._decode_run(run, decode_run) if decode_run is not None else range(0)
            for chunk, raw in run.chunks():
                if chunk not in decoded:
                    self._decode_chunk(chunk, raw)
        if shared_first:
            self._copy_shared(first, owner, n_first)

    def _copy_shared(self, chunk: int, owner: Hashable, n_readers: int) -> None:
        array = self._array
        key = (owner, array.key, chunk, array.locations.stamp(chunk))
        self._copy(chunk, _shared_chunks.get(key, n_readers, partial(_read_chunk, array, chunk)))

    def _decode_run(self, run: _Run, decode_run: RunDecoder) -> range:
        """Decode chunks within the range, in one call; those before the first damaged one."""
        array, begin, size = self._array, self._begin, self._array.chunk_values
        if run.window is None or not array.locations.have_all_filters(run.first, run.stop):
            return range(0)
        lo = max(run.first, -(-begin // size))
        hi = max(lo, min(run.stop, (begin + self._out.size) // size))
        target = self._out[lo * size - begin : hi * size - begin]
        rows = slice(lo - run.first, hi - run.first)
        n_decoded = decode_run(
            np.frombuffer(run.window, np.uint8),
            run.starts[rows],
            run.sizes[rows],
            target,
            size * array.dtype.itemsize,
        )
        if self._same_dtype:
            _check_limit(target[: n_decoded * size], self._limit)
        return range(lo, lo + n_decoded)

    def _decode_chunk(self, chunk: int, raw: memoryview | None) -> None:
        size = self._array.chunk_values
        at = chunk * size - self._begin
        target = None
        if self._same_dtype and 0 <= at <= self._out.size - size:
            target = self._out[at : at + size]
        values = _decode_chunk(self._array, chunk, raw, target)
        if values is target:
            _check_limit(values, self._limit)
        else:
            self._copy(chunk, values)

    def _copy(self, chunk: int, values: np.ndarray) -> None:
        start = chunk * self._array.chunk_values - self._begin
        piece = values[max(-start, 0) : self._out.size - start]
        _check_limit(piece, self._limit)
        at = max(start, 0)
        self._out[at : at + piece.size] = piece


def read_encoded_chunks(array: ChunkedArray, first: int, stop: int) -> Iterator[memoryview]:
    """Yield chunks as stored, each valid until the next; refuse one that is missing or damaged."""
    for chunk, raw in _read_raw_chunks(array, first, stop):
        if raw is None:
            raise ChunkError(f"chunk {chunk} is missing")
        if isinstance(array.pipeline[0], Crc32c):
            array.pipeline[0].decode(raw, len(raw))
        yield raw


def read_text_chunks(
    array: ChunkedArray, first: int, stop: int
) -> Iterator[tuple[int, bytes | None]]:
    """Yield number and decoded bytes of chunks of text; None if a chunk was never written."""
    for chunk, raw in _read_raw_chunks(array, first, stop):
        if raw is None:
            yield chunk, None
            continue
        decoded: Buffer = raw
        # Decoders of text accept that the size is unknown.
        for step in cast("tuple[Zstd | Crc32c, ...]", array.pipeline):
            decoded = step.decode(decoded, None)
        yield chunk, bytes(decoded)


def _check_limit(values: np.ndarray, limit: int | None) -> None:
    if limit is None or not values.size:
        return
    extreme = int(values.max())
    if extreme < limit and values.dtype.kind == "i":
        extreme = int(values.min())
    if not 0 <= extreme < limit:
        raise IndexRangeError(extreme)


def _read_chunk(array: ChunkedArray, chunk: int) -> np.ndarray:
    """Values of one chunk in memory that nothing else uses."""
    ((_, raw),) = _read_raw_chunks(array, chunk, chunk + 1)
    values = _decode_chunk(array, chunk, raw)
    # If no step copied, the values are a view of the read buffer, which the next read overwrites.
    is_view = raw is not None and np.may_share_memory(values, np.frombuffer(raw, np.uint8))
    return values.copy() if is_view else values


def _decode_chunk(
    array: ChunkedArray, chunk: int, raw: memoryview | None, target: np.ndarray | None = None
) -> np.ndarray:
    """Values of a chunk; ``target`` if the last decoder can write there, which saves a copy."""
    size = array.chunk_values
    if raw is None:
        if array.fill_value is None:
            raise ChunkError(f"chunk {chunk} was never written: the file is not complete")
        return np.full(min(size, array.n_values - chunk * size), array.fill_value, array.dtype)
    pipeline = array.locations.pipeline_of(chunk, array.pipeline)
    if target is not None and pipeline and isinstance(pipeline[-1], Blosc):
        encoded: Buffer = raw
        for step in pipeline[:-1]:
            encoded = step.decode(encoded, len(encoded))
        pipeline[-1].decode_into(encoded, target)
        return target
    return decode(pipeline, raw, array.dtype, size)[: array.n_values - chunk * size]


@dataclass(frozen=True)
class _Run:
    """Encoded chunks from ``first`` on, read by one system call; ``window``: None if unwritten."""

    first: int
    window: memoryview | None
    starts: np.ndarray
    sizes: np.ndarray

    @property
    def stop(self) -> int:
        return self.first + self.starts.size

    def chunks(self) -> Iterator[tuple[int, memoryview | None]]:
        byte_ranges = zip(self.starts.tolist(), self.sizes.tolist(), strict=True)
        for chunk, (start, size) in enumerate(byte_ranges, self.first):
            yield chunk, None if self.window is None else self.window[start : start + size]


def _read_raw_chunks(
    array: ChunkedArray, first: int, stop: int
) -> Iterator[tuple[int, memoryview | None]]:
    """Yield number and encoded bytes of chunks, each valid until the next; None: not written."""
    for run in _read_runs(array, first, stop):
        yield from run.chunks()


def _read_runs(array: ChunkedArray, first: int, stop: int) -> Iterator[_Run]:
    """Yield all chunks in runs, each valid until the next."""
    chunk = first
    if first >= stop:
        return
    for path, offsets, sizes in array.locations.byte_ranges(first, stop):
        if (offsets < 0).all():
            yield _Run(chunk, None, offsets, sizes)
            chunk += offsets.size
            continue
        with open_to_read(path) as fd:
            # Before memory is allocated for them.
            length, exists = os.fstat(fd).st_size, offsets >= 0
            if (sizes[exists] < 0).any() or (offsets[exists] > length - sizes[exists]).any():
                raise ChunkError(f"a chunk lies beyond the end of {path} ({length:,} bytes)")
            for lo, hi in _run_bounds(offsets, sizes):
                starts, run_sizes = offsets[lo:hi] - offsets[lo], sizes[lo:hi]
                window = None
                if offsets[lo] >= 0:
                    window = _pread(fd, int(offsets[lo]), int(starts[-1] + run_sizes[-1]))
                yield _Run(chunk, window, starts, run_sizes)
                chunk += hi - lo


def _run_bounds(offsets: np.ndarray, sizes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield first chunk, and last chunk plus one, of runs that one system call reads."""
    starts, lengths = offsets.tolist(), sizes.tolist()
    lo = 0
    for i in range(1, len(starts) + 1):
        if i < len(starts):
            gap = starts[i] - (starts[i - 1] + lengths[i - 1])
            are_near = starts[lo] >= 0 and starts[i] >= 0 and 0 <= gap <= _GAP_BYTES
            if are_near and starts[i] + lengths[i] - starts[lo] <= _READ_BYTES:
                continue
        yield lo, i
        lo = i


def _read_raw_values(array: ChunkedArray, begin: int, end: int, out: np.ndarray) -> None:
    """Fill ``out`` straight from the file, without a decoder."""
    item, size = array.dtype.itemsize, array.chunk_values
    target = out.data.cast("B") if out.size else memoryview(b"")
    chunk, stop = array.chunk_range(begin, end)
    if chunk >= stop:
        return
    for path, offsets, sizes in array.locations.byte_ranges(chunk, stop):
        # Range of values to read from each chunk.
        starts = np.arange(chunk, chunk + offsets.size) * size
        lo, hi = np.maximum(starts, begin), np.minimum(starts + size, end)
        exists = offsets >= 0
        too_short = exists & (sizes < (hi - starts) * item)
        if too_short.any():
            first = int(np.argmax(too_short))
            raise ChunkError(f"chunk {chunk + first} has {int(sizes[first]):,} bytes")
        for i in np.flatnonzero(~exists).tolist():
            out[lo[i] - begin : hi[i] - begin] = _decode_chunk(array, chunk + i, None)[0]
        # One call reads chunks that are adjacent in the file: a call per chunk would release and
        # take the interpreter's lock a hundred times per block.
        places = offsets + (lo - starts) * item
        adjacent = exists[1:] & exists[:-1] & (np.diff(places) == (hi - lo)[:-1] * item)
        firsts = np.flatnonzero(np.append(True, ~adjacent))
        with open_to_read(path) if exists.any() else nullcontext() as fd:
            for a, b in zip(firsts.tolist(), [*firsts[1:].tolist(), offsets.size], strict=True):
                if fd is not None and exists[a]:
                    piece = target[(lo[a] - begin) * item : (hi[b - 1] - begin) * item]
                    _fill(fd, piece, int(places[a]))
        chunk += offsets.size


def _pread(fd: int, offset: int, n_bytes: int) -> memoryview:
    """Bytes of a file, in a buffer that the calling thread reuses."""
    buffer = getattr(_thread_local, "buffer", None)
    if buffer is None or len(buffer) < n_bytes:
        # Not a bytearray, which is cleared.
        buffer = _thread_local.buffer = np.empty(max(n_bytes, _READ_BYTES), np.uint8).data
    window = buffer[:n_bytes]
    _fill(fd, window, offset)
    return window


def _fill(fd: int, window: memoryview, offset: int) -> None:
    n_read = 0
    while n_read < len(window):
        n = os.preadv(fd, [window[n_read:]], offset + n_read)
        if n == 0:
            raise ChunkError(f"the file ends {len(window) - n_read:,} bytes too early")
        n_read += n
