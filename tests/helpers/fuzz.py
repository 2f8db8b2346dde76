"""Reproducible damage to files: flipped bits, overwritten bytes, zeros, cuts.

A *base* is a small valid plate in one layout. `damage` changes one of its files: the h5ad file, or
any file of a Zarr store. Each base knows the bytes that a checksum of the format covers: wrong
values are a defect only if a checksum covers all changed bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import h5py
import numpy as np
import zarr
from zarr.codecs import ZstdCodec

from tests.conftest import simulate
from tests.helpers.layouts import Layout, write

if TYPE_CHECKING:
    from pathlib import Path

    import scipy.sparse as sp

N_CELLS, N_GENES = 200, 300
_CHUNKS = (1500, 1100, 64)
_LATEST = {"libver": "latest"}
_DEFLATE, _FLETCHER32 = 1, 3

# Every decoder, with and without checksums; old and new metadata of HDF5.
BASES = {
    layout.name: layout
    for layout in (
        Layout("h5-gzip", "h5ad", "gzip", _CHUNKS),
        Layout("h5-shuffle-gzip-latest", "h5ad", "shuffle+gzip", _CHUNKS, file=_LATEST),
        Layout("h5-grown-fletcher32", "h5ad", "gzip+fletcher32", _CHUNKS, "grown", file=_LATEST),
        Layout("h5-fletcher32", "h5ad", "fletcher32", _CHUNKS),
        Layout("h5-lzf", "h5ad", "shuffle+lzf", _CHUNKS),
        Layout("h5-zstd", "h5ad", "zstd", _CHUNKS),
        Layout("h5-blosc", "h5ad", "blosc-lz4-SHUFFLE", _CHUNKS),
        Layout("h5-lz4", "h5ad", "lz4", _CHUNKS),
        Layout("h5-chunked", "h5ad", chunks=_CHUNKS),
        Layout("h5-contiguous-latest", "h5ad", storage="contiguous", file=_LATEST),
        Layout("h5-anndata-gzip", "h5ad", storage="anndata", file={"compression": "gzip"}),
        Layout("z2-blosc", "zarr2", "default", _CHUNKS),
        Layout("z2-zlib", "zarr2", "zlib", _CHUNKS, file={"consolidated": True}),
        Layout("z2-none", "zarr2", "none", _CHUNKS),
        Layout("z3-zstd", "zarr3", "default", _CHUNKS),
        Layout("z3-gzip", "zarr3", "gzip", _CHUNKS, file={"consolidated": True}),
        Layout("z3-shards-zstd-checksum", "zarr3", "zstd-checksum", _CHUNKS, "sharded"),
        Layout("z3-shards-blosc-crc32c", "zarr3", "blosc+crc32c", _CHUNKS, "sharded"),
        Layout("z3-shards-blosc", "zarr3", "blosc-lz4-bitshuffle", _CHUNKS, "shard-index-first"),
        Layout("z3-shards-none", "zarr3", "none", _CHUNKS, "sharded"),
    )
}


class Base(NamedTuple):
    """A valid plate on disk."""

    path: Path
    files: dict[str, bytes]  # by the path in a store; "" for an h5ad file
    values: dict[str, list[tuple[int, int]]]  # byte ranges of X's arrays, by file
    guarded: dict[str, list[tuple[int, int]]]  # and those that a checksum covers


@dataclass(frozen=True)
class Damage:
    """New bytes of one file of a base; ``guarded``: a checksum covers every changed byte."""

    file: str
    content: bytes
    what: str
    guarded: bool


def counts() -> sp.csr_matrix:
    return simulate(N_CELLS, N_GENES, seed=7)


def make(name: str, folder: Path) -> Base:
    """Write a base to ``folder``, with the same bytes each time."""
    path = write(counts(), folder, BASES[name])
    if path.is_file():
        values, guarded = _in_hdf5(path)
        return Base(path, {"": path.read_bytes()}, {"": values}, {"": guarded})
    files = {
        file.relative_to(path).as_posix(): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }
    values, guarded = {}, {}
    root = zarr.open_group(path, mode="r", use_consolidated=False)
    guards = {key: _is_guarded(root[key].metadata) for key in _arrays(root)}
    for name, content in files.items():
        key = next((key for key in guards if name.startswith(f"{key}/")), None)
        if key is None or name.rpartition("/")[2] in ("zarr.json", ".zarray", ".zattrs"):
            continue
        whole = [(0, len(content))]
        if key.startswith("X/"):
            values[name] = whole
        if guards[key]:
            guarded[name] = whole
    return Base(path, files, values, guarded)


def _arrays(group: zarr.Group) -> list[str]:
    return [name for name, node in group.members(max_depth=None) if isinstance(node, zarr.Array)]


def _is_guarded(metadata: Any) -> bool:
    """Whether a checksum covers each byte of the chunks of a Zarr array."""
    if metadata.zarr_format == 2:
        return getattr(metadata.compressor, "codec_id", "") in ("zlib", "gzip")
    codecs = metadata.codecs
    names = [type(codec).__name__ for codec in codecs]
    if names == ["ShardingCodec"]:
        index = [type(codec).__name__ for codec in codecs[0].index_codecs]
        if "Crc32cCodec" not in index:
            return False
        codecs = codecs[0].codecs
        names = [type(codec).__name__ for codec in codecs]
    checked = any(isinstance(codec, ZstdCodec) and codec.checksum for codec in codecs)
    return checked or names[-1] in ("GzipCodec", "Crc32cCodec")


def _in_hdf5(path: Path) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Byte ranges of X's arrays, and of all chunks with a checksum."""
    values, guarded = [], []

    def visit(name: str, node: Any) -> None:
        if not isinstance(node, h5py.Dataset) or node.dtype.kind == "O" or node.ndim != 1:
            return
        if node.chunks is None:
            start = node.id.get_offset()
            extents = [] if start is None else [(start, start + node.nbytes)]
        else:
            infos = [node.id.get_chunk_info(i) for i in range(node.id.get_num_chunks())]
            extents = [(info.byte_offset, info.byte_offset + info.size) for info in infos]
            properties = node.id.get_create_plist()
            codes = {properties.get_filter(i)[0] for i in range(properties.get_nfilters())}
            if codes & {_DEFLATE, _FLETCHER32} and not any(info.filter_mask for info in infos):
                guarded.extend(extents)
        if name.startswith("X/"):
            values.extend(extents)

    with h5py.File(path) as file:
        file.visititems(visit)
    return sorted(values), sorted(guarded)


