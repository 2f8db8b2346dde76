"""Numbers as text of a page: arrays of bytes, deflated, in base 64 (``page/atlas.js`` reads them).

Browsers inflate "deflate-raw" without a library.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.matrix.map_pixels import SparseCounts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

# Higher levels take ten times as long, for 4% fewer bytes.
_LEVEL = 6


def deflate(data: bytes | NDArray[np.uint8]) -> bytes:
    """Raw deflate stream of bytes."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(bytes(data)) + packer.flush()


def pack_json(value: Any) -> bytes:
    """JSON, deflated."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return deflate(text.encode("utf-8"))


def pack_codes(codes: NDArray[np.integer[Any]], n_levels: int) -> bytes:
    """Codes of categories, -1 for none: one byte each, or two planes of bytes, the high one first.

    The largest number of the type is for none.
    """
    if n_levels <= 0xFF:
        return deflate(np.where(codes < 0, 0xFF, codes).astype(np.uint8))
    return pack_16_bit(np.where(codes < 0, 0xFFFF, codes).astype(np.uint16))


def pack_16_bit(*arrays: NDArray[np.uint16]) -> bytes:
    """Arrays of 16 bits as planes, which deflate better: high bytes, low bytes of each."""
    planes = [part for array in arrays for part in (array >> 8, array & 0xFF)]
    return deflate(np.concatenate(planes).astype(np.uint8))


def pack_counts(cells: SparseCounts) -> bytes:
    """Length, gaps of the keys and counts as variable-length integers (LEB128)."""
    gaps = np.diff(cells.keys, prepend=0)
    return deflate(varints(np.concatenate([[cells.keys.size], gaps, cells.counts])))


def varints(values: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Whole numbers from 0 in LEB128: seven bits per byte, the lowest first."""
    values = values.astype(np.uint64)
    n_bytes = np.ones(values.size, np.int64)
    for bits in range(7, 64, 7):
        n_bytes += values >= np.uint64(1) << np.uint64(bits)
    ends = np.cumsum(n_bytes)
    out = np.empty(int(ends[-1]) if ends.size else 0, np.uint8)
    starts = ends - n_bytes
    for i in range(int(n_bytes.max(initial=0))):
        has = n_bytes > i
        part = (values[has] >> np.uint64(7 * i)) & np.uint64(0x7F)
        more = np.where(n_bytes[has] > i + 1, 0x80, 0).astype(np.uint64)
        out[starts[has] + i] = part | more
    return out


def coarsen(cells: SparseCounts, side: int) -> SparseCounts:
    """Counts of pixels twice as wide."""
    level, pixel = np.divmod(cells.keys.astype(np.int32), side**2)
    row, column = np.divmod(pixel, side)
    half = side // 2
    keys = level * half**2 + row // 2 * half + column // 2
    dense = np.zeros(int(keys.max(initial=-1)) + 1, np.int64)
    np.add.at(dense, keys, cells.counts)
    used = np.flatnonzero(dense)
    return SparseCounts(used, dense[used])


def page_bytes(blocks: Mapping[str, bytes]) -> int:
    """Bytes of blocks on the page."""
    return sum(-(-len(data) // 3) * 4 + len(_tag(name)) for name, data in blocks.items())


def block_tags(blocks: Mapping[str, bytes]) -> str:
    """Elements of the page with the blocks, which browsers do not execute."""
    return "".join(
        _tag(name).replace("><", f">{base64.b64encode(data).decode('ascii')}<")
        for name, data in blocks.items()
    )


def _tag(name: str) -> str:
    return f'<script type="text/plain" id="block-{name}"></script>\n'
