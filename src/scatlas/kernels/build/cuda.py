"""CUDA C kernels, compiled when they are first used; CuPy keeps them in ``CUPY_CACHE_DIR``.

Kernels are templates in the types of values, indices and row offsets. A source ``<operation>.cu``
is beside its caller ``<operation>_gpu.py`` and is named by folder and operation: ``linalg/gram``.
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

    from scatlas.arrays.array_types import GpuArray

FOLDER = Path(__file__).parents[1]
OPTIONS = ("--std=c++17",)
THREADS = 256
# Null pointer, for optional arguments that are not given.
NULL: GpuArray = np.uint64(0)
# C names of the types of template arguments.
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
    # Not by #include: CuPy would not notice a change of the header and use outdated code.
    parts = [
        f'#line 1 "{name}"\n{(FOLDER / name).read_text()}' for name in ("build/common.cuh", file)
    ]
    return "\n".join(parts)


def kernel(file: str, name: str, *arguments: DTypeLike | int) -> Any:
    """The kernel ``name<arguments...>``, types or numbers, of ``<file>.cu`` on the current device
    and stream; call it with the tuples ``(grid, block, args)``, in which sizes are NumPy scalars of
    the exact type (``np.int64(n)``).
    """
    names = (str(x) if isinstance(x, int) else TYPES[np.dtype(x)] for x in arguments)
    expression = f"{name}<{', '.join(names)}>" if arguments else name
    return _compiled(f"{file}.cu", expression, cp.cuda.Device().id)


@cache
def _compiled(file: str, expression: str, device: int) -> Callable[..., None]:  # noqa: ARG001
    module = cp.RawModule(code=source(file), options=OPTIONS, name_expressions=[expression])
    return module.get_function(expression)


def grid_of_warps(n_rows: int) -> tuple[tuple[int], tuple[int]]:
    """Grid and block with a warp per row, at most as many as fill a GPU; kernels loop over rows."""
    per_block = THREADS // 32
    return (max(1, min(-(-n_rows // per_block), 132 * 64)),), (THREADS,)


def grid_of_threads(n: int) -> tuple[tuple[int], tuple[int]]:
    """Grid and block with a thread per item, at most as many as fill a GPU; kernels loop."""
    return (max(1, min(-(-n // THREADS), 132 * 64)),), (THREADS,)


def strides(x: GpuArray) -> tuple[np.int64, np.int64]:
    """Distance in memory between rows and between columns, as numbers of values."""
    row, column = (np.int64(stride // x.itemsize) for stride in x.strides)
    return row, column


def rows_of(x: GpuArray) -> tuple[str, tuple[Any, ...], tuple[Any, ...]]:
    """``csr`` or ``dense``, the types of a kernel of such rows, and their arrays; bool as uint8."""
    if hasattr(x, "indptr"):
        values = x.data.view(cp.uint8) if x.data.dtype == bool else x.data
        return "csr", (values.dtype, x.indices.dtype), (values, x.indices, row_offsets(x))
    values = x.view(cp.uint8) if x.dtype == bool else x
    return "dense", (values.dtype,), (values, *strides(values))


def as_float64(x: Any) -> GpuArray:
    """NumPy or CuPy array as contiguous float64 on the device."""
    return cp.ascontiguousarray(cp.asarray(x, dtype=cp.float64))


def row_offsets(x: GpuArray) -> GpuArray:
    """``indptr`` of a CSR block as int64, the type of all kernels; a copy only if it is not."""
    return x.indptr.astype(cp.int64, copy=False)