# -- damage --------------------------------------------------------------------------------------

# Lengths and offsets that break careless arithmetic.
_BAD_NUMBERS = [0, 1, 2, 3, 7, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1]


def damage(base: Base, seed: int) -> Damage:
    """Damage one file of a base, depending on ``seed``."""
    rng = np.random.default_rng(seed)
    # X is most of a real plate, but most errors concern metadata: about half of each.
    names = sorted(base.files)
    in_x = [name for name in names if name in base.values]
    other = [name for name in names if name not in base.values]
    at_values = bool(rng.random() < 0.55)
    name = str(rng.choice(in_x if at_values and in_x else other or names))
    content = bytearray(base.files[name])
    kind = str(rng.choice(["flip", "overwrite", "number", "zeros", "copy", "cut"]))
    if name.rpartition("/")[2] in ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"):
        kind = str(rng.choice(["json", kind]))
    start = _position(rng, base, name, at_values=at_values)
    what = _SPOIL[kind](content, start, rng)
    old, new = base.files[name], bytes(content)
    where = f"{name or base.path.name}: {what}"
    guarded = covered(old, new, base.guarded.get(name, []))
    if base.path.stem == "h5-fletcher32":
        guarded = guarded and not _same_to_fletcher(old, new)
    return Damage(name, new, where, guarded)


def _position(rng: np.random.Generator, base: Base, name: str, *, at_values: bool) -> int:
    """Start of the damage: anywhere, or in X, then in half of the cases in a chunk's header."""
    size = len(base.files[name])
    if not at_values or not base.values.get(name):
        return int(rng.integers(size)) if size else 0
    first, stop = base.values[name][int(rng.integers(len(base.values[name])))]
    reach = min(32, stop - first) if rng.random() < 0.4 else stop - first
    return first + int(rng.integers(max(reach, 1)))


