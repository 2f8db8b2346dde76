"""Content hash of the code behind a script.

Snakemake notices a changed script but not a changed package. Each rule therefore carries the hash
of the ``scatlas`` modules that its script reaches: a changed kernel reruns the steps that use it,
and a changed figure reruns the report alone.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).parents[1]
# Snakemake asks at each start, and on a cluster each job starts one: Python's parser would take
# most of a second for the package. The tests hold what is found here against what that finds.
_IMPORT = re.compile(
    r"^ *(?:from (scatlas[\w.]*) import (?:\(([^)]*)\)|(.+))|import (scatlas[\w.]*))", re.MULTILINE
)
# What only type checkers and ``python -m`` run: no script does.
_NOT_EXECUTED = re.compile(
    r"^( *)if (?:TYPE_CHECKING|__name__ == \"__main__\"):\n(?:\1 +.*\n|\n)*", re.MULTILINE
)
_COMMENT = re.compile("#.*")
# Kernels that a file asks for, as "linalg.gram", and CUDA sources, as "linalg/gram".
_CHOSEN = re.compile(r"\b(kernels_for|kernel)\(\s*\"([\w./]+)\"")
_SOURCES = {".py", ".cu", ".html", ".css"}
# Modules of an operation, of which `scatlas.kernels.dispatch.kernels_for` chooses one.
_KERNELS = ("scatlas.kernels.{}_cpu", "scatlas.kernels.{}_gpu")


def code_hash(script: Path) -> str:
    """Hash of the package's sources that ``script`` imports, directly or not.

    Parameters
    ----------
    script
        Python file. A function that it imports by name (``from scatlas.pp import pca``) counts
        with the module that holds it; a subpackage (``from scatlas import pp``) counts as a whole.

    Returns
    -------
    16 hexadecimal digits; the script's own text is not part of it.
    """
    seen: set[Path] = set()
    todo = {script}
    while todo:
        for path in _imports(todo.pop()) - seen:
            seen.add(path)
            todo.add(path)
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(seen, key=lambda p: p.relative_to(_ROOT).as_posix()):
        digest.update(path.relative_to(_ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _imports(path: Path) -> frozenset[Path]:
    """Files of the package that a file imports, at the top or inside functions."""
    return _found(path, path.stat().st_mtime_ns) if path.suffix == ".py" else frozenset()


@cache
def _found(path: Path, changed: int) -> frozenset[Path]:
    read = _read(path, changed)
    found: set[Path] = set()
    for module, name in read.imports:
        files = _files(f"{module}.{name}") if name else _files(module)
        found |= files or (_files_behind(module, name) if name else files)
    folder = _ROOT / "kernels"
    sources = {folder / f"{name}.cu" for name in read.kernels}
    sources |= {folder / "build/common.cuh"} if read.kernels else set()
    return frozenset(found | {file for file in sources if file.is_file()})


class _Read(NamedTuple):
    """What a file says of others.

    Attributes
    ----------
    imports
        Module and name of each import that runs; no name where the module itself is imported.
    kernels
        Operations whose CUDA sources it takes.
    origins
        By name, the module that a name is imported from, also if for type checkers alone.
    """

    imports: list[tuple[str, str]]
    kernels: list[str]
    origins: dict[str, str]


@cache
def _read(path: Path, _changed: int) -> _Read:
    text = path.read_text(encoding="utf-8")
    executed = _NOT_EXECUTED.sub("", text)
    chosen = [match.groups() for match in _CHOSEN.finditer(executed)]
    kernels = [
        module.format(name) for kind, name in chosen if kind == "kernels_for" for module in _KERNELS
    ]
    return _Read(
        imports=[*_statements(executed), *((module, "") for module in kernels)],
        kernels=[name for kind, name in chosen if kind == "kernel"],
        # Of several, the first.
        origins={name: module for module, name in reversed([*_statements(text)])},
    )


def _statements(text: str) -> Iterator[tuple[str, str]]:
    """Module and name of each import of the package; no name where the module is imported."""
    for source, several, line, module in _IMPORT.findall(text):
        if module:
            yield module, ""
        for name in _COMMENT.sub("", several or line).split(","):
            if words := name.split():  # the name, perhaps with "as another"
                yield source, words[0]


def _path(module: str) -> Path | None:
    top, *parts = module.split(".")
    return _ROOT.joinpath(*parts) if top == "scatlas" and parts else None


def _files(module: str) -> set[Path]:
    """Files of a module of this package, or of a whole subpackage; none for anything else."""
    path = _path(module)
    if path is None:
        return set()
    if path.with_suffix(".py").is_file():
        return {path.with_suffix(".py")}
    if (path / "__init__.py").is_file():
        return {p for p in path.rglob("*") if p.suffix in _SOURCES}
    return set()


def _files_behind(module: str, name: str) -> set[Path]:
    """Files behind a name that a module defines or a subpackage passes on."""
    path = _path(module)
    if path is None or not (path / "__init__.py").is_file():
        return _files(module)
    init = path / "__init__.py"
    origin = _read(init, init.stat().st_mtime_ns).origins.get(name)
    return {init} if origin is None else _files(origin)
