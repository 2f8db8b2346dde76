"""Files of a Zarr store, on a local disk or at an address."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scatlas.errors import InputError
from scatlas.io.files.read_errors import read_error
from scatlas.io.files.stamps import walk_files

# Packages of fsspec that read addresses with these protocols. Without one obstore does, which needs
# no other package.
_BY_OBSTORE = {"s3": "s3fs", "gs": "gcsfs"}


def filesystem(url: str) -> tuple[Any, str]:
    """fsspec's file system of an address, and the path in it."""
    import fsspec

    protocol = url.partition("://")[0]
    if protocol in _BY_OBSTORE and find_spec(_BY_OBSTORE[protocol]) is None:
        _register_obstore(protocol)
    try:
        return fsspec.url_to_fs(url)
    except ImportError as error:
        raise read_error(url, "the address", error) from error
    except ValueError as error:
        msg = (
            f"{url}: no package reads {protocol!r} addresses: "
            "file, http, https, s3 and gs are known"
        )
        raise InputError(msg) from error


@cache
def _register_obstore(protocol: str) -> None:
    if find_spec("obstore") is not None:
        from obstore.fsspec import register

        register(protocol)


def list_files(store: Path | str, key: str = "") -> set[str] | None:
    """Paths of all files below a key of a store; None for a web server, which lists no files."""
    url = str(store)
    if "://" not in url:
        folder = Path(store, key)
        return {name for name, _ in walk_files(folder)} if folder.is_dir() else set()
    if url.startswith(("http://", "https://")):
        return None
    files, inner = filesystem(url)
    files.invalidate_cache()  # an earlier list may lack what was uploaded since
    start = "/".join(filter(None, [inner.rstrip("/"), key])) + "/"
    return {name.removeprefix(start) for name in files.find(start)}
