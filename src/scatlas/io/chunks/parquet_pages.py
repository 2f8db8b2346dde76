"""Lists of numbers in dictionary pages of Parquet, decoded in a third of Arrow's time.

Most columns have no gaps, empty lists or pages of several encodings; others, and damaged ones, are
left to Arrow. A token with its value takes 3.3 ns on Tahoe-100M's layout, and Arrow 9.7. Format:
https://parquet.apache.org/docs/file-format/data-pages/encodings/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.io.chunks.codec_loops import uint32
from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyarrow import parquet as pq

_TYPES = {"INT32": np.int32, "INT64": np.int64, "FLOAT": np.float32, "DOUBLE": np.float64}
# Numbers of the format: types of pages, and encodings.
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_PLAIN, _PLAIN_DICTIONARY, _RLE, _RLE_DICTIONARY = 0, 2, 3, 8
# What damaged bytes, or those of another kind, end in.
_DAMAGED = (LookupError, TypeError, ValueError, OverflowError, RecursionError, OSError)
# Bytes behind a page, so that four may be read from any byte of it.
_PADDING = 4
# Bits of a code, and levels that take two bits.
_MAX_WIDTH, _MAX_LEVEL = 24, 3


def read_lists(
    content: bytes,
    column: pq.ColumnChunkMetaData,
    schema: pq.ColumnSchema,
    kind: np.dtype,
    n_rows: int,
) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
    """Whole numbers of a column of lists, and offsets of its rows; None where Arrow must decode."""
    import pyarrow as pa

    max_level = schema.max_definition_level  # of an entry that is there
    is_list = schema.max_repetition_level == 1 and max_level <= _MAX_LEVEL
    is_plain = _TYPES.get(column.physical_type) == kind
    if not (is_list and is_plain and column.has_dictionary_page and column.num_values >= n_rows):
        return None
    table, values, offsets = np.empty(0, kind), np.empty(0, kind), np.empty(n_rows + 1, np.int64)
    at = n_values = row = 0
    try:
        codec = None if column.compression == "UNCOMPRESSED" else pa.Codec(column.compression)
        while n_values < column.num_values:
            header, at = _struct(content, at)
            if header[2] > column.total_uncompressed_size or at + header[3] > len(content):
                return None
            page = _page(memoryview(content)[at : at + header[3]], header[2], codec)
            at += header[3]
            if header[1] == _DICTIONARY_PAGE and not table.size:
                table = _narrow(page[:-_PADDING].view(kind))
                values = np.empty(column.num_values, table.dtype)
                if header[7][1] != table.size or header[7][2] not in (_PLAIN, _PLAIN_DICTIONARY):
                    return None
                continue
            n, encoding, *levels = (header[5][i] for i in range(1, 5))
            has_codes = encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY) and levels == [_RLE, _RLE]
            if header[1] != _DATA_PAGE or not has_codes or not 0 <= n <= values.size - n_values:
                return None
            part = values[n_values : n_values + n]
            row = _decode_page(page, max_level, table, part, n_values, offsets, row)
            if row < 0:
                return None
            n_values += n
    except (*_DAMAGED, pa.ArrowException):
        return None
    if row != n_rows or (n_rows and offsets[0]):
        return None
    offsets[-1] = n_values
    return values, offsets


def _page(encoded: memoryview, n_bytes: int, codec: pa.Codec | None) -> NDArray[np.uint8]:
    """Decompressed bytes with `_PADDING`."""
    page = np.empty(n_bytes + _PADDING, np.uint8)
    page[-_PADDING:] = 0
    raw = codec.decompress(encoded, n_bytes) if codec else encoded
    page[:-_PADDING] = np.frombuffer(raw, np.uint8)
    return page


def _narrow(table: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers in a type of two or four bytes, if it holds them: half the time is memory's."""
    kinds = (np.uint16, np.int32) if table.dtype.kind == "i" else ()
    narrow = (table.astype(kind) for kind in kinds)
    return next((each for each in narrow if np.array_equal(each, table)), table)


