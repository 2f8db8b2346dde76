"""CUDA C kernels, compiled when they are first used; CuPy keeps what it has compiled on disk.

The sources ``<operation>.cu`` stand beside their callers ``<operation>_gpu.py``, templates in the
types of values, indices and row offsets. Set ``CUPY_CACHE_DIR`` to choose where compiled code lies.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import cupy as cp
import numpy as np
import scipy.sparse
from cupyx.scipy import sparse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import DTypeLike

Result = TypeVar("Result")

FOLDER = Path(__file__).parent
OPTIONS = ("--std=c++17",)
THREADS = 256
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
    parts = [f'#line 1 "{name}"\n{(FOLDER / name).read_text()}' for name in ("common.cuh", file)]
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


def csr(data: Any, indices: Any, indptr: Any, n_genes: int) -> sparse.csr_matrix:
    """CuPyX CSR matrix over these very device arrays, of any types: no copy, no check.

    CuPyX itself holds floating-point values and int32 indices alone. Kernels take all: uint8
    counts, uint16 indices, int64 offsets.
    """
    matrix = sparse.csr_matrix((int(indptr.size) - 1, n_genes), dtype=np.float32)
    matrix.data, matrix.indices, matrix.indptr = data, indices, indptr
    return matrix


def empty_like(meta: Any, dtype: DTypeLike) -> Any:
    """Block without cells or genes of the same kind as `meta`."""
    if isinstance(meta, cp.ndarray):
        return cp.empty((0, 0), dtype)
    none = [cp.empty(0, dtype), cp.empty(0, np.int32), cp.zeros(1, np.int32)]
    return csr(*none, 0)


def join(parts: Sequence[Any]) -> Any:
    """One block of blocks whose cells follow each other; also arrays of one dimension."""
    if isinstance(parts[0], cp.ndarray):
        return cp.concatenate(parts)
    starts = np.cumsum([0, *(int(part.indptr[-1]) for part in parts)])
    offsets = [part.indptr[1:] + start for part, start in zip(parts, starts[:-1], strict=True)]
    return csr(
        cp.concatenate([part.data for part in parts]),
        cp.concatenate([part.indices for part in parts]),
        cp.concatenate([cp.zeros(1, np.int64), *offsets]),
        parts[0].shape[1],
    )


def on_host(x: Any) -> Any:
    """Block or array in the main memory, of the same types."""
    if isinstance(x, cp.ndarray):
        return x.get()
    if x.format != "csr":
        return x.get()
    matrix = scipy.sparse.csr_matrix(x.shape, dtype=x.data.dtype)
    matrix.data, matrix.indices, matrix.indptr = x.data.get(), x.indices.get(), x.indptr.get()
    return matrix


def on_gpu(x: Any) -> Any:
    """A dense or CSR block, or an array, in the memory of the current GPU, of the same types.

    It is complete on return: `x` may change.
    """
    if not scipy.sparse.issparse(x):
        return _copied(x)
    return csr(_copied(x.data), _copied(x.indices), _copied(x.indptr), x.shape[1])


def _copied(x: np.ndarray) -> cp.ndarray:
    copy = cp.empty(x.shape, x.dtype)
    copy.set(np.ascontiguousarray(x))
    return copy


def free_memory() -> None:
    """Give memory that nothing uses back, so that other threads and libraries can have it."""
    cp.get_default_memory_pool().free_all_blocks()


# Streams that no thread uses at present, by device. CuPy's pool keeps memory for each stream, so
# that streams of one pass alone would keep it for ever.
_idle: dict[int, list[cp.cuda.Stream]] = {}


@contextmanager
def own_stream(device: int) -> Iterator[None]:
    """Work on a stream that no other thread uses, and wait for it at the end."""
    with cp.cuda.Device(device):
        idle = _idle.setdefault(device, [])
        try:
            stream = idle.pop()
        except IndexError:
            stream = cp.cuda.Stream(non_blocking=True)
        try:
            with stream:
                yield
        finally:
            stream.synchronize()
            idle.append(stream)


def on_own_stream(work: Callable[..., Result]) -> Callable[..., Result]:
    """`work` for other threads: on this thread's device, each call on a stream of its own.

    What is made is complete when the call returns. What this thread has begun is waited for here.
    """
    device = cp.cuda.Device()
    device.synchronize()

    @wraps(work)
    def call(*args: Any) -> Result:
        with own_stream(device.id):
            return work(*args)

    return call


def settle() -> None:
    """Wait for this thread's kernels, before memory that they read goes back to other streams."""
    cp.cuda.get_current_stream().synchronize()
