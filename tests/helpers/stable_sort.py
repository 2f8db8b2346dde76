"""scanpy's choice among equal genes, made the same on each machine."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np


def numpy_with_stable_argsort(*, digits: int | None = None) -> ModuleType:
    """NumPy, but for an ``argsort`` that keeps ties (to so many digits) in their order.

    To be put in the place of ``np`` of the module that sorts: Numba, when it is used for the first
    time meanwhile, would take what stands in NumPy itself for NumPy's function for good.
    """

    def argsort(a: Any, axis: int = -1, kind: str | None = None, **options: Any) -> np.ndarray:
        if digits is not None and np.asarray(a).dtype.kind == "f":
            a = np.round(a, digits)
        return np.argsort(a, axis=axis, kind="stable", **options)

    changed = ModuleType("numpy")
    vars(changed).update(vars(np), argsort=argsort)
    return changed
