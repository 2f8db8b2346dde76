"""Texts as Zarr stores them, which kernels copy, select and compare without the interpreter's lock,
in a tenth of the time that Python strings take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numcodecs import VLenUTF8

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

# Bytes of the number of texts before those of a chunk, and of the length before each text.
_HEADER = 4


@dataclass(frozen=True, eq=False)
class EncodedText:
    """Texts in Zarr's encoding vlen-utf8, without their number: ``content`` has the length (uint32)
    and the UTF-8 of each, ``starts`` [n_texts + 1] where it begins, and the end of the last.
    """

    content: NDArray[np.uint8]
    starts: NDArray[np.int64]

    @classmethod
    def of_chunk(cls, chunk: bytes | NDArray[np.uint8]) -> EncodedText:
        """Texts of a decoded chunk, which must not change; ValueError if damaged or not UTF-8."""
        from scatlas.io.chunks.text_loops import find_starts  # imports Numba

        raw = np.frombuffer(chunk, np.uint8)
        n_texts = int.from_bytes(raw[:_HEADER].tobytes(), "little")
        content = raw[_HEADER:]
        # Each text takes at least its length.
        starts = np.empty(min(n_texts, content.size // _HEADER) + 1, np.int64)
        ascii_only = find_starts(content, starts) if starts.size == n_texts + 1 else -1
        if ascii_only < 0:
            raise ValueError(f"{content.size:,} bytes do not hold {n_texts:,} texts")
        if not ascii_only:
            VLenUTF8().decode(chunk)  # refuses what is not UTF-8
        return cls(content[: starts[-1]], starts)

    @classmethod
    def encode(cls, texts: NDArray[np.object_]) -> EncodedText:
        return cls.of_chunk(np.asarray(VLenUTF8().encode(texts)))

    @classmethod
    def of_arrow(cls, texts: pa.StringArray) -> EncodedText:
        """Texts of an array of Arrow without gaps; `pyarrow.ArrowInvalid` if one is not UTF-8."""
        from scatlas.io.chunks.text_loops import put_lengths

        texts.validate(full=True)
        _, offsets, content = texts.buffers()
        ends = np.frombuffer(offsets or bytes(4), np.int32)[texts.offset :][: len(texts) + 1]
        starts = ends - ends[0] + _HEADER * np.arange(ends.size)
        out = np.empty(starts[-1], np.uint8)
        put_lengths(np.frombuffer(content or b"", np.uint8), ends, out)
        return cls(out, starts)

    @staticmethod
    def join(parts: Sequence[EncodedText]) -> EncodedText:
        if len(parts) == 1:
            return parts[0]
        starts, end = [np.zeros(1, np.int64)], 0
        for part in parts:
            starts.append(part.starts[1:] + end)
            end += part.content.size
        contents = [np.empty(0, np.uint8), *(part.content for part in parts)]
        return EncodedText(np.concatenate(contents), np.concatenate(starts))

    def __len__(self) -> int:
        return self.starts.size - 1

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> EncodedText:
        """Some texts: a range, or those of ascending positions."""
        from scatlas.io.chunks.text_loops import take_texts

        if isinstance(rows, slice):
            lo, hi, _ = rows.indices(len(self))
            starts = self.starts[lo : max(lo, hi) + 1]
            return EncodedText(self.content[starts[0] : starts[-1]], starts - starts[0])
        sizes = np.diff(self.starts)[rows]
        starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        content = np.empty(starts[-1], np.uint8)
        take_texts(self.content, self.starts[:-1][rows], starts, content)
        return EncodedText(content, starts)

    def with_suffix(self, suffix: str, changed: NDArray[np.bool_]) -> EncodedText:
        """The texts, those that are ``changed`` with a suffix."""
        from scatlas.io.chunks.text_loops import append_suffix

        encoded = np.frombuffer(suffix.encode(), np.uint8)
        sizes = np.diff(self.starts) + encoded.size * changed
        starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        content = np.empty(starts[-1], np.uint8)
        append_suffix(self.content, self.starts, changed, encoded, starts, content)
        return EncodedText(content, starts)

    def decode(self) -> NDArray[np.object_]:
        """Return them as ``object`` array of ``str``."""
        header = np.frombuffer(len(self).to_bytes(_HEADER, "little"), np.uint8)
        texts: NDArray[np.object_] = VLenUTF8().decode(np.concatenate([header, self.content]))
        return texts

    def hashes(self) -> NDArray[np.uint64]:
        """64-bit hash of each text: FNV-1a, its bits mixed by MurmurHash3's last step."""
        from scatlas.io.chunks.text_loops import hash_texts

        out = np.empty(len(self), np.uint64)
        hash_texts(self.content, self.starts, out)
        return out
