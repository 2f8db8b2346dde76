"""CUDA C kernels, compiled when they are first used; CuPy keeps what it has compiled on disk.

The sources ``<operation>.cu`` stand beside their callers ``<operation>_gpu.py``, templates in the
types of values, indices and row offsets. They are named by folder and operation: ``linalg/gram``.
Set ``CUPY_CACHE_DIR`` to choose where compiled code lies.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cupy as cp
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import DTypeLike

FOLDER = Path(__file__).parents[1]
OPTIONS = ("--std=c++17",)
THREADS = 256
NULL = np.uint64(0)  # a pointer to nothing: what is not given, or not wanted
# C names of the types that a template can be made for.
TYPES = {
    np.dtype(numpy): c
    for numpy, c in [
        ("bool", "bool"),
        ("int8", "int8"),
        ("uint8", "uint8"),
        ("int16", "short"),
        ("uint16", "uint16"),
        ("int32", "int"),
        ("uint32", "uint32"),
        ("int64", "int64"),
        ("uint64", "uint64"),
        ("float32", "float"),
        ("float64", "double"),
    ]
}


def source(file: str) -> str:
    """Text that is compiled for ``<file>.cu``."""
    # Not by #include: CuPy would not see that the header has changed and use its old code.
    parts = [
        f'#line 1 "{name}"\n{(FOLDER / name).read_text()}' for name in ("build/common.cuh", file)
    ]
    return "\n".join(parts)


def kernel(file: str, name: str, *dtypes: DTypeLike) -> Callable[..., None]:
    """The kernel ``name<types...>`` of ``<file>.cu`` on the current device.

    It is called as ``kernel(file, name, ...)(grid, block, args)``, each a tuple, and runs on the
    current stream. Sizes must be passed as NumPy scalars of the exact type (``np.int64(n)``).
    """
    types = ", ".join(TYPES[np.dtype(dtype)] for dtype in dtypes)
    return _compiled(f"{file}.cu", f"{name}<{types}>" if dtypes else name, cp.cuda.Device().id)


@cache
def _compiled(file: str, expression: str, device: int) -> Callable[..., None]:  # noqa: ARG001
    module = cp.RawModule(code=source(file), options=OPTIONS, name_expressions=[expression])
    return module.get_function(expression)


def grid_of_warps(n_rows: int) -> tuple[tuple[int], tuple[int]]:
    """Grid and block with a warp a row, up to what fills a GPU; kernels stride over the rest."""
    per_block = THREADS // 32
    return (max(1, min(-(-n_rows // per_block), 132 * 64)),), (THREADS,)


def grid_of_threads(n: int) -> tuple[tuple[int], tuple[int]]:
    """Grid and block with a thread an item, up to what fills a GPU; kernels stride on."""
    return (max(1, min(-(-n // THREADS), 132 * 64)),), (THREADS,)


def steps(x: cp.ndarray) -> tuple[np.int64, np.int64]:
    """Distance in memory, in values, from row to row and from column to column."""
    return tuple(np.int64(stride // x.itemsize) for stride in x.strides)


def vector(x: Any) -> cp.ndarray:
    """`x`, NumPy or CuPy, as contiguous float64 on the device."""
    return cp.ascontiguousarray(cp.asarray(x, dtype=cp.float64))


def offsets(x: Any) -> cp.ndarray:
    """Row offsets of a CSR block as kernels take them: int64, a copy only if they are not."""
    return x.indptr.astype(cp.int64, copy=False)
