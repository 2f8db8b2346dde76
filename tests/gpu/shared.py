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


def skip_without(n_gpus: int) -> None:
    """Skip on a machine with fewer GPUs."""
    from cupy.cuda import runtime

    if n_gpus > (there := runtime.getDeviceCount()):
        pytest.skip(f"there {'is' if there == 1 else 'are'} {there} of {n_gpus} GPUs")


def host_arrays(x: Any) -> list[np.ndarray]:
    """NumPy arrays of a dense or CSR block in host memory."""
    arrays = (x.data, x.indices, x.indptr) if hasattr(x, "indptr") else (x,)
    return [array if isinstance(array, np.ndarray) else array.get() for array in arrays]
