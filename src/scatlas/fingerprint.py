"""Content hash of the code behind a script.

Snakemake notices a changed script but not a changed package. Each rule therefore carries the hash
of the ``scatlas`` modules that its script reaches: a changed kernel reruns the steps that use it,
and a changed figure reruns the report alone.
"""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

_ROOT = Path(__file__).parent
# For type checkers, and for ``python -m``: no script runs these.
_NOT_EXECUTED = {"TYPE_CHECKING", "__name__ == '__main__'"}
# Where statements hold others, last first.
_BLOCKS = ("finalbody", "orelse", "handlers", "cases", "body")
_SOURCES = {".py", ".cu", ".html", ".css"}
# The homes of an operation's kernels, which `scatlas.kernels.homes.home` chooses from.
_HOMES = ("scatlas.kernels.{}_cpu", "scatlas.kernels.{}_gpu")


def fingerprint(script: Path) -> str:
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
    todo = _imports(script)
    while todo:
        path = todo.pop()
        if path not in seen:
            seen.add(path)
            todo |= _imports(path)
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(seen, key=lambda p: p.relative_to(_ROOT).as_posix()):
        digest.update(path.relative_to(_ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _imports(path: Path) -> set[Path]:
    """Files of the package that a file imports, at the top or inside functions."""
    if path.suffix != ".py":
        return set()
    read = _read(path, path.stat().st_mtime_ns)
    found: set[Path] = set()
    for module, name in read.imports:
        files = _files(f"{module}.{name}") if name else _files(module)
        found |= files or (_home(module, name) if name else files)
    sources = {path.with_name(f"{name}.cu") for name in read.kernels}
    sources |= {path.with_name("common.cuh")} if read.kernels else set()
    return found | {file for file in sources if file.is_file()}


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
    tree = ast.parse(text)
    found = []
    for node in _statements(tree, _NOT_EXECUTED):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found += [(node.module, alias.name) for alias in node.names]
    found += [(home.format(name), "") for name in _chosen(tree, text, "home") for home in _HOMES]
    origins: dict[str, str] = {}
    for node in _statements(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                origins.setdefault(alias.name, node.module or "")
    imports = [(module, name) for module, name in found if module.split(".")[0] == "scatlas"]
    return _Read(imports, [*_chosen(tree, text, "kernel")], origins)


def _chosen(tree: ast.Module, text: str, function: str) -> Iterator[str]:
    """Operations that a file names when it calls ``home("operation", x)``, or ``kernel``."""
    if f"{function}(" not in text:  # walking all expressions takes long
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func
            if getattr(called, "id", getattr(called, "attr", None)) == function:
                yield node.args[0].value


def _statements(tree: ast.AST, left_out: Container[str] = ()) -> Iterator[ast.AST]:
    """Statements but those under a condition that is left out, in their order."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and left_out and ast.unparse(node.test) in left_out:
            continue
        yield node
        # No import stands inside an expression.
        for block in _BLOCKS:
            todo += reversed(getattr(node, block, ()))


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


def _home(module: str, name: str) -> set[Path]:
    """Files behind a name that a module defines or a subpackage passes on."""
    path = _path(module)
    if path is None or not (path / "__init__.py").is_file():
        return _files(module)
    init = path / "__init__.py"
    origin = _read(init, init.stat().st_mtime_ns).origins.get(name)
    return {init} if origin is None else _files(origin)
