"""Loops over texts in Zarr's encoding vlen-utf8 (Numba), see `scatlas.io.chunks.encoded_text`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray


@njit(nogil=True, cache=True)
def find_starts(content: NDArray[np.uint8], starts: NDArray[np.int64]) -> int:
    """Fill in where texts begin; 1: all are ASCII, 0: not all, -1: they end elsewhere."""
    at = np.int64(0)
    high = np.uint8(0)
    for i in range(starts.size - 1):
        starts[i] = at
        if at + 4 > content.size:
            return -1
        length = np.int64(0)
        for k in range(4):
            length |= np.int64(content[at + k]) << (8 * k)
        if at + 4 + length > content.size:
            return -1
        for k in range(at + 4, at + 4 + length):
            high |= content[k]
        at += 4 + length
    starts[-1] = at
    return 0 if high >= 128 else 1


@njit(nogil=True, cache=True)
def put_lengths(
    content: NDArray[np.uint8], ends: NDArray[np.int32], out: NDArray[np.uint8]
) -> None:
    """Copy texts that follow each other in ``content``, each behind its length."""
    at = 0
    for i in range(ends.size - 1):
        length = ends[i + 1] - ends[i]
        for k in range(4):
            out[at + k] = (length >> (8 * k)) & 255
        at += 4
        for k in range(ends[i], ends[i + 1]):
            out[at + k - ends[i]] = content[k]
        at += length


@njit(nogil=True, cache=True)
def take_texts(
    content: NDArray[np.uint8],
    sources: NDArray[np.int64],
    starts: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> None:
    """Copy texts from their ``sources`` in ``content`` to ``starts`` in ``out``."""
    for i in range(sources.size):
        shift = sources[i] - starts[i]
        for at in range(starts[i], starts[i + 1]):
            out[at] = content[at + shift]


@njit(nogil=True, cache=True)
def hash_texts(
    content: NDArray[np.uint8], starts: NDArray[np.int64], out: NDArray[np.uint64]
) -> None:
    """Hash the bytes of each text: see `EncodedText.hashes`."""
    for i in range(out.size):
        h = np.uint64(0xCBF29CE484222325)
        for at in range(starts[i] + 4, starts[i + 1]):
            h = (h ^ np.uint64(content[at])) * np.uint64(0x100000001B3)
        h = (h ^ (h >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
        h = (h ^ (h >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
        out[i] = h ^ (h >> np.uint64(33))


@njit(nogil=True, cache=True)
def append_suffix(
    content: NDArray[np.uint8],
    sources: NDArray[np.int64],
    changed: NDArray[np.bool_],
    suffix: NDArray[np.uint8],
    starts: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> None:
    """Copy texts from ``sources`` in ``content`` to ``starts`` in ``out``, some with a suffix."""
    for i in range(changed.size):
        begin, end = sources[i], sources[i + 1]
        at = starts[i]
        for k in range(begin, end):
            out[at + k - begin] = content[k]
        if changed[i]:
            for k in range(suffix.size):
                out[at + end - begin + k] = suffix[k]
            length = end - begin - 4 + suffix.size
            for k in range(4):
                out[at + k] = np.uint8(length >> (8 * k) & 255)
