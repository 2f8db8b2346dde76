"""Files of one array: encoded chunks in its shards, written by several threads at once; and numbers
without compression, for many arrays that are written at once.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from google_crc32c import value as crc32c

from scatlas._util.operating_system import begin_to_write
from scatlas.io.zarr_writer.node_metadata import write_array_metadata

if TYPE_CHECKING:
    from io import FileIO
    from pathlib import Path

CHECKSUM_BYTES = 4
# Bytes of a file from which the disk is asked to write it at once.
_LARGE_FILE = 2**24
# Values per file of a `RawArray`. A reader takes a file at a time.
_FILE_VALUES = 2**20
# Offset and size, in the index of a shard, of a chunk that does not exist.
_NO_CHUNK = np.iinfo(np.uint64).max


class EncodedRun(NamedTuple):
    """Successive chunks of a shard, the size of each, and its CRC-32C if not from another array."""

    content: bytes | bytearray | memoryview
    sizes: list[int]
    checksums: list[int]


@dataclass
class _Shard:
    """The file of a shard; ``n_writes`` have a place in it and have not ended."""

    file: FileIO
    n_writes: int = 0
    complete: bool = False


class _Write(NamedTuple):
    shard: _Shard
    offset: int
    content: bytes | bytearray | memoryview


class ShardFiles:
    """Files of the shards of an array. A run that is encoded before those in front of it waits in
    memory, and the thread that brings the missing one writes both: no thread waits for another.
    """

    def __init__(self, path: Path, shard_chunks: int, n_dims: int) -> None:
        self.shard_chunks = shard_chunks
        self.sizes: list[int] = []
        self.checksums: list[int] = []
        self._path = path
        self._n_dims = n_dims
        self._lock = Lock()
        self._early: dict[int, EncodedRun] = {}
        self._next = 0
        self._shard: _Shard | None = None
        self._offset = 0
        self._open: set[FileIO] = set()

    def name(self, number: int) -> str:
        return "/".join(["c", str(number), *("0" for _ in range(self._n_dims - 1))])

    def put(self, number: int, run: EncodedRun) -> None:
        """Write the run with this number, and those after it that came before it."""
        with self._lock:
            self._early[number] = run
            writes = []
            while self._next in self._early:
                writes += self._place(self._early.pop(self._next))
                self._next += 1
        self._write(writes)

    def finish(self) -> None:
        """Write the index of the last shard, after all runs."""
        if self._shard is not None:
            with self._lock:
                writes = [self._place_index(self._shard)]
            self._write(writes)

    def abandon(self) -> None:
        """Close the files as they are; no thread may be writing."""
        while self._open:
            self._open.pop().close()
        self._shard = None

    def _place(self, run: EncodedRun) -> list[_Write]:
        if self._shard is None:
            path = self._path / self.name(len(self.sizes) // self.shard_chunks)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._shard = _Shard(path.open("wb", buffering=0))
            self._open.add(self._shard.file)
            self._offset = 0
        shard = self._shard
        self.sizes += run.sizes
        self.checksums += run.checksums
        writes = [self._at_end(shard, run.content)]
        if len(self.sizes) % self.shard_chunks == 0:
            writes.append(self._place_index(shard))
        return writes

    def _place_index(self, shard: _Shard) -> _Write:
        n_chunks = len(self.sizes) % self.shard_chunks or self.shard_chunks
        sizes = np.array(self.sizes[-n_chunks:], np.uint64)
        index = np.full((self.shard_chunks, 2), _NO_CHUNK, np.uint64)
        index[:n_chunks, 1] = sizes
        index[:n_chunks, 0] = np.cumsum(sizes) - sizes
        encoded = index.astype("<u8").tobytes()
        write = self._at_end(shard, encoded + crc32c(encoded).to_bytes(CHECKSUM_BYTES, "little"))
        shard.complete = True
        self._shard = None
        return write

    def _at_end(self, shard: _Shard, content: bytes | bytearray | memoryview) -> _Write:
        write = _Write(shard, self._offset, content)
        self._offset += len(content)
        shard.n_writes += 1
        return write

    def _write(self, writes: list[_Write]) -> None:
        for shard, offset, content in writes:
            left = memoryview(content)
            while left:
                n_bytes = os.pwrite(shard.file.fileno(), left, offset)
                left, offset = left[n_bytes:], offset + n_bytes
            with self._lock:
                shard.n_writes -= 1
                is_done = shard.complete and not shard.n_writes
            if is_done:
                if os.fstat(shard.file.fileno()).st_size >= _LARGE_FILE:
                    begin_to_write(shard.file.fileno())
                with self._lock:
                    self._open.remove(shard.file)
                shard.file.close()


class RawArray:
    """Array of numbers or bool in a new folder, whose pieces go to disk at once."""

    def __init__(self, folder: Path, dtype: np.dtype) -> None:
        self._folder = folder
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._n = 0
        (folder / "c").mkdir(parents=True)

    def append(self, values: np.ndarray) -> None:
        """Append values, converted to the type of the array."""
        values = np.ascontiguousarray(values, self._dtype)
        while len(values):
            number, offset = divmod(self._n, _FILE_VALUES)
            piece = values[: _FILE_VALUES - offset]
            # Not kept open: there may be more arrays than files that a process may open.
            with (self._folder / "c" / str(number)).open("r+b" if offset else "xb") as file:
                file.seek(offset * self._dtype.itemsize)
                file.write(piece.data.cast("B"))
            self._n += len(piece)
            values = values[len(piece) :]

    def read(self, begin: int, end: int) -> np.ndarray:
        pieces = []
        while begin < end:
            number, offset = divmod(begin, _FILE_VALUES)
            n = min(end - begin, _FILE_VALUES - offset)
            at = offset * self._dtype.itemsize
            file = self._folder / "c" / str(number)
            pieces.append(np.fromfile(file, self._dtype, n, offset=at))
            begin += n
        return np.concatenate(pieces)

    def close(self) -> None:
        """Fill the last file, as each has the same size, and write the metadata."""
        file_values = max(1, min(self._n, _FILE_VALUES))
        if self._n:
            last = self._folder / "c" / str((self._n - 1) // file_values)
            os.truncate(last, file_values * self._dtype.itemsize)
        codec: dict[str, object] = {"name": "bytes"}
        if self._dtype.itemsize > 1:
            codec |= {"configuration": {"endian": "little"}}
        write_array_metadata(
            self._folder, (self._n,), self._dtype.name, self._dtype.type(0).item(),
            grid=(file_values,), codecs=[codec], attributes={},
        )  # fmt: skip
