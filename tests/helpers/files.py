"""Files of a folder, and those that this process has open."""

from __future__ import annotations

from pathlib import Path


def files(folder: Path) -> dict[str, bytes]:
    """Content of each file below a folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def n_open(path: Path) -> int:
    """Open files that are this one, or in this folder; other tests may hold theirs."""
    links = [Path(link) for link in Path("/proc/self/fd").iterdir()]
    return sum(link.resolve().is_relative_to(path) for link in links)
