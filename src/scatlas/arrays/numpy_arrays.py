"""Row blocks in the main memory; ``cupy_arrays`` has the same functions for a GPU."""

from __future__ import annotations

import math
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import DTypeLike, NDArray

# Most values per block of an array in memory. Smaller arrays are cut into more blocks for several
# threads, but not into blocks of less than a few ms of work.
VALUES_PER_BLOCK = 4_000_000
LEAST_VALUES_PER_BLOCK = 1_000_000

# SciPy's constructor takes 60 us, with the interpreter's lock, and a block passes it five times on
# its way; a copy of a matrix takes 9 us.
_EMPTY = sp.csr_matrix((0, 0))

_LINE = 64  # bytes of a cache line

empty = np.empty


def aligned_zeros(shape: tuple[int, ...]) -> NDArray[np.float64]:
    """float64 zeros that start at a cache line: NumPy's start 16 bytes after one, which makes
    kernels that access groups of four numbers in random order a third slower.
    """
    size = math.prod(shape)
    raw = np.zeros(size + _LINE // 8)
    skip = -raw.ctypes.data % _LINE // 8
    return raw[skip : skip + size].reshape(shape)


def csr(
    data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], n_genes: int
) -> sp.csr_matrix:
    """CSR matrix that shares these arrays: no copy, no wider indices, no check."""
    matrix = copy(_EMPTY)
    matrix._shape = (indptr.size - 1, n_genes)
    matrix.data, matrix.indices, matrix.indptr = data, indices, indptr
    return matrix


def empty_like(meta: Any, dtype: DTypeLike) -> Any:
    """Block without cells or genes of the same kind as ``meta``, CSR if that is sparse."""
    return as_rows(meta[:0, :0]).astype(dtype)


def as_rows(x: Any) -> Any:
    """``x`` as a matrix whose rows can be taken without a copy: CSR or ``numpy.ndarray``."""
    if sp.issparse(x):
        return x if x.format == "csr" else x.tocsr()
    return np.asarray(x)


def join(parts: Sequence[Any]) -> Any:
    """Concatenate the cells of blocks, or arrays of one dimension."""
    return sp.vstack(parts, format="csr") if sp.issparse(parts[0]) else np.concatenate(parts)


def on_host(x: Any) -> Any:
    """The array itself: it is in the main memory."""
    return x


def on_own_stream(work: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself: the CPU has no streams."""
    return work


def wait_for_kernels() -> None:
    """Do nothing: kernels of the CPU are complete when they return."""
