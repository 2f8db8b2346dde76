"""Row blocks on a GPU: construction, concatenation, copies, and streams of threads."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import cupy as cp
import numpy as np
import scipy.sparse
from cupyx.scipy import sparse

from scatlas.arrays import pinned_copies
from scatlas.arrays.array_types import GpuArray
from scatlas.errors import ScatlasError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import DTypeLike

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

# A row block [cells x genes] on a GPU: cupy.ndarray or CSR of CuPyX.
Block: TypeAlias = GpuArray

# Values per block of an array in GPU memory: a GPU needs this many to be busy. With temporary
# arrays of kernels they take about 2 GB.
VALUES_PER_BLOCK = LEAST_VALUES_PER_BLOCK = 64_000_000

empty = cp.empty


def csr(data: Any, indices: Any, indptr: Any, n_genes: int) -> sparse.csr_matrix:
    """CuPyX CSR matrix of these device arrays, not copied or checked: the constructors support only
    floats and int32 indices, kernels also uint8 counts, uint16 indices and int64 offsets.
    """
    matrix = sparse.csr_matrix((int(indptr.size) - 1, n_genes), dtype=np.float32)
    matrix.data, matrix.indices, matrix.indptr = data, indices, indptr
    return matrix


def empty_like(meta: Any, dtype: DTypeLike) -> Any:
    """Block without cells or genes of the same kind as ``meta``, CSR if that is sparse."""
    if isinstance(meta, cp.ndarray):
        return cp.empty((0, 0), dtype)
    return csr(cp.empty(0, dtype), cp.empty(0, np.int32), cp.zeros(1, np.int32), 0)


def as_rows(x: Any) -> Any:
    """``x`` as a matrix whose rows can be taken without a copy: CSR or dense."""
    return x.tocsr() if sparse.issparse(x) and x.format != "csr" else x


def join(parts: Sequence[Any]) -> Any:
    """Concatenate the cells of blocks, or arrays of one dimension."""
    if isinstance(parts[0], cp.ndarray):
        return cp.concatenate(parts)
    starts = np.cumsum([0, *(int(part.indptr[-1]) for part in parts)])
    offsets = [part.indptr[1:] + start for part, start in zip(parts, starts[:-1], strict=True)]
    indices = cp.concatenate([part.indices for part in parts])
    index = index_dtype(int(starts[-1]))
    return csr(
        cp.concatenate([part.data for part in parts]),
        # uint16 genes are those of an exact matrix, which CuPyX cannot use in any case.
        indices.astype(index, copy=False) if indices.itemsize > 2 else indices,
        cp.concatenate([cp.zeros(1, np.int64), *offsets]).astype(index, copy=False),
        parts[0].shape[1],
    )


def index_dtype(n_values: int) -> type:
    """Type of genes and of offsets: CuPyX needs one for both."""
    return np.int32 if n_values <= np.iinfo(np.int32).max else np.int64


def on_host(x: Any) -> Any:
    """Copy of a block or array in the main memory, of the same types."""
    if isinstance(x, cp.ndarray):
        return pinned_copies.to_host(x)
    if x.format != "csr":
        return x.get()
    matrix = scipy.sparse.csr_matrix(x.shape, dtype=x.data.dtype)
    matrix.data, matrix.indices, matrix.indptr = map(
        pinned_copies.to_host, (x.data, x.indices, x.indptr)
    )
    return matrix


def on_gpu(x: Any) -> Any:
    """Copy of a dense or CSR block, or an array, on the current GPU; complete on return."""
    if not scipy.sparse.issparse(x):
        return pinned_copies.to_gpu(x)
    data, indices, indptr = map(pinned_copies.to_gpu, (x.data, x.indices, x.indptr))
    return csr(data, indices, indptr, x.shape[1])


def check_halves(shape: tuple[int, int], error: MemoryError) -> None:
    """Log that a block does not fit GPU memory; refuse one of one cell, which has no halves."""
    n_cells, n_genes = shape
    if n_cells < 2:
        raise ScatlasError(
            f"the GPU's memory is too small for one cell of {n_genes:,} genes ({error}): free it, "
            "or use the CPU"
        ) from error
    logger.warning("the GPU's memory is full: %s cells are processed in halves", f"{n_cells:,}")


def free_memory() -> None:
    """Free unused memory of CuPy's pool, for other threads and libraries."""
    cp.get_default_memory_pool().free_all_blocks()


# Idle streams by device, for reuse: CuPy's pool keeps memory per stream, and would never free that
# of discarded streams.
_idle: dict[int, list[cp.cuda.Stream]] = {}


@contextmanager
def own_stream(device: int) -> Iterator[None]:
    """Context with a stream that no other thread uses; waits for the stream at the end."""
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
    """`work` for other threads: on this thread's device, after the kernels that it started, with a
    separate stream per call, at whose return results are complete.
    """
    device = cp.cuda.Device()
    device.synchronize()

    @wraps(work)
    def call(*args: Any) -> Result:
        with own_stream(device.id):
            return work(*args)

    return call


def wait_for_kernels() -> None:
    """Wait for this thread's kernels, before other streams reuse memory that they read."""
    cp.cuda.get_current_stream().synchronize()


def total_memory() -> int:
    """Bytes of memory of the current GPU, free or used."""
    return int(cp.cuda.runtime.memGetInfo()[1])
