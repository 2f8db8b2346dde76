"""Place of the workflow, and a content hash of the code behind a script.

Snakemake notices a changed script but not a changed package: a parameter of each rule is the hash
of the modules that its script imports, so that a changed figure reruns the report alone.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from scatlas.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKAGE = Path(__file__).parents[1]


def workflow_folder() -> Path:
    """Folder with the Snakefile, the rules, the scripts and the profiles."""
    # Hatchling copies them into the wheel; see pyproject.toml.
    for folder in (_PACKAGE / "snakemake_workflow", _PACKAGE.parents[1]):
        if (folder / "Snakefile").is_file() and (folder / "scripts").is_dir():
            return folder
    raise InputError(f"{_PACKAGE}: the package has no Snakefile: install scatlas again")


# Regexes, because `ast` takes most of a second for the package at each start, and each cluster job
# starts Snakemake again. A test compares the imports that both find.
_IMPORT = re.compile(
    r"^ *(?:from (scatlas[\w.]*) import (?:\(([^)]*)\)|(.+))|import (scatlas[\w.]*))", re.MULTILINE
)
# Blocks that only type checkers and ``python -m`` run.
_NOT_EXECUTED = re.compile(
    r"^( *)if (?:TYPE_CHECKING|__name__ == \"__main__\"):\n(?:\1 +.*\n|\n)*", re.MULTILINE
)
_COMMENT = re.compile("#.*")
# Kernels that a file dispatches to ("linalg.gram"), and CUDA sources that it loads ("linalg/gram").
_KERNEL_CALL = re.compile(r"\b(kernels_for|kernel)\(\s*\"([\w./]+)\"")
# The folder of an HTML page, beside the module that writes it.
_PAGE = re.compile(r"parent / \"page\"$", re.MULTILINE)
_SUFFIXES = (".py", ".cu", ".cuh", ".html", ".css", ".js", ".json")
# Modules of an operation; `scatlas.kernels.kernels_for` chooses between them.
_KERNEL_MODULES = ("scatlas.kernels.{}_cpu", "scatlas.kernels.{}_gpu")


def code_hash(script: Path) -> str:
    """Hash of a script and of the package's sources that it imports, also through other modules; a
    name adds the module that defines it, a subpackage all its modules.
    """
    own = script.read_bytes()
    files: set[str] = set()
    unvisited = set(_imported_by("", own.decode()))
    while unvisited:
        files |= unvisited
        unvisited = set().union(*map(_imports, unvisited)) - files
    digest = hashlib.blake2b(own, digest_size=8)
    for file in sorted(files):
        digest.update(_digest(file))
    return digest.hexdigest()


@cache
def _files() -> dict[str, bytes]:
    """All sources of the package by their path in it. Each Snakemake reads them once, because looks
    for single files were half of the processor time of its start.
    """
    return {
        f"{folder}/{name}".removeprefix(f"{_PACKAGE}/"): Path(folder, name).read_bytes()
        for folder, _, names in os.walk(_PACKAGE)
        for name in names
        if name.endswith(_SUFFIXES)
    }


@cache
def _digest(file: str) -> bytes:
    return hashlib.blake2b(file.encode() + b"\0" + _files()[file]).digest()


@cache
def _imports(file: str) -> frozenset[str]:
    """Files of the package that a file imports, at the top or inside functions."""
    return _imported_by(file, _files()[file].decode()) if file.endswith(".py") else frozenset()


def _imported_by(file: str, text: str) -> frozenset[str]:
    text = _NOT_EXECUTED.sub("", text)
    found: set[str] = set()
    for module, name in (*_import_statements(text), *_kernels(text)):
        if module == "kernel":
            found |= {f"kernels/{name}.cu", "kernels/build/common.cuh"} & _files().keys()
        elif name:
            found |= _module_files(f"{module}.{name}") or _files_of_name(module, name)
        else:
            found |= _module_files(module)
    if _PAGE.search(text):
        found |= _folder_files(f"{posixpath.dirname(file)}/page")
    return frozenset(found)


def _kernels(text: str) -> Iterator[tuple[str, str]]:
    """Modules of the kernels that a file chooses between, and its CUDA sources as of "kernel"."""
    for function, name in _KERNEL_CALL.findall(text):
        if function == "kernel":
            yield function, name
        else:
            yield from ((module.format(name), "") for module in _KERNEL_MODULES)


def _import_statements(text: str) -> Iterator[tuple[str, str]]:
    """Module and name of each import of the package; the name is empty for an imported module."""
    for source, several, line, module in _IMPORT.findall(text):
        if module:
            yield module, ""
        for name in _COMMENT.sub("", several or line).split(","):
            if words := name.split():  # the name, perhaps with "as another"
                yield source, words[0]


@cache
def _module_files(module: str) -> frozenset[str]:
    """Files of a module or of a whole subpackage; none for names outside the package."""
    top, _, name = module.partition(".")
    path = name.replace(".", "/")
    if top != "scatlas" or not name:
        return frozenset()
    if f"{path}.py" in _files():
        return frozenset({f"{path}.py"})
    return _folder_files(path) if f"{path}/__init__.py" in _files() else frozenset()


def _folder_files(path: str) -> frozenset[str]:
    return frozenset(file for file in _files() if file.startswith(f"{path}/"))


def _files_of_name(module: str, name: str) -> frozenset[str]:
    """Files of the module that defines a name, which a subpackage may export."""
    init = f"{module.removeprefix('scatlas.').replace('.', '/')}/__init__.py"
    if init not in _files():
        return _module_files(module)
    origin = _origins(init).get(name)
    return frozenset({init}) if origin is None else _module_files(origin)


@cache
def _origins(init: str) -> dict[str, str]:
    """Module of each name that a subpackage imports, also for type checkers alone: the first."""
    imports = [*_import_statements(_files()[init].decode())]
    return {name: module for module, name in reversed(imports)}
