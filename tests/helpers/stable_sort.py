"""A stable sort for scanpy, so its choice among equal genes is the same on each machine."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np


def numpy_with_stable_argsort(*, digits: int | None = None) -> ModuleType:
    """NumPy with an ``argsort`` that keeps ties (up to ``digits``) in their order.

    Replace ``np`` of the sorting module by it, not NumPy's function: Numba, if first used
    meanwhile, would keep the replacement as NumPy's function.
    """

    def argsort(a: Any, axis: int = -1, kind: str | None = None, **options: Any) -> np.ndarray:
        if digits is not None and np.asarray(a).dtype.kind == "f":
            a = np.round(a, digits)
        return np.argsort(a, axis=axis, kind="stable", **options)

    changed = ModuleType("numpy")
    vars(changed).update(vars(np), argsort=argsort)
    return changed
