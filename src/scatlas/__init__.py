"""Plates of single-cell counts to one atlas: exact, out of core, at the speed of the disk.

``import scatlas as sa`` gives ``sa.pp``, ``sa.tl``, ``sa.datasets`` and ``sa.read_lazy``
with scanpy's names and defaults; ``sa.get`` aggregates cells by group and moves data to a GPU and
back, ``sa.memory`` and ``sa.cluster`` set where data is processed, and ``sa.export`` writes an
atlas in the forms of other programs. Submodules load on first use, so
the import itself is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from scatlas._version import __version__

if TYPE_CHECKING:
    from scatlas import datasets, export, get, io, pl, pp, tl
    from scatlas.compute.cluster import cluster
    from scatlas.compute.device_memory import memory
    from scatlas.io.matrices.lazy import read_lazy

__all__ = ["__version__", "cluster", "datasets", "export", "get", "io", "memory"]
__all__ += ["pl", "pp", "read_lazy", "tl"]
_EXPORTS = {
    "cluster": "scatlas.compute.cluster",
    "memory": "scatlas.compute.device_memory",
    "read_lazy": "scatlas.io.matrices.lazy",
}


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    if name in __all__:
        return import_module(f"scatlas.{name}")
    msg = f"module 'scatlas' has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return __all__
