"""Import of a package's names on first use, so that importing scatlas is fast (PEP 562).

The imports that a package makes for type checkers and editors are the list of its names.
lazy_loader reads such a list from a stub: a second file of each package, and one more dependency.
"""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scatlas._util.extras import from_extra

if TYPE_CHECKING:
    from collections.abc import Callable


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
        raise AttributeError(msg)

    return getattr_, lambda: sorted(modules), sorted(modules)
