"""Linear regression of all genes on covariates of the cells, of one row block on the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy as cp
import numpy as np
from cupyx.scipy import sparse

from scatlas.arrays.cupy_arrays import csr
from scatlas.kernels.build import cuda
from scatlas.kernels.moments.moments_gpu import exact_moments

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scatlas.arrays.cupy_arrays import Block


def weighted_sums(x: Block, weights: Any) -> NDArray[np.float64]:
    """As on the CPU; the sums of the products have no rounding but that of the result, 2**-106."""
    # As float64, whose products are not rounded further.
    if sparse.issparse(x):
        data = x.data.astype(cp.float64, copy=False)
        x = csr(data, x.indices, x.indptr, x.shape[1])
    else:
        x = x.astype(cp.float64, copy=False)
    weights = cuda.as_float64(weights)
    sums = np.empty((2, weights.shape[1], x.shape[1]))
    for k in range(weights.shape[1]):
        factors = cp.ascontiguousarray(weights[:, k])
        sums[:, k] = exact_moments(x, None, "scaled", factors).sums[0, :, :2].T
    return sums


def residuals(
    x: Block, codes: Any, base: Any, weights: Any, slopes: Any, *, dtype: Any
) -> cp.ndarray:
    """As on the CPU: the same bits."""
    n_rows, n_genes = map(int, x.shape)
    out = cp.empty((n_rows, n_genes), dtype)
    weights = cuda.as_float64(weights)
    fit = (
        cp.ascontiguousarray(cp.asarray(codes, dtype=cp.int64)),
        cuda.as_float64(base),
        weights,
        cuda.as_float64(slopes),
        np.int64(weights.shape[1]),
    )
    sizes = np.int64(n_rows), np.int64(n_genes)
    kind, types, block = cuda.rows_of(x)
    run = cuda.kernel("linalg/regress", f"residuals_{kind}", *types, out.dtype)
    run(*cuda.grid_of_warps(n_rows), (*block, *sizes, *fit, out))
    return out
