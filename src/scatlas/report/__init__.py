"""The page a person reads first: figures, tables and facts of one atlas, in one HTML file."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scatlas.report._build import build
    from scatlas.report._results import Results

_HOMES = {"Results": "_results", "build": "_build"}
__all__ = ["Results", "build"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"scatlas.report.{_HOMES[name]}"), name)
    msg = f"module 'scatlas.report' has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return __all__
