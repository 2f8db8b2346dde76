"""Place of the workflow, and a content hash of the code behind a script.

Snakemake notices a changed script but not a changed package: a parameter of each rule is the hash
of the modules that its script imports, so that a changed figure reruns the report alone.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

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


_ROOT = Path(__file__).parents[1]
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
_SUFFIXES = {".py", ".cu", ".html", ".css", ".js"}
# Modules of an operation; `scatlas.kernels.kernels_for` chooses between them.
_KERNEL_MODULES = ("scatlas.kernels.{}_cpu", "scatlas.kernels.{}_gpu")


def code_hash(script: Path) -> str:
    """Hash of a script and of the package's sources that it imports, also through other modules; a
    name adds the module that defines it, a subpackage all its modules.
    """
    files: set[Path] = set()
    unvisited = {script}
    while unvisited:
        new = _imports(unvisited.pop()) - files
        files |= new
        unvisited |= new
    digest = hashlib.blake2b(script.read_bytes(), digest_size=8)
    for path in sorted(files, key=lambda p: p.relative_to(_ROOT).as_posix()):
        digest.update(path.relative_to(_ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _imports(path: Path) -> frozenset[Path]:
    """Files of the package that a file imports, at the top or inside functions."""
    return _imported_files(path, path.stat().st_mtime_ns) if path.suffix == ".py" else frozenset()


@cache
def _imported_files(path: Path, changed: int) -> frozenset[Path]:
    source = _parse(path, changed)
    files: set[Path] = set()
    for module, name in source.imports:
        if name:
            files |= _module_files(f"{module}.{name}") or _files_of_name(module, name)
        else:
            files |= _module_files(module)
    folder = _ROOT / "kernels"
    cuda_files = {folder / f"{name}.cu" for name in source.kernels}
    page_files = set((path.parent / "page").iterdir()) if source.has_page else set()
    cuda_files |= {folder / "build/common.cuh"} if source.kernels else set()
    return frozenset(files | page_files | {file for file in cuda_files if file.is_file()})


class _Source(NamedTuple):
    """Module and name of each import of a file that runs (the name is empty for a module), its CUDA
    sources, the module of each imported name, also of names for type checkers alone, and whether it
    writes a page.
    """

    imports: list[tuple[str, str]]
    kernels: list[str]
    origins: dict[str, str]
    has_page: bool


@cache
def _parse(path: Path, _changed: int) -> _Source:
    text = path.read_text(encoding="utf-8")
    executed = _NOT_EXECUTED.sub("", text)
    calls = [match.groups() for match in _KERNEL_CALL.finditer(executed)]
    operations = [name for function, name in calls if function == "kernels_for"]
    modules = [module.format(name) for name in operations for module in _KERNEL_MODULES]
    return _Source(
        imports=[*_import_statements(executed), *((module, "") for module in modules)],
        kernels=[name for function, name in calls if function == "kernel"],
        # The first of several.
        origins={name: module for module, name in reversed([*_import_statements(text)])},
        has_page=bool(_PAGE.search(executed)),
    )


def _import_statements(text: str) -> Iterator[tuple[str, str]]:
    """Module and name of each import of the package; the name is empty for an imported module."""
    for source, several, line, module in _IMPORT.findall(text):
        if module:
            yield module, ""
        for name in _COMMENT.sub("", several or line).split(","):
            if words := name.split():  # the name, perhaps with "as another"
                yield source, words[0]


def _module_path(module: str) -> Path | None:
    top, *parts = module.split(".")
    return _ROOT.joinpath(*parts) if top == "scatlas" and parts else None


def _module_files(module: str) -> set[Path]:
    """Files of a module or of a whole subpackage; none for names outside the package."""
    path = _module_path(module)
    if path is None:
        return set()
    if path.with_suffix(".py").is_file():
        return {path.with_suffix(".py")}
    if (path / "__init__.py").is_file():
        return {p for p in path.rglob("*") if p.suffix in _SUFFIXES}
    return set()


def _files_of_name(module: str, name: str) -> set[Path]:
    """Files of the module that defines a name, which a subpackage may export."""
    path = _module_path(module)
    if path is None or not (path / "__init__.py").is_file():
        return _module_files(module)
    init = path / "__init__.py"
    origin = _parse(init, init.stat().st_mtime_ns).origins.get(name)
    return {init} if origin is None else _module_files(origin)
