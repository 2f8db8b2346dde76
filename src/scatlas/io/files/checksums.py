"""Checksums of outputs, and JSON files with reproducible bytes."""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from google_crc32c import value as crc32c

from scatlas.compute.threads import n_threads
from scatlas.io.files.atomic import atomic_path
from scatlas.io.files.listing import walk_files

_DIGEST_BYTES = 16
_CRC_BYTES = 4
# Bytes of a part of a file, which has its own digest, and bytes that are read at once.
_PART_BYTES, _READ_BYTES = 2**26, 2**18
_NO_CHUNK = 2**64 - 1
# Attribute of an array: digest of its values, chunk by chunk, before compression. It does not
# change when another version of a codec compresses to other bytes.
VALUES_DIGEST = "values_digest"
# Snakemake writes it into outputs that are folders; it is no part of the data.
_NOT_DATA = frozenset({".snakemake_timestamp"})
# The record of an atlas: how the run made it, which may differ between equal atlases.
_RECORD = Path("uns", "scatlas").parts


def checksum(path: Path | str) -> str:
    """BLAKE2b of a file, or of the sorted relative paths and digests of the files of a folder.

    Of a file of more than 64 MB it is that of the digests of its parts, which threads compute.
    Ignores times, owners, empty folders and the record of an atlas (``uns/scatlas``, see
    :mod:`scatlas.workflow.provenance`). All Zarr arrays that scatlas writes have shards with a
    CRC-32C per chunk; of those it reads the index and the CRCs, a ten-thousandth of the bytes.

    Returns
    -------
    32 hexadecimal digits (128 bits).

    Raises
    ------
    FileNotFoundError
        Nothing is at ``path``.
    """
    return checksum_of_digests(file_digests(path))


def file_digests(path: Path | str) -> dict[str, str]:
    """BLAKE2b of each file of a folder by its sorted relative path; of one file under ``""``."""
    path = Path(path)
    if not path.is_dir():
        return {"": file_digest(path, root=path.parent)}
    names = sorted(
        name for name, entry in walk_files(path) if entry.name not in _NOT_DATA and entry.is_file()
    )
    with ThreadPoolExecutor(n_threads()) as pool:
        digests = pool.map(lambda name: file_digest(path / name, root=path), names)
        return dict(zip(names, digests, strict=True))


def checksum_of_digests(digests: Mapping[str, str]) -> str:
    """:func:`checksum` from the digests of :func:`file_digests`."""
    if set(digests) == {""}:
        return digests[""]
    combined = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name, digest in digests.items():
        if Path(name).parts[:2] != _RECORD:
            combined.update(f"{name}\0{digest}\n".encode())
    return combined.hexdigest()


def file_digest(file: Path, *, root: Path, every_byte: bool = False) -> str:
    """BLAKE2b of a file of the store or folder ``root``; for a shard, of its index and the CRC-32C
    of its chunks, which ``every_byte`` compares with these ("" if one does not match).
    """
    array = next((folder.parent for folder in file.parents if folder.name == "c"), None)
    n_chunks = 0
    if array is not None and array.is_relative_to(root):
        metadata = array / "zarr.json"
        if metadata.exists():
            n_chunks = _chunks_per_shard(metadata, metadata.stat().st_mtime_ns)
    return _shard_digest(file, n_chunks, every_byte) if n_chunks else _blake2b(file)


def values_digest(store: Path) -> str:
    """Digest of the values of a consolidated store, independent of compression: of names, shapes,
    types, attributes, and of the files of arrays that have no :data:`VALUES_DIGEST`.
    """
    document = json.loads((store / "zarr.json").read_bytes())
    combined = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for key, node in sorted(document["consolidated_metadata"]["metadata"].items()):
        facts = [key, node["attributes"]]
        if node["node_type"] == "array":
            facts += [node["shape"], node["data_type"]]
            if VALUES_DIGEST not in node["attributes"]:
                facts.append(checksum(store / key))
        combined.update(json.dumps(facts, sort_keys=True).encode())
    return combined.hexdigest()


