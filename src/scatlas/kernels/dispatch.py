"""Dispatch of an operation to its CPU or GPU kernels.

An operation has two modules with the same signatures, ``<operation>_cpu`` for NumPy and SciPy and
``<operation>_gpu`` for CuPy and CuPyX. The block's type decides, never a setting.
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
