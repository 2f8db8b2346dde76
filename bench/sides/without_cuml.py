"""Import rapids-singlecell without cuML, cuVS and cuDF (1.4 GB), which its QC to PCA does not use.

Names of these packages resolve to classes that raise an error when they are instantiated.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType

_ROOTS = {"cudf", "cugraph", "cuml", "cuvs", "pylibraft"}


class _Missing:
    def __init__(self, *args: object, **kwargs: object) -> None:
        msg = f"{type(self).__name__} is not installed here"
        raise NotImplementedError(msg)


def _nothing(*args: object, **kwargs: object) -> None:
    pass


class _Stub(ModuleType):
    __path__: list[str] = []  # noqa: RUF012 - as in packages
    __version__ = "26.10.0"

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "set_level":  # called on import
            return _nothing
        return type(name, (_Missing,), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, *others: object) -> object:  # noqa: ARG002
        if name.partition(".")[0] in _ROOTS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def install() -> None:
    """Add the stubs after the installed packages."""
    sys.meta_path.append(_Finder())
