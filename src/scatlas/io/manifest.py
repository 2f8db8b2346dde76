"""Checksums of outputs, and the small JSON files that later steps compare."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from scatlas.compute.threads import n_threads
from scatlas.io.atomic import atomic_path

_DIGEST_BYTES = 16
# Snakemake drops it into outputs that are folders; it is no part of the data.
_NOT_DATA = frozenset({".snakemake_timestamp"})


def checksum(path: Path | str) -> str:
    """BLAKE2b of a file, or of a folder: its sorted relative paths and their files' digests.

    Times, owners and empty folders do not count. Files are read in threads.

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
        for file in path.rglob("*")
        if file.name not in _NOT_DATA and file.is_file()
    }
    order = sorted(files)
    with ThreadPoolExecutor(n_threads()) as pool:
        digests = list(pool.map(_digest, [files[name] for name in order]))
    whole = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name, digest in zip(order, digests, strict=True):
        whole.update(f"{name}\0{digest}\n".encode())
    return whole.hexdigest()


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(
            stream, lambda: hashlib.blake2b(digest_size=_DIGEST_BYTES)
        ).hexdigest()


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
