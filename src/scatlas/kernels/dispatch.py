"""Dispatch of an operation to its kernels: ``<operation>_cpu`` for NumPy and SciPy,
``<operation>_gpu`` with the same signatures for CuPy. The block's type decides, never a setting.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from scatlas.arrays.kinds import is_gpu

if TYPE_CHECKING:
    from types import ModuleType


def kernels_for(operation: str, x: object) -> ModuleType:
    """Module of an operation, such as ``linalg.gram``, for a block ``x`` or the blocks of ``x``."""
    return import_module(f"scatlas.kernels.{operation}_{'gpu' if is_gpu(x) else 'cpu'}")
