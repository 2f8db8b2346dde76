"""Checksums of outputs, and the small JSON files that later steps compare."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from scatlas.compute.threads import n_threads
from scatlas.io.atomic import atomic_path

_DIGEST_BYTES = 16
_CRC_BYTES = 4
# Snakemake drops it into outputs that are folders; it is no part of the data.
_NOT_DATA = frozenset({".snakemake_timestamp"})
# The record of an atlas says how it was made, as run records do; what it is made of is the rest.
_RECORD = Path("uns", "scatlas").parts


def checksum(path: Path | str) -> str:
    """BLAKE2b of a file, or of a folder: its sorted relative paths and their files' digests.

    Times, owners, empty folders and the record of an atlas (``uns/scatlas``, see
    :mod:`scatlas.provenance`) do not count. Files are read in threads. Of shards of Zarr
    arrays whose chunks carry checksums, which are all that scatlas writes, the index and these
    checksums (CRC-32C) are read, a ten-thousandth of the bytes.

    Returns
    -------
    32 hexadecimal digits (128 bits).

    Raises
    ------
    FileNotFoundError
        Nothing is at ``path``.
    """
    path = Path(path)
    if not path.is_dir():
        return _digest(path)
    files = {
        file.relative_to(path).as_posix(): file
        for folder, _, names in os.walk(path)
        for file in map(Path(folder).joinpath, names)
        if file.name not in _NOT_DATA
        and file.relative_to(path).parts[:2] != _RECORD
        and file.is_file()
    }
    order = sorted(files)
    chunks_of = {
        file.parent: n
        for file in files.values()
        if file.name == "zarr.json" and (n := _checked_chunks(file))
    }

    def digest(name: str) -> str:
        n_chunks = chunks_of.get(_array_of(files[name]))
        return _shard_digest(files[name], n_chunks) if n_chunks else _digest(files[name])

    with ThreadPoolExecutor(n_threads()) as pool:
        digests = list(pool.map(digest, order))
    whole = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name, digest in zip(order, digests, strict=True):
        whole.update(f"{name}\0{digest}\n".encode())
    return whole.hexdigest()


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(
            stream, lambda: hashlib.blake2b(digest_size=_DIGEST_BYTES)
        ).hexdigest()


def _array_of(file: Path) -> Path | None:
    """Folder of the Zarr array whose chunk or shard a file named ``c/0`` or ``c/0/0`` is."""
    return next((folder.parent for folder in file.parents if folder.name == "c"), None)


def _checked_chunks(metadata: Path) -> int:
    """Chunks a shard of a Zarr array whose chunks carry checksums; 0 for any other."""
    array = json.loads(metadata.read_bytes())
    codecs = array.get("codecs") or [{}]
    sharding = codecs[0].get("configuration") or {}
    known = (
        [codec.get("name") for codec in codecs] == ["sharding_indexed"]
        and [codec["name"] for codec in sharding["index_codecs"]] == ["bytes", "crc32c"]
        and sharding["codecs"][-1]["name"] == "crc32c"
        and sharding.get("index_location", "end") == "end"
    )
    if not known:
        return 0
    shard = array["chunk_grid"]["configuration"]["chunk_shape"]
    return math.prod(shard) // math.prod(sharding["chunk_shape"])


def _shard_digest(file: Path, n_chunks: int) -> str:
    """BLAKE2b of a shard's index and of the last four bytes of each chunk."""
    with file.open("rb", buffering=0) as stream:
        stream.seek(-16 * n_chunks - _CRC_BYTES, os.SEEK_END)
        index = stream.read()
        whole = hashlib.blake2b(index, digest_size=_DIGEST_BYTES)
        places = np.frombuffer(index[:-_CRC_BYTES], "<u8").reshape(-1, 2)
        places = places[places[:, 0] != np.iinfo(np.uint64).max]
        for end in places.sum(axis=1).tolist():
            whole.update(os.pread(stream.fileno(), _CRC_BYTES, end - _CRC_BYTES))
    return whole.hexdigest()


def write_json(path: Path | str, mapping: Mapping[str, Any]) -> None:
    """Write a mapping as JSON, so that equal contents give equal bytes; atomic.

    Keys are sorted, NumPy numbers and arrays become JSON's, paths become strings, and floats
    keep the digits that tell them apart. NaN and infinities become ``null``: JSON has none.

    Raises
    ------
    TypeError
        A value is none of these.
    """
    text = json.dumps(_plain(mapping), indent=2, sort_keys=True, allow_nan=False)
    with atomic_path(path) as partial:
        partial.write_text(text + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    match value:
        case np.ndarray() | np.generic():
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
