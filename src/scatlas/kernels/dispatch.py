"""Which kernels work on a block: the one place that decides between CPU and GPU.

An operation has two modules with the same signatures, ``<operation>_cpu`` for NumPy and SciPy and
``<operation>_gpu`` for CuPy and CuPyX. The block's type decides, never a setting.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


def is_gpu(x: object) -> bool:
    """Whether ``x`` is a CuPy array, a CuPyX sparse matrix, or a Dask array of these.

    Nothing is imported for it.
    """
    meta = getattr(x, "_meta", x)
    return type(meta).__module__.partition(".")[0] in ("cupy", "cupyx")


def kernels_for(operation: str, x: object) -> ModuleType:
    """Module of an operation, such as ``linalg.gram``, for a block ``x`` or the blocks of ``x``."""
    return import_module(f"scatlas.kernels.{operation}_{'gpu' if is_gpu(x) else 'cpu'}")
