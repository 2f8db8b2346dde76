"""Plates of single-cell counts to one atlas: exact, out of core, at the speed of the disk.

``import scatlas as sa`` gives ``sa.pp``, ``sa.tl``, ``sa.datasets`` and ``sa.read_lazy``
with scanpy's names and defaults. Submodules load on first use, so the import itself is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from scatlas._version import __version__

if TYPE_CHECKING:
    from scatlas import datasets, io, pl, pp, tl
    from scatlas.io.lazy import read_lazy

__all__ = ["__version__", "datasets", "io", "pl", "pp", "read_lazy", "tl"]


def __getattr__(name: str) -> Any:
    if name == "read_lazy":
        return import_module("scatlas.io.lazy").read_lazy
    if name in __all__:
        return import_module(f"scatlas.{name}")
    msg = f"module 'scatlas' has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return __all__
