"""Types of arrays and row blocks, for signatures."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, TypeGuard

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]
UInt64Array: TypeAlias = NDArray[np.uint64]
Float32Array: TypeAlias = NDArray[np.float32]
Floats: TypeAlias = NDArray[np.float64]
# CuPy has no type annotations: an array or a sparse matrix on a GPU, or a null pointer.
GpuArray: TypeAlias = Any


class SparseBlock(Protocol):
    """What kernels use of SciPy's sparse matrices and arrays, which have no type annotations."""

    data: Array
    indices: Array
    indptr: Array
    shape: tuple[int, int]
    format: str

    def __init__(self, values: Any, *, shape: tuple[int, int]) -> None: ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""


# A row block [cells x genes] in the main memory.
Block: TypeAlias = Array | SparseBlock


def is_sparse(x: Block) -> TypeGuard[SparseBlock]:
    """Whether a block in the main memory is a sparse matrix."""
    return scipy.sparse.issparse(x)


def row_offsets(x: SparseBlock) -> Ints:
    """``indptr`` as int64, a copy only if it is not, so that kernels have one type of offsets."""
    return x.indptr.astype(np.int64, copy=False)
