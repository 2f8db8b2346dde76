"""Runs of chunks decoded or encoded in one call, without the interpreter between them (Numba).

A block of four million values has dozens of chunks. Decoded one by one, each makes its thread take
and leave the interpreter's lock several times, and a dozen threads then wait for one another more
than they decode. The libraries' own C functions are called here, by their addresses, which are
arguments: compiled code that held them could not be kept on disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import types
from numba.core.cgutils import ir
from numba.extending import intrinsic

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from collections.abc import Callable

_BYTES = ir.IntType(8).as_pointer()
_INT, _LONG = ir.IntType(32), ir.IntType(64)


def _caller(result: Any, *parameters: Any, fixed: tuple[int, ...] = ()) -> Callable:
    """Codegen of a call of a C function by its address; ``fixed`` are constant last arguments."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        address, *given = args
        of_c = ir.FunctionType(result, [*parameters, *[_INT for _ in fixed]])
        values = []
        for value, kind in zip(given, parameters, strict=True):
            if kind is _BYTES:
                values.append(builder.inttoptr(value, kind))
            else:
                values.append(builder.trunc(value, kind) if kind is _INT else value)
        values += [ir.Constant(_INT, value) for value in fixed]
        found = builder.call(builder.inttoptr(address, of_c.as_pointer()), values)
        if result is _INT:
            return builder.zext(found, _LONG)
        return builder.ptrtoint(found, _LONG) if result is _BYTES else found

    return codegen


@intrinsic
def _blosc_decompress(typing_context: Any, of: Any, source: Any, target: Any, n: Any) -> Any:  # noqa: ARG001
    """``int blosc_decompress_ctx(source, target, n, 1)``: bytes written, on one thread."""
    return types.int64(*[types.int64] * 4), _caller(_INT, _BYTES, _BYTES, _LONG, fixed=(1,))


@intrinsic
def _blosc_compress(
    typing_context: Any,  # noqa: ARG001
    of: Any,  # noqa: ARG001
    level: Any,  # noqa: ARG001
    shuffle: Any,  # noqa: ARG001
    item: Any,  # noqa: ARG001
    n: Any,  # noqa: ARG001
    source: Any,  # noqa: ARG001
    target: Any,  # noqa: ARG001
    room: Any,  # noqa: ARG001
    name: Any,  # noqa: ARG001
    block: Any,  # noqa: ARG001
) -> Any:
    """``int blosc_compress_ctx(..., 1)``: bytes written, on one thread; not positive on failure."""
    parameters = (_INT, _INT, _LONG, _LONG, _BYTES, _BYTES, _LONG, _BYTES, _LONG)
    return types.int64(*[types.int64] * 10), _caller(_INT, *parameters, fixed=(1,))


@intrinsic
def _crc32c(typing_context: Any, of: Any, start: Any, source: Any, n: Any) -> Any:  # noqa: ARG001
    """``uint32_t crc32c_extend(start, source, n)``."""
    return types.int64(*[types.int64] * 4), _caller(_INT, _INT, _BYTES, _LONG)


@intrinsic
def _new_decompressor(typing_context: Any, of: Any) -> Any:  # noqa: ARG001
    """``libdeflate_alloc_decompressor()``: its address, or 0."""
    return types.int64(types.int64), _caller(_BYTES)