def _blake2b(file: Path) -> str:
    n_parts = -(-file.stat().st_size // _PART_BYTES)
    if n_parts <= 1:
        return _part_digest(file, 0).hex()
    with ThreadPoolExecutor(n_threads()) as pool:
        digests = pool.map(partial(_part_digest, file), range(n_parts))
        return hashlib.blake2b(b"".join(digests), digest_size=_DIGEST_BYTES).hexdigest()


def _part_digest(file: Path, number: int) -> bytes:
    combined = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    with file.open("rb", buffering=0) as stream:
        stream.seek(number * _PART_BYTES)
        pieces = iter(partial(stream.read, _READ_BYTES), b"")
        for piece in islice(pieces, _PART_BYTES // _READ_BYTES):
            combined.update(piece)
    return combined.digest()


@lru_cache(maxsize=1024)
def _chunks_per_shard(metadata: Path, _changed: int) -> int:
    """Chunks per shard of a Zarr array with a CRC-32C per chunk; 0 for other files."""
    try:
        array = json.loads(metadata.read_bytes())
        (codec,) = array["codecs"]
        sharding = codec["configuration"]
        is_known = (
            codec["name"] == "sharding_indexed"
            and [codec["name"] for codec in sharding["index_codecs"]] == ["bytes", "crc32c"]
            and sharding["codecs"][-1]["name"] == "crc32c"
            and sharding.get("index_location", "end") == "end"
        )
        shard = array["chunk_grid"]["configuration"]["chunk_shape"]
        return math.prod(shard) // math.prod(sharding["chunk_shape"]) if is_known else 0
    except (ValueError, KeyError, TypeError):  # a group, another layout, or damaged
        return 0


def _shard_digest(file: Path, n_chunks: int, every_byte: bool) -> str:
    """BLAKE2b of a shard's index and of the CRC-32C of each chunk."""
    n_bytes = 16 * n_chunks + _CRC_BYTES
    with file.open("rb", buffering=0) as stream:
        if file.stat().st_size < n_bytes:
            return ""
        stream.seek(-n_bytes, os.SEEK_END)
        index = stream.read()
        if not _matches_crc(index):
            return ""
        combined = hashlib.blake2b(index, digest_size=_DIGEST_BYTES)
        for begin, size in struct.iter_unpack("<QQ", index[:-_CRC_BYTES]):
            if begin == _NO_CHUNK:
                continue
            n_read = size if every_byte else _CRC_BYTES
            chunk = os.pread(stream.fileno(), n_read, begin + size - n_read)
            if every_byte and not _matches_crc(chunk):
                return ""
            combined.update(chunk[-_CRC_BYTES:])
    return combined.hexdigest()


def _matches_crc(encoded: bytes) -> bool:
    return crc32c(encoded[:-_CRC_BYTES]) == int.from_bytes(encoded[-_CRC_BYTES:], "little")


def write_json(path: Path | str, mapping: Mapping[str, Any]) -> None:
    """Write a mapping as JSON, atomically; equal mappings give equal bytes.

    Sorts the keys, converts NumPy numbers and arrays to JSON's and paths to strings, and writes NaN
    and infinities as ``null``, because JSON has none.

    Raises
    ------
    TypeError
        JSON has no form for a value.
    """
    with atomic_path(path) as partial:
        partial.write_bytes(json_bytes(mapping))


def json_bytes(mapping: Mapping[str, Any]) -> bytes:
    text = json.dumps(_as_json(mapping), indent=2, sort_keys=True, allow_nan=False)
    return f"{text}\n".encode()


def text_digest(text: bytes) -> str:
    """BLAKE2b of a small file's bytes, 32 hexadecimal digits."""
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()


def _as_json(value: Any) -> Any:
    match value:
        case _ if hasattr(value, "tolist"):  # NumPy's, without importing NumPy
            return _as_json(value.tolist())
        case Mapping():
            return {str(key): _as_json(item) for key, item in value.items()}
        case list() | tuple():
            return [_as_json(item) for item in value]
        case Path():
            return str(value)
        case float() if not math.isfinite(value):
            return None
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(f"{value!r} of type {type(value).__name__} has no JSON form")
