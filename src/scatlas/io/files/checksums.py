"""Checksums of outputs, and the small JSON files that later steps compare."""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

from google_crc32c import value as crc32c

from scatlas.compute.threads import n_threads
from scatlas.io.files.atomic import atomic_path

_DIGEST_BYTES = 16
_CRC_BYTES = 4
_NO_CHUNK = 2**64 - 1
# Snakemake drops it into outputs that are folders; it is no part of the data.
_NOT_DATA = frozenset({".snakemake_timestamp"})
# The record of an atlas says how it was made, as run records do; what it is made of is the rest.
_RECORD = Path("uns", "scatlas").parts


def checksum(path: Path | str) -> str:
    """BLAKE2b of a file, or of a folder: its sorted relative paths and their files' digests.

    Times, owners, empty folders and the record of an atlas (``uns/scatlas``, see
    :mod:`scatlas.workflow.provenance`) do not count. Of shards of Zarr arrays whose chunks carry
    checksums, which are all that scatlas writes, the index and these checksums (CRC-32C) are read,
    a ten-thousandth of the bytes.

    Returns
    -------
    32 hexadecimal digits (128 bits).

    Raises
    ------
    FileNotFoundError
        Nothing is at ``path``.
    """
    return checksum_of(file_digests(path))


def file_digests(path: Path | str) -> dict[str, str]:
    """BLAKE2b of each file of a folder by its relative path, sorted; of a file under ``""``.

    Files are read in threads; of shards as :func:`checksum` says.
    """
    path = Path(path)
    if not path.is_dir():
        return {"": digest_of(path, root=path.parent)}
    names = sorted(
        file.relative_to(path).as_posix()
        for folder, _, names in os.walk(path)
        for file in map(Path(folder).joinpath, names)
        if file.name not in _NOT_DATA and file.is_file()
    )
    with ThreadPoolExecutor(n_threads()) as pool:
        digests = pool.map(lambda name: digest_of(path / name, root=path), names)
        return dict(zip(names, digests, strict=True))


def checksum_of(digests: Mapping[str, str]) -> str:
    """:func:`checksum` from the digests of :func:`file_digests`."""
    if set(digests) == {""}:
        return digests[""]
    whole = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name, digest in digests.items():
        if Path(name).parts[:2] != _RECORD:
            whole.update(f"{name}\0{digest}\n".encode())
    return whole.hexdigest()


def digest_of(file: Path, *, root: Path, every_byte: bool = False) -> str:
    """BLAKE2b of a file; of a shard, of its index and the checksums of its chunks.

    Parameters
    ----------
    file
        File of the store or folder ``root``.
    every_byte
        Whether chunks of shards are compared with their checksums.

    Returns
    -------
    32 hexadecimal digits; none for a shard of which a part does not fit its checksum.
    """
    array = next((folder.parent for folder in file.parents if folder.name == "c"), None)
    is_chunk = array is not None and array.is_relative_to(root)
    n_chunks = _checked_chunks(array / "zarr.json") if is_chunk else 0
    return _shard_digest(file, n_chunks, every_byte) if n_chunks else _digest(file)


def values_digest(store: Path) -> str:
    """Digest of the values of a store with consolidated metadata, however they are compressed.

    Arrays and their attributes count, by name; of arrays that lack the attribute
    :data:`scatlas.io.files.checksums.VALUES_DIGEST` the files do.

    Returns
    -------
    32 hexadecimal digits.
    """
    document = json.loads((store / "zarr.json").read_bytes())
    whole = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for key, node in sorted(document["consolidated_metadata"]["metadata"].items()):
        facts = [key, node["attributes"]]
        if node["node_type"] == "array":
            facts += [node["shape"], node["data_type"]]
            if VALUES_DIGEST not in node["attributes"]:
                facts.append(checksum(store / key))
        whole.update(json.dumps(facts, sort_keys=True).encode())
    return whole.hexdigest()


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(
            stream, lambda: hashlib.blake2b(digest_size=_DIGEST_BYTES)
        ).hexdigest()


def _checked_chunks(metadata: Path) -> int:
    """Chunks per shard of a Zarr array whose chunks carry checksums; 0 for any other."""
    return _checked_chunks_at(metadata, metadata.stat().st_mtime_ns) if metadata.exists() else 0


@lru_cache(maxsize=1024)
def _checked_chunks_at(metadata: Path, _changed: int) -> int:
    try:
        array = json.loads(metadata.read_bytes())
        (codec,) = array["codecs"]
        sharding = codec["configuration"]
        known = (
            codec["name"] == "sharding_indexed"
            and [codec["name"] for codec in sharding["index_codecs"]] == ["bytes", "crc32c"]
            and sharding["codecs"][-1]["name"] == "crc32c"
            and sharding.get("index_location", "end") == "end"
        )
        shard = array["chunk_grid"]["configuration"]["chunk_shape"]
        return math.prod(shard) // math.prod(sharding["chunk_shape"]) if known else 0
    except (ValueError, KeyError, TypeError):  # a group, another layout, or damaged
        return 0


def _shard_digest(file: Path, n_chunks: int, every_byte: bool) -> str:
    """BLAKE2b of a shard's index and of the last four bytes of each chunk."""
    n_bytes = 16 * n_chunks + _CRC_BYTES
    with file.open("rb", buffering=0) as stream:
        if file.stat().st_size < n_bytes:
            return ""
        stream.seek(-n_bytes, os.SEEK_END)
        index = stream.read()
        if not _fits(index):
            return ""
        whole = hashlib.blake2b(index, digest_size=_DIGEST_BYTES)
        for begin, size in struct.iter_unpack("<QQ", index[:-_CRC_BYTES]):
            if begin == _NO_CHUNK:
                continue
            n_read = size if every_byte else _CRC_BYTES
            chunk = os.pread(stream.fileno(), n_read, begin + size - n_read)
            if every_byte and not _fits(chunk):
                return ""
            whole.update(chunk[-_CRC_BYTES:])
    return whole.hexdigest()


def _fits(encoded: bytes) -> bool:
    """Whether bytes fit the CRC-32C that follows them."""
    return crc32c(encoded[:-_CRC_BYTES]) == int.from_bytes(encoded[-_CRC_BYTES:], "little")


def write_json(path: Path | str, mapping: Mapping[str, Any]) -> None:
    """Write a mapping as JSON, so that equal contents give equal bytes; atomic.

    Keys are sorted, NumPy numbers and arrays become JSON's, paths become strings, and floats
    keep the digits that tell them apart. NaN and infinities become ``null``: JSON has none.

    Raises
    ------
    TypeError
        A value is none of these.
    """
    with atomic_path(path) as partial:
        partial.write_bytes(json_text(mapping))


def json_text(mapping: Mapping[str, Any]) -> bytes:
    """What :func:`write_json` writes."""
    text = json.dumps(_plain(mapping), indent=2, sort_keys=True, allow_nan=False)
    return f"{text}\n".encode()


def text_digest(text: bytes) -> str:
    """BLAKE2b of a small file's bytes, 32 hexadecimal digits."""
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()


def _plain(value: Any) -> Any:
    match value:
        case _ if hasattr(value, "tolist"):  # NumPy's, which most steps on tables do without
            return _plain(value.tolist())
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case Path():
            return str(value)
        case float() if not math.isfinite(value):
            return None
        case None | bool() | int() | float() | str():
            return value
    msg = f"{value!r} of type {type(value).__name__} has no JSON form"
    raise TypeError(msg)


# Attribute of an array: digest of its values, chunk by chunk, before they are compressed. It stays
# the same where another version of a codec makes other bytes of them.
VALUES_DIGEST = "values_digest"
