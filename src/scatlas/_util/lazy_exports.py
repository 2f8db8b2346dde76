"""Import of a package's names on first use, so that importing scatlas is fast (PEP 562).

lazy_loader would be one more dependency for these ten lines of code.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from scatlas._util.extras import from_extra

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def exports(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package, for names with the module that holds each."""

    def getattr_(name: str) -> Any:
        if name in modules:
            with from_extra():
                return getattr(import_module(f"{package}.{modules[name]}"), name)
        msg = f"module {package!r} has no attribute {name!r}"
        raise AttributeError(msg)

    def dir_() -> list[str]:
        return sorted(modules)

    return getattr_, dir_
