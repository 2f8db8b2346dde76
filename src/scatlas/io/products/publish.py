"""Finished results, copied to an address such as ``s3://bucket/atlas``.

A store at the address never looks finished before it is: the root metadata of a Zarr store is
uploaded after all its other files, and deleted before one of them changes. The list of all files
(:data:`LIST`) is uploaded last.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from scatlas.compute.progress import progress_meter
from scatlas.errors import DiskError, ScatlasError
from scatlas.io.files.checksums import file_digests, json_bytes
from scatlas.io.files.listing import filesystem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Name of the list of all published files, with their sizes and digests.
LIST = "published.json"
_ROOT = "zarr.json"
# Uploads at once: a server takes one by one far slower than a network can.
_UPLOADS = 8
# Attributes of a stored object that change with its content, by file system.
_TAGS = ("e_tag", "ETag", "etag", "md5Hash", "mtime", "created")


def publish(
    folder: Path | str, names: Iterable[str], address: str, *, journal: Path | str
) -> dict[str, Any]:
    """Copy results to an address, so that it holds the same files.

    Only files that the address lacks are uploaded: after an interruption the same call continues,
    and a second call uploads nothing. Files that results had before and have no longer are deleted
    at the address; files outside of the named results are left alone.

    Parameters
    ----------
    folder
        Folder of the results.
    names
        Files, folders and stores in it.
    address
        Where: an address of fsspec, such as ``s3://bucket/atlas``.
    journal
        File in which uploads are noted, for the next call after an interruption.

    Returns
    -------
    ``n_files`` and ``n_bytes`` of the results.

    Raises
    ------
    MissingPackageError
        A package for such addresses is missing.
    DiskError
        The address cannot be written.
    """
    folder, address = Path(folder), address.rstrip("/")
    products = {name: _files(folder / name, name) for name in sorted(names)}
    files = {path: record for product in products.values() for path, record in product.items()}
    try:
        target = _Target.open(address, Path(journal))
        if not target.is_complete(files):
            # First, so that no two stores of different versions are there together.
            target.delete([LIST, *target.changed_roots(products)])
            with closing(progress_meter(len(files), unit="files")) as passed:
                for name, product in products.items():
                    target.update(folder, name, product)
                    passed.update(len(product))
            target.write_list(files)
    except (ScatlasError, ImportError, MemoryError):
        raise
    # Each file system has other errors, all of which say what the server has answered.
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise DiskError(
            f"{address}: the results cannot be copied there ({reason}): check the address, the "
            "network and the credentials in the environment, and give the same command again, "
            "which continues"
        ) from error
    return {"n_files": len(files), "n_bytes": sum(size for size, _ in files.values())}


# Size and digest of a file.
_Record = tuple[int, str]


def _files(path: Path, name: str) -> dict[str, _Record]:
    return {
        f"{name}/{file}" if file else name: ((path / file).stat().st_size, digest)
        for file, digest in file_digests(path).items()
    }


@dataclass
class _Target:
    """Files at an address, and what is known of their content."""

    files: Any  # fsspec's file system
    root: str
    address: str
    journal: Path
    found: dict[str, tuple[int, str]]  # size and tag of the files that are there, by path
    # Digest of files with this path, size and tag: of uploads by this machine.
    known: dict[tuple[str, int, str], str]
    _lock: Lock = field(default_factory=Lock)

    @classmethod
    def open(cls, address: str, journal: Path) -> _Target:
        files, root = filesystem(address)
        root = root.rstrip("/")
        files.invalidate_cache()
        listed = files.find(root, detail=True)
        found = {
            path.removeprefix(f"{root}/"): (int(info["size"]), _tag(info))
            for path, info in listed.items()
        }
        target = cls(files, root, address, journal, found, _read_journal(journal, address))
        for path, (size, digest, tag) in target.read_list().items():
            target.known[path, size, tag] = digest
        return target

    def read_list(self) -> Mapping[str, tuple[int, str, str]]:
        """The list of published files, empty without one."""
        if LIST not in self.found:
            return {}
        return json.loads(self.files.cat_file(f"{self.root}/{LIST}"))["files"]

    def is_complete(self, files: Mapping[str, _Record]) -> bool:
        """Whether all files are there, and the list names exactly these."""
        listed = {path: (size, digest) for path, (size, digest, _) in self.read_list().items()}
        return listed == dict(files) and all(self.has(*item) for item in files.items())

    def has(self, path: str, record: _Record) -> bool:
        if path not in self.found:
            return False
        size, tag = self.found[path]
        return size == record[0] and self.known.get((path, size, tag)) == record[1]

    def changed_roots(self, products: Mapping[str, Mapping[str, _Record]]) -> list[str]:
        """Root metadata of Zarr stores with a file that is not the same there."""
        changed = {
            name: self._stale(name, product) or not all(self.has(*item) for item in product.items())
            for name, product in products.items()
        }
        return [f"{name}/{_ROOT}" for name in products if changed[name]]

    def _stale(self, name: str, product: Mapping[str, _Record]) -> list[str]:
        """Files of an earlier version of a result."""
        there = (path for path in self.found if path.startswith(f"{name}/"))
        return [path for path in there if path not in product]

    def update(self, folder: Path, name: str, product: Mapping[str, _Record]) -> None:
        """Make a result the same as the local one; the root metadata of a store comes last."""
        due = [path for path, record in product.items() if not self.has(path, record)]
        root = f"{name}/{_ROOT}"
        self._upload(folder, [path for path in due if path != root], product)
        self.delete(self._stale(name, product))
        self._upload(folder, [path for path in due if path == root], product)

    def delete(self, paths: Iterable[str]) -> None:
        for path in [path for path in paths if path in self.found]:
            self.files.rm_file(f"{self.root}/{path}")
            del self.found[path]

    def _upload(self, folder: Path, paths: list[str], records: Mapping[str, _Record]) -> None:
        def upload(path: str) -> None:
            size, digest = records[path]
            self.files.put_file(str(folder / path), f"{self.root}/{path}")
            info = self.files.info(f"{self.root}/{path}")
            if info["size"] != size:
                raise OSError(f"{path} has {info['size']:,} bytes there, {size:,} here")
            self._note(path, size, digest, _tag(info))

        with ThreadPoolExecutor(_UPLOADS, "scatlas-upload") as pool:
            futures = [pool.submit(upload, path) for path in paths]
            try:
                for future in futures:
                    future.result()
            finally:
                for future in futures:
                    future.cancel()

    def _note(self, path: str, size: int, digest: str, tag: str) -> None:
        line = json.dumps([self.address, path, size, tag, digest])
        with self._lock:
            self.found[path] = (size, tag)
            self.known[path, size, tag] = digest
            with self.journal.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")

    def write_list(self, files: Mapping[str, _Record]) -> None:
        """Write the list of all files, the sign that everything is there."""
        listed = {path: [*record, self.found[path][1]] for path, record in files.items()}
        self.files.pipe_file(f"{self.root}/{LIST}", json_bytes({"files": listed}))
        self.journal.unlink(missing_ok=True)


def _tag(info: Mapping[str, Any]) -> str:
    return next((str(info[key]) for key in _TAGS if info.get(key)), "")


def _read_journal(journal: Path, address: str) -> dict[tuple[str, int, str], str]:
    if not journal.exists():
        return {}
    known = {}
    for line in journal.read_text("utf-8").splitlines():
        try:
            there, path, size, tag, digest = json.loads(line)
        except ValueError:  # cut short by a kill
            continue
        if there == address:
            known[path, size, tag] = digest
    return known
