"""Imports of packages that an extra brings, and of names of a package on first use (PEP 562),
listed by its imports for type checkers; lazy_loader needs a second file of each package for that.
"""

from __future__ import annotations

import ast
import sys
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scatlas.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Package, and the extra of pyproject.toml that brings it, by the module that is imported.
EXTRAS = {
    "igraph": ("igraph", "embed"),
    "leidenalg": ("leidenalg", "embed"),
    "matplotlib": ("matplotlib", "plot"),
    "pynndescent": ("pynndescent", "embed"),
    "skmisc": ("scikit-misc", "skmisc"),
    "sklearn": ("scikit-learn", "embed"),
    "umap": ("umap-learn", "embed"),
}


# Packages whose names are scanpy's.
_OF_SCANPY = {"get", "pl", "pp", "tl"}


@contextmanager
def from_extra() -> Iterator[None]:
    """Context of an import that names the extra if the package is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRAS:
            raise
        package, extra = EXTRAS[module]
        raise InputError(f"{package} is not installed: pip install 'scatlas[{extra}]'") from error


def exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package: of the names that its file imports
    as themselves, ``from package._module import name as name``.
    """
    source = Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8")
    modules = {
        alias.name: node.module
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }

    def getattr_(name: str) -> Any:
        if name in modules:
            with from_extra():
                if modules[name] == package:
                    return import_module(f"{package}.{name}")
                return getattr(import_module(str(modules[name])), name)
        msg = f"module {package!r} has no attribute {name!r}"
        part = package.rpartition(".")[2]
        if part in _OF_SCANPY and not name.startswith("_"):
            msg += (
                f": scanpy's functions read these results, too; if it has this one, call "
                f"scanpy.{part}.{name} (pip install 'scatlas[scanpy]')"
            )
        raise AttributeError(msg)

    return getattr_, lambda: sorted(modules), sorted(modules)
