"""Kind of an array: on the CPU or on a GPU, in memory or lazy, dense or sparse."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


@dataclass(frozen=True)
class ArrayKind:
    """Kind of an array or a block; of a Dask array (``lazy``), the kind of its blocks."""

    gpu: bool
    lazy: bool
    sparse: bool

    @property
    def arrays(self) -> ModuleType:
        """Module that makes and joins such arrays: ``numpy_arrays`` or ``cupy_arrays``."""
        return import_module(f"scatlas.arrays.{'cupy' if self.gpu else 'numpy'}_arrays")


def kind_of(x: object) -> ArrayKind:
    """Kind of any array, found without importing Dask or CuPy."""
    lazy = is_dask(x)
    block = getattr(x, "_meta", x)
    gpu = type(block).__module__.partition(".")[0] in ("cupy", "cupyx")
    return ArrayKind(gpu, lazy, hasattr(block, "tocsr"))


def is_dask(x: object) -> bool:
    """Whether ``x`` is a Dask array, or anndata's subclass of it in a view of an AnnData."""
    return _is_dask_type(type(x))  # type: ignore[arg-type]  # mypy takes classes as not hashable


@cache
def _is_dask_type(kind: type) -> bool:
    return any(base.__module__.startswith("dask.array") for base in kind.__mro__)


def is_gpu(x: object) -> bool:
    """Whether ``x`` is a CuPy array, a CuPyX sparse matrix, or a Dask array of these."""
    return kind_of(x).gpu