def _struct(raw: bytes, at: int) -> tuple[dict[int, Any], int]:
    """Fields of a struct in Thrift's compact protocol, of texts the length, and where it ends."""
    fields: dict[int, Any] = {}
    number = 0
    while head := raw[at]:
        at += 1
        number += head >> 4
        kind = head & 15
        if kind in (1, 2):  # a bool
            fields[number] = kind == 1
        elif kind in (5, 6, 8):
            value, at = _varint(raw, at)
            fields[number] = value if kind == 8 else (value >> 1) ^ -(value & 1)
            at += value if kind == 8 else 0
        elif kind == 12:
            fields[number], at = _struct(raw, at)
        else:
            raise LookupError(kind)
    return fields, at + 1


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        value |= (raw[at] & 127) << shift
        at += 1
        if raw[at - 1] < 128:
            return value, at
    raise LookupError(at)


@njit(nogil=True, cache=True)
def _run(raw: NDArray[np.uint8], at: int, stop: int, width: int) -> tuple[Any, Any, int, Any]:
    """A run's length (0 if damaged), its one value or -1, and the begin and end of its numbers."""
    head = np.int64(0)
    for k in range(5):
        if at >= stop:
            return 0, 0, at, at
        byte = np.int64(raw[at])
        at += 1
        head |= (byte & 127) << (7 * k)
        if byte < 128:
            break
    n_bytes = (head >> 1) * width if head & 1 else (width + 7) // 8
    if at + n_bytes > stop:
        return 0, 0, at, at
    if head & 1:
        return 8 * (head >> 1), -1, at, at + n_bytes
    return head >> 1, uint32(raw, at) & ((1 << 8 * n_bytes) - 1), at, at + n_bytes


@njit(nogil=True, cache=True)
def _decode_page(
    raw: NDArray[np.uint8],
    max_level: int,
    table: NDArray[Any],
    values: NDArray[Any],
    first: int,
    offsets: NDArray[np.int64],
    row: int,
) -> int:
    """Fill in a page's values and where rows begin; the rows so far, or -1 if it is damaged."""
    n, end = values.size, raw.size - _PADDING
    # Repetition levels: 0 is the first entry of a row.
    at, stop = 4, 4 + uint32(raw, 0)
    i = 0
    while i < n:
        length, value, bits, at = _run(raw, at, min(stop, end), 1)
        length = min(length, n - i)
        if length == 0 or value > 1:
            return -1
        for k in range(0 if value == 1 else length):
            if value == 0 or not (raw[bits + (k >> 3)] >> (k & 7)) & 1:
                if row >= offsets.size - 1:
                    return -1
                offsets[row] = first + i + k
                row += 1
        i += length
    # Definition levels: all entries are there.
    if at != stop:
        return -1
    at, stop = stop + 4, stop + 4 + uint32(raw, stop)
    width = 2 if max_level > 1 else 1
    i = 0
    while i < n:
        length, value, _, at = _run(raw, at, min(stop, end), width)
        if length == 0 or value != max_level:
            return -1
        i += length
    # Codes of the dictionary, behind their number of bits.
    if at != stop or stop >= end or raw[stop] > _MAX_WIDTH:
        return -1
    at, width = stop + 1, int(raw[stop])
    mask, top = np.uint64((1 << width) - 1), np.uint64(0)
    size, one = np.uint64(table.size), np.uint64(1)
    i = 0
    while i < n:
        length, value, bits, at = _run(raw, at, end, width)
        length = min(length, n - i)
        if length == 0 or value >= table.size or size == 0:
            return -1
        if value >= 0:
            values[i : i + length] = table[value]
        own = values[i : i + length]
        for k in range(own.size if value < 0 else 0):
            # Without signs, which would be tested; the four reads are compiled to one.
            byte = np.uint64(bits + (k * width >> 3))
            word = np.uint64(raw[byte]) | np.uint64(raw[byte + one]) << np.uint64(8)
            word |= np.uint64(raw[byte + np.uint64(2)]) << np.uint64(16)
            word |= np.uint64(raw[byte + np.uint64(3)]) << np.uint64(24)
            code = (word >> np.uint64(k * width & 7)) & mask
            top = max(top, code)
            own[k] = table[code if code < size else np.uint64(0)]
        i += length
    return row if top < size and at == end else -1
