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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).parent
_NOT_EXECUTED = {"TYPE_CHECKING", "__name__ == '__main__'"}
_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)
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
    found: set[Path] = set()
    for module, name in _imported(path, path.stat().st_mtime_ns):
        files = _files(f"{module}.{name}") if name else _files(module)
        found |= files or (_home(module, name) if name else files)
    operations = [*_chosen(path, "kernel")]
    sources = {path.with_name(f"{name}.cu") for name in operations}
    sources |= {path.with_name("common.cuh")} if operations else set()
    return found | {file for file in sources if file.is_file()}


@cache
def _imported(path: Path, _changed: int) -> list[tuple[str, str]]:
    """Module and name of each import; no name where the module itself is imported."""
    found = []
    for node in _executed(_parse(path)):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found += [(node.module, alias.name) for alias in node.names]
    found += [(home.format(name), "") for name in _chosen(path, "home") for home in _HOMES]
    return [(module, name) for module, name in found if module.split(".")[0] == "scatlas"]


def _chosen(path: Path, function: str) -> Iterator[str]:
    """Operations that a file names when it calls ``home("operation", x)``, or ``kernel``."""
    for node in ast.walk(_parse(path)):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func
            if getattr(called, "id", getattr(called, "attr", None)) == function:
                yield node.args[0].value


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Statements but those for type checkers and for ``python -m``, which no script runs."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) in _NOT_EXECUTED:
            continue
        yield node
        # No import stands inside an expression.
        todo += [part for part in ast.iter_child_nodes(node) if isinstance(part, _STATEMENTS)]


def _parse(path: Path) -> ast.Module:
    if path.suffix != ".py":
        return ast.Module([], [])
    return _parsed(path, path.stat().st_mtime_ns)


@cache
def _parsed(path: Path, _changed: int) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


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
    for node in ast.walk(_parse(path / "__init__.py")):
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return _files(node.module or "")
    return {path / "__init__.py"}
