"""Tests that need a GPU; without one they are skipped with the reason.

Run them in one process, without ``-n``: one of them fills the GPU's memory. On a machine with a GPU
set ``SCATLAS_REQUIRE_GPU=1``: then a test that cannot run fails instead of being skipped.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import scipy.sparse as sp

if TYPE_CHECKING:
    from collections.abc import Callable


@cache
def _why_not() -> str | None:
    if find_spec("cupy") is None:
        return "CuPy is not installed"
    import cupy  # a package that does not load is an error

    try:
        cupy.zeros(1).get()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"there is no usable GPU: {error}"
    return None


if os.environ.get("SCATLAS_REQUIRE_GPU") and (why := _why_not()):
    msg = f"SCATLAS_REQUIRE_GPU is set, but {why}"
    raise pytest.UsageError(msg)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not any("tests/gpu/" in item.path.as_posix() for item in items):
        return
    why = _why_not()
    for item in items:
        if why and "tests/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def gpu_block() -> Callable[..., Any]:
    """Function that copies a dense or CSR block to the GPU, optionally with other types."""

    def copied(x: Any, data: Any = None, indices: Any = None, indptr: Any = None) -> Any:
        import cupy as cp

        from scatlas.arrays import cupy_arrays

        if not sp.issparse(x):
            return cp.asarray(x if data is None else np.asarray(x).astype(data))
        return cupy_arrays.csr(
            cp.asarray(x.data if data is None else x.data.astype(data)),
            cp.asarray(x.indices if indices is None else x.indices.astype(indices)),
            cp.asarray(x.indptr if indptr is None else x.indptr.astype(indptr)),
            x.shape[1],
        )

    return copied