@intrinsic
def _free_decompressor(typing_context: Any, of: Any, decompressor: Any) -> Any:  # noqa: ARG001
    """``libdeflate_free_decompressor(decompressor)``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        address, made = args
        of_c = ir.FunctionType(ir.VoidType(), [_BYTES])
        function = builder.inttoptr(address, of_c.as_pointer())
        builder.call(function, [builder.inttoptr(made, _BYTES)])
        return ir.Constant(_LONG, 0)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def _inflate(
    typing_context: Any,  # noqa: ARG001
    of: Any,  # noqa: ARG001
    decompressor: Any,  # noqa: ARG001
    source: Any,  # noqa: ARG001
    n_source: Any,  # noqa: ARG001
    target: Any,  # noqa: ARG001
    n_target: Any,  # noqa: ARG001
    written: Any,  # noqa: ARG001
) -> Any:
    """``libdeflate_zlib_decompress(...)``: 0 when exactly ``n_target`` bytes were written."""
    parameters = (_BYTES, _BYTES, _LONG, _BYTES, _LONG, _BYTES)
    return types.int64(*[types.int64] * 7), _caller(_INT, *parameters)


@njit(nogil=True, cache=True)
def _uint32(raw, at):
    return (
        types.int64(raw[at])
        | types.int64(raw[at + 1]) << 8
        | types.int64(raw[at + 2]) << 16
        | types.int64(raw[at + 3]) << 24
    )


@njit(nogil=True, cache=True)
def unblosc(decompress, crc32c, raw, begin, starts, sizes, target, chunk_bytes):
    """Decode Blosc chunks to consecutive places of the memory at ``target``.

    Parameters
    ----------
    decompress, crc32c
        Addresses of ``blosc_decompress_ctx`` and ``crc32c_extend``; 0 for chunks that do not end
        with their checksum.
    raw
        uint8, in which chunk i is ``raw[starts[i] : starts[i] + sizes[i]]``.
    begin
        Address of ``raw``.
    starts, sizes
        int64.
    target
        Address to write to.
    chunk_bytes
        Of each chunk when it is decoded.

    Returns
    -------
    Number of chunks before the first that is damaged.
    """
    for i in range(starts.size):
        at, size = starts[i], sizes[i]
        if crc32c:
            size -= 4
            if size < 0 or _crc32c(crc32c, 0, begin + at, size) != _uint32(raw, at + size):
                return i
        # c-blosc trusts the sizes in the header: of the chunk, and of it compressed.
        if size < 16 or _uint32(raw, at + 4) != chunk_bytes or _uint32(raw, at + 12) != size:
            return i
        place = target + i * chunk_bytes
        if _blosc_decompress(decompress, begin + at, place, chunk_bytes) != chunk_bytes:
            return i
    return starts.size


@njit(nogil=True, cache=True)
def inflate(functions, begin, starts, sizes, target, chunk_bytes):
    """Decode zlib or gzip chunks to consecutive places of the memory at ``target``.

    Parameters
    ----------
    functions
        Addresses of libdeflate's functions that make a decompressor, decompress and free it.
    begin, starts, sizes, target, chunk_bytes
        As for :func:`unblosc`.

    Returns
    -------
    Number of chunks before the first that is damaged or of another size.
    """
    make, decompress, free = functions
    decompressor = _new_decompressor(make)
    if decompressor == 0:
        return 0
    done = starts.size
    for i in range(starts.size):
        place = target + i * chunk_bytes
        if _inflate(decompress, decompressor, begin + starts[i], sizes[i], place, chunk_bytes, 0):
            done = i
            break
    _free_decompressor(free, decompressor)
    return done


@njit(nogil=True, cache=True)
def blosc(
    functions, name, level, shuffle, item, source, chunk_bytes, out, target, lengths, checksums
):
    """Encode consecutive chunks as Blosc does, each with its checksum after it.

    Parameters
    ----------
    functions
        Addresses of ``blosc_compress_ctx`` and ``crc32c_extend``.
    name
        Address of the name of the compressor within Blosc, ended by a zero.
    level, shuffle, item
        Level, way to rearrange bytes, and bytes of a value.
    source, chunk_bytes
        Address of the first chunk, and the bytes of each.
    out, target
        uint8 with room for every chunk and 20 bytes more each, and its address.
    lengths
        int64, one per chunk: gets the bytes that it takes encoded.
    checksums
        uint32, one per chunk: gets the CRC-32C of its bytes before they are encoded.

    Returns
    -------
    Bytes of all; -1 if Blosc fails.
    """
    compress, crc32c = functions
    room = chunk_bytes + 16
    at = 0
    for i in range(lengths.size):
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
        lengths[i] = n + 4
        at += n + 4
    return at
