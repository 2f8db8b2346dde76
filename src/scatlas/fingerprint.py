"""Content hash of the code behind a script.

Snakemake notices a changed script but not a changed package. Each rule therefore carries the hash
of the ``scatlas`` modules that its script reaches: a changed kernel reruns the steps that use it,
and a changed figure reruns the report alone.
"""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

_ROOT = Path(__file__).parent


def fingerprint(script: Path) -> str:
    """Hash of the package's sources that ``script`` imports, directly or not.

    Parameters
    ----------
    script
        Python file. A subpackage counts as a whole where it is imported by name
        (``from scatlas import pp``), because its functions load on first use.

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
    if path.suffix != ".py":
        return set()
    found: set[Path] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            for name in names:
                found |= _module(name, whole=name != "scatlas")
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                inner = _module(f"{node.module}.{alias.name}", whole=True)
                found |= inner or _module(node.module, whole=node.module != "scatlas")
    return found


def _module(name: str, *, whole: bool) -> set[Path]:
    """Files of a module of this package; all of a subpackage's with ``whole``."""
    parts = name.split(".")
    if parts[0] != "scatlas":
        return set()
    path = _ROOT.joinpath(*parts[1:])
    if path.with_suffix(".py").is_file() and len(parts) > 1:
        return {path.with_suffix(".py")}
    if not (path / "__init__.py").is_file():
        return set()
    if not whole:
        return {path / "__init__.py"}
    return {p for p in path.rglob("*") if p.suffix in {".py", ".cu", ".html", ".css"}}
