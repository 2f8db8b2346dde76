"""Helpers of several files of GPU tests."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest


def needs(package: str) -> pytest.MarkDecorator:
    """Skip without the package; with ``SCATLAS_REQUIRE_GPU`` fail instead."""
    missing = find_spec(package) is None and not os.environ.get("SCATLAS_REQUIRE_GPU")
    return pytest.mark.skipif(missing, reason=f"{package} is not installed")


def host_arrays(x: Any) -> list[np.ndarray]:
    """NumPy arrays of a dense or CSR block in host memory."""
    arrays = (x.data, x.indices, x.indptr) if hasattr(x, "indptr") else (x,)
    return [array if isinstance(array, np.ndarray) else array.get() for array in arrays]
