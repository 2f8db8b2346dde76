"""Moments of the values above a bound per gene and group, of one block on the GPU.

The values above the bound, which are few, are copied to a CSR block. The exact sums of
:mod:`scatlas.kernels.moments.moments_gpu` of that block do not depend on the schedule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy as cp
import numpy as np
from cupyx.scipy import sparse

from scatlas.arrays import cupy_arrays
from scatlas.kernels.build import cuda
from scatlas.kernels.moments.moments_cpu import local_groups
from scatlas.kernels.moments.moments_gpu import moments

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scatlas.kernels.moments.moments_cpu import Moments


def moments_above(
    x: cp.ndarray | sparse.csr_matrix,
    bounds: NDArray[np.float64],
    codes: Any = None,
) -> Moments:
    """As on the CPU; the moments of counts have the same bits."""
    codes = None if codes is None else cp.asnumpy(codes)
    return moments(_values_above(x, bounds, codes), codes)


def _values_above(
    x: cp.ndarray | sparse.csr_matrix,
    bounds: NDArray[np.float64],
    codes: NDArray[np.integer] | None,
) -> sparse.csr_matrix:
    """CSR block ``[n, n_genes]`` of the values above their bounds; other values are left out."""
    n_rows, n_genes = map(int, x.shape)
    groups, local = local_groups(codes, n_rows)
    types: tuple[Any, ...]
    values: tuple[Any, ...]
    if sparse.issparse(x):
        kind, types = "csr", (x.data.dtype, x.indices.dtype)
        values = x.data, x.indices, cuda.row_offsets(x)
    else:
        kind, types = "dense", (x.dtype,)
        values = x, *cuda.strides(x)
    args = (
        *values,
        np.int64(n_rows),
        np.int64(n_genes),
        cp.asarray(local.astype(np.int32)),
        cuda.as_float64(bounds[groups]),
    )
    grid, block = cuda.grid_of_warps(n_rows)
    indptr = cp.zeros(n_rows + 1, dtype=np.int64)
    cuda.kernel("moments/clipped_moments", f"count_above_{kind}", *types)(
        grid, block, (*args, indptr)
    )
    indptr = cp.cumsum(indptr)
    n_values = int(indptr[-1].get())
    data = cp.empty(n_values, dtype=x.dtype)
    indices = cp.empty(n_values, dtype=np.int32)
    cuda.kernel("moments/clipped_moments", f"take_above_{kind}", *types)(
        grid, block, (*args, indptr, data, indices)
    )
    return cupy_arrays.csr(data, indices, indptr, n_genes)


def holds_counts(x: cp.ndarray | sparse.csr_matrix) -> bool:
    values = x.data if sparse.issparse(x) else x
    if values.dtype.kind in "ub" or values.size == 0:
        return True
    if not bool((values >= 0).all()):
        return False
    return values.dtype.kind == "i" or bool((cp.floor(values) == values).all())
