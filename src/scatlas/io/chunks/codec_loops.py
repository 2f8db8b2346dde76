"""Kernels that decode or encode chunks without the interpreter, most a run in one call (Numba).

Chunk by chunk, a dozen threads wait for the interpreter's lock longer than they decode. Addresses
of C functions are arguments: compiled code that contained them could not be cached on disk.
"""

# ruff: noqa: ARG001 - Numba takes the number of arguments from the signature of an intrinsic.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types
from numba.core.cgutils import ir
from numba.extending import intrinsic

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from collections.abc import Callable

# LLVM's types for ``char *``, ``int`` and ``long``.
_BYTES = ir.IntType(8).as_pointer()
_INT, _LONG = ir.IntType(32), ir.IntType(64)


def _call_by_address(
    result: Any, *parameters: Any, constants: tuple[int, ...] = ()
) -> Callable[..., Any]:
    """Codegen of a call of a C function; ``constants`` are its last arguments."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, *arguments = args
        c_type = ir.FunctionType(result, [*parameters, *[_INT for _ in constants]])
        values = []
        for value, kind in zip(arguments, parameters, strict=True):
            if kind is _BYTES:
                values.append(builder.inttoptr(value, kind))
            else:
                values.append(builder.trunc(value, kind) if kind is _INT else value)
        values += [ir.Constant(_INT, value) for value in constants]
        returned = builder.call(builder.inttoptr(address, c_type.as_pointer()), values)
        if result is _INT:
            return builder.zext(returned, _LONG)
        return builder.ptrtoint(returned, _LONG) if result is _BYTES else returned

    return codegen


@intrinsic
def _blosc_decompress(typing_context: Any, function: Any, source: Any, target: Any, n: Any) -> Any:
    """``int blosc_decompress_ctx(source, target, n, 1)`` on one thread; returns bytes written."""
    return types.int64(*[types.int64] * 4), _call_by_address(
        _INT, _BYTES, _BYTES, _LONG, constants=(1,)
    )


@intrinsic
def _blosc_compress(
    typing_context: Any,
    function: Any,
    level: Any,
    shuffle: Any,
    item: Any,
    n: Any,
    source: Any,
    target: Any,
    room: Any,
    name: Any,
    block: Any,
) -> Any:
    """``int blosc_compress_ctx(..., 1)`` on one thread; returns bytes written, <= 0 on failure."""
    parameters = (_INT, _INT, _LONG, _LONG, _BYTES, _BYTES, _LONG, _BYTES, _LONG)
    return types.int64(*[types.int64] * 10), _call_by_address(_INT, *parameters, constants=(1,))


@intrinsic
def _crc32c(typing_context: Any, function: Any, start: Any, source: Any, n: Any) -> Any:
    """``uint32_t crc32c_extend(start, source, n)``."""
    return types.int64(*[types.int64] * 4), _call_by_address(_INT, _INT, _BYTES, _LONG)


@intrinsic
def _new_decompressor(typing_context: Any, function: Any) -> Any:
    """``libdeflate_alloc_decompressor()``; returns its address, or 0."""
    return types.int64(types.int64), _call_by_address(_BYTES)


@intrinsic
def _free_decompressor(typing_context: Any, function: Any, decompressor: Any) -> Any:
    """``libdeflate_free_decompressor(decompressor)``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, decompressor = args
        c_type = ir.FunctionType(ir.VoidType(), [_BYTES])
        function = builder.inttoptr(address, c_type.as_pointer())
        builder.call(function, [builder.inttoptr(decompressor, _BYTES)])
        return ir.Constant(_LONG, 0)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def _inflate(
    typing_context: Any,
    function: Any,
    decompressor: Any,
    source: Any,
    n_source: Any,
    target: Any,
    n_target: Any,
    written: Any,
) -> Any:
    """``libdeflate_zlib_decompress(...)``; returns 0 if it wrote exactly ``n_target`` bytes."""
    parameters = (_BYTES, _BYTES, _LONG, _BYTES, _LONG, _BYTES)
    return types.int64(*[types.int64] * 7), _call_by_address(_INT, *parameters)


@njit(nogil=True, cache=True)
def uint32(raw: np.ndarray, at: int) -> int:
    return (
        types.int64(raw[at])
        | types.int64(raw[at + 1]) << 8
        | types.int64(raw[at + 2]) << 16
        | types.int64(raw[at + 3]) << 24
    )


@njit(nogil=True, cache=True)
def _decode_blosc(
    functions: tuple[int, int], raw: np.ndarray, source: int, at: int, size: int, to: int, n: int
) -> bool:
    """Decode one chunk; False if it is damaged."""
    decompress, crc32c = functions
    if crc32c:
        size -= 4
        if size < 0 or _crc32c(crc32c, 0, source + at, size) != uint32(raw, at + size):
            return False
    # c-blosc trusts the sizes of the decoded and of the encoded chunk in the header.
    if size < 16 or uint32(raw, at + 4) != n or uint32(raw, at + 12) != size:
        return False
    return _blosc_decompress(decompress, source + at, to, n) == n