def _flip(content: bytearray, start: int, rng: np.random.Generator) -> str:
    n = int(rng.choice([1, 1, 1, 2, 8]))
    for i in range(n):
        at = min(start + (int(rng.integers(64)) if i else 0), len(content) - 1)
        if at >= 0:
            content[at] ^= 1 << int(rng.integers(8))
    return f"{n} bits flipped from byte {start}"


def _overwrite(content: bytearray, start: int, rng: np.random.Generator) -> str:
    n = int(rng.choice([1, 2, 4, 16, 300]))
    piece = rng.bytes(n)[: len(content) - start]
    content[start : start + len(piece)] = piece
    return f"{n} random bytes at {start}"


def _number(content: bytearray, start: int, rng: np.random.Generator) -> str:
    n, width = int(rng.choice(_BAD_NUMBERS)), int(rng.choice([1, 2, 4, 8]))
    order = str(rng.choice(["little", "little", "big"]))
    start -= start % width
    piece = (n % 256**width).to_bytes(width, order)[: max(len(content) - start, 0)]
    content[start : start + len(piece)] = piece
    return f"{n} in {width} bytes at {start}"


def _zeros(content: bytearray, start: int, rng: np.random.Generator) -> str:
    n = min(int(rng.choice([8, 64, 512, 4096, 10**9])), len(content) - start)
    content[start : start + n] = bytes(n)
    return f"{n} zeros from byte {start}"


def _copy(content: bytearray, start: int, rng: np.random.Generator) -> str:
    """Copy a block to a wrong position."""
    n = int(rng.choice([16, 512, 4096]))
    source = int(rng.integers(max(len(content) - n, 1)))
    piece = content[source : source + n][: len(content) - start]
    content[start : start + len(piece)] = piece
    return f"{len(piece)} bytes from {source} again at {start}"


def _cut(content: bytearray, start: int, rng: np.random.Generator) -> str:
    n = len(content)
    del content[start:]
    return f"cut to {start} of {n} bytes"


def _json(content: bytearray, start: int, rng: np.random.Generator) -> str:
    """Change a number or word in a file that remains valid JSON."""
    text = content.decode()
    spots = list(re.finditer(r'\d+|"[^"]*"|true|false|null', text))
    if not spots:
        return _overwrite(content, start, rng)
    spot = min(spots, key=lambda match: abs(match.start() - start))
    if spot[0].isdigit():
        new = str(rng.choice([-1, 10**10, int(spot[0]) + 1, int(spot[0]) * 2, *_BAD_NUMBERS]))
    else:
        new = str(rng.choice([*(other[0] for other in spots), '""', "null", "[]", "{}", "7"]))
    content[:] = (text[: spot.start()] + new + text[spot.end() :]).encode()
    return f"{spot[0]} became {new} at {spot.start()}"


_SPOIL = {
    spoil.__name__[1:]: spoil for spoil in (_flip, _overwrite, _number, _zeros, _copy, _cut, _json)
}


def _same_to_fletcher(old: bytes, new: bytes) -> bool:
    """Whether zeros became 0xFFFF or the reverse: the sums are modulo 65,535."""
    n = min(len(old), len(new)) // 2
    a, b = np.frombuffer(old, "<u2", n), np.frombuffer(new, "<u2", n)
    return bool(((a ^ b == 0xFFFF) & ((a == 0) | (b == 0))).any())


def covered(old: bytes, new: bytes, guarded: list[tuple[int, int]]) -> bool:
    """Whether the ranges cover every changed byte; missing bytes are changed bytes."""
    n = min(len(old), len(new))
    changed = np.ones(len(old), bool)
    changed[:n] = np.frombuffer(old, np.uint8, n) != np.frombuffer(new, np.uint8, n)
    inside = np.zeros(len(old), bool)
    for first, stop in guarded:
        inside[first:stop] = True
    return bool(guarded) and bool(inside[changed].all())
