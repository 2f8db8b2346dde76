"""What several files of tests on GPUs share."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest


def needs(package: str, *, optional: bool = False) -> pytest.MarkDecorator:
    """Skip where the package is missing, which with ``SCATLAS_REQUIRE_GPU`` is an error instead.

    What is optional (of the extras ``gpu-embed-*``) may be missing where a GPU is required, too.
    """
    required = os.environ.get("SCATLAS_REQUIRE_GPU") and not optional
    missing = find_spec(package) is None and not required
    return pytest.mark.skipif(missing, reason=f"{package} is not installed")


def parts(x: Any) -> list[np.ndarray]:
    """Arrays of a dense or CSR block, in the main memory."""
    arrays = (x.data, x.indices, x.indptr) if hasattr(x, "indptr") else (x,)
    return [array if isinstance(array, np.ndarray) else array.get() for array in arrays]