@njit(nogil=True, cache=True)
def decode_blosc_chunks(
    functions: tuple[int, int],
    raw: np.ndarray,
    source: int,
    starts: np.ndarray,
    sizes: np.ndarray,
    target: int,
    chunk_bytes: int,
) -> int:
    """Decode Blosc chunks one after the other to the memory at ``target``; number of chunks before
    the first damaged one. ``functions`` are the addresses of ``blosc_decompress_ctx`` and
    ``crc32c_extend`` (0 for chunks without a checksum), ``source`` is that of ``raw``.
    """
    for i in range(starts.size):
        place = target + i * chunk_bytes
        if not _decode_blosc(functions, raw, source, starts[i], sizes[i], place, chunk_bytes):
            return i
    return starts.size


@njit(nogil=True, cache=True)
def decode_blosc_indices(
    functions: tuple[int, int],
    raw: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
    addresses: tuple[int, int],
    chunk: np.ndarray,
    out: np.ndarray,
    highest: int,
) -> int:
    """As :func:`decode_blosc_chunks`, to another type while a chunk is in the core's cache; it ends
    also before an index above ``highest``. ``chunk`` is memory for a decoded one.
    """
    source, place = addresses
    for i in range(starts.size):
        if not _decode_blosc(functions, raw, source, starts[i], sizes[i], place, chunk.nbytes):
            return i
        target, outside = out[i * chunk.size : (i + 1) * chunk.size], False
        for k in range(chunk.size):
            target[k] = chunk[k]
            outside |= chunk[k] > highest
        if outside:
            return i
    return starts.size


@njit(nogil=True, cache=True)
def decode_deflate_chunks(
    functions: tuple[int, ...],
    source: int,
    starts: np.ndarray,
    sizes: np.ndarray,
    target: int,
    chunk_bytes: int,
) -> int:
    """As :func:`decode_blosc_chunks`; the functions of libdeflate allocate, decompress and free."""
    allocate, decompress, free = functions
    decompressor = _new_decompressor(allocate)
    if decompressor == 0:
        return 0
    n_decoded = starts.size
    for i in range(starts.size):
        place = target + i * chunk_bytes
        if _inflate(decompress, decompressor, source + starts[i], sizes[i], place, chunk_bytes, 0):
            n_decoded = i
            break
    _free_decompressor(free, decompressor)
    return n_decoded


@njit(nogil=True, cache=True)
def encode_blosc_chunks(
    functions: tuple[int, int],
    name: int,
    level: int,
    shuffle: int,
    item: int,
    source: int,
    chunk_bytes: int,
    out: np.ndarray,
    target: int,
    sizes: np.ndarray,
    checksums: np.ndarray,
) -> int:
    """Encode consecutive chunks by Blosc and append to each its checksum; return the bytes of all
    encoded chunks, or -1 if Blosc fails. ``out`` has ``chunk_bytes + 20`` bytes per chunk;
    ``checksums`` gets the CRC-32C of each before encoding.
    """
    compress, crc32c = functions
    room = chunk_bytes + 16
    at = 0
    for i in range(sizes.size):
        begin = source + i * chunk_bytes
        checksums[i] = _crc32c(crc32c, 0, begin, chunk_bytes)
        n = _blosc_compress(
            compress, level, shuffle, item, chunk_bytes, begin, target + at, room, name, 0
        )
        if n == 0 or n > room:
            return -1
        checksum = _crc32c(crc32c, 0, target + at, n)
        for byte in range(4):
            out[at + n + byte] = types.uint8(checksum >> 8 * byte & 255)
        sizes[i] = n + 4
        at += n + 4
    return at


def decompress_lzf(raw: np.ndarray, n_bytes: int) -> np.ndarray | None:
    """Decode h5py's LZF, ``raw`` (uint8), to ``n_bytes`` bytes; None if it is damaged.

    h5py's own decoder holds a lock: with two threads it reads such a file at half of this speed
    (`bench/results/readers-2026-11-22.txt`). Format: http://oldhome.schmorp.de/marc/liblzf.html.
    """
    # Three bytes of input give at most 264 of output.
    if n_bytes > 88 * raw.size + 264:
        return None
    out = np.empty(n_bytes, np.uint8)
    return out if _decompress_lzf(raw, out) else None


@njit(nogil=True, cache=True)
def _decompress_lzf(raw: np.ndarray, out: np.ndarray) -> bool:
    n_read = np.int64(0)
    n_written = np.int64(0)
    while n_read < raw.size:
        control = np.int64(raw[n_read])
        n_read += 1
        if control < 32:
            n = control + 1
            if n_read + n > raw.size or n_written + n > out.size:
                return False
            for i in range(n):
                out[n_written + i] = raw[n_read + i]
            n_read += n
            n_written += n
            continue
        n = control >> 5
        if n == 7:
            if n_read >= raw.size:
                return False
            n += np.int64(raw[n_read])
            n_read += 1
        if n_read >= raw.size:
            return False
        start = n_written - ((control & 31) << 8) - np.int64(raw[n_read]) - 1
        n_read += 1
        n += 2
        if start < 0 or n_written + n > out.size:
            return False
        # Byte by byte: source and target may overlap, which repeats a pattern.
        for i in range(n):
            out[n_written + i] = out[start + i]
        n_written += n
    return n_written == out.size
