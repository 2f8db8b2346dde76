"""Per-gene sums, sums of squares and expressed cells of one row block on the GPU.

The sums are exact and rounded once, at the end (Kulisch, Miranker, SIAM Review 28, 1986). One sweep
finds powers of two that bound the values; another adds their digits to 64-bit integers, of which
none overflows: the order of blocks and threads changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import cupy as cp
import numpy as np

from scatlas.arrays import cupy_arrays
from scatlas.kernels.build import cuda
from scatlas.kernels.moments.moments_cpu import Moments, group_sizes
from scatlas.kernels.moments.pairs_cpu import local_groups

if TYPE_CHECKING:
    from cupyx.scipy import sparse
    from numpy.typing import NDArray


def moments(
    x: cp.ndarray | sparse.csr_matrix,
    codes: Any = None,
    *,
    expm1: bool = False,
    log_base: float | None = None,
) -> Moments:
    """As on the CPU; the sums have no rounding but that of the result, 2**-106. ``expm1`` of
    float32 values is rounded once, which NumPy's may miss by a unit in the last place.
    """
    factors = cp.full(1, 1.0 if log_base is None or not expm1 else float(log_base))
    return exact_moments(x, codes, "expm1" if expm1 else "plain", factors)


def exact_moments(
    x: cp.ndarray | sparse.csr_matrix,
    codes: Any,
    value: Literal["plain", "expm1", "scaled", "logged"],
    factors: cp.ndarray,
) -> Moments:
    """Moments of ``v`` ("plain"), ``expm1(v * factor)``, ``v * factor`` ("scaled") or
    ``log1p(v * factor)`` ("logged"); one factor per row, or one in all, on the GPU.
    """
    n_rows, n_genes = map(int, x.shape)
    groups, local = local_groups(None if codes is None else cp.asnumpy(codes), n_rows)
    where = (
        cp.asarray(local.astype(np.int32)),
        factors,
        np.int64(factors.size > 1),
        np.int64(n_rows),
    )
    kind, types, rows = cuda.rows_of(x)
    if kind == "csr":
        values, genes, offsets = rows
        bounded, added = (values, offsets, *where), (values, offsets, genes, *where)
    else:
        bounded, added = (*rows, np.int64(n_genes), *where), (*rows, *where)
    grid, block = cuda.grid_of_warps(n_rows)

    bounds = cp.asarray(np.array([2**30, -(2**30)], dtype=np.int32))
    cuda.kernel("moments/moments", f"bounds_{value}_{kind}", types[0])(
        grid, block, (*bounded, bounds)
    )
    frame = _frame(cp.asnumpy(bounds), n_rows)
    _, _, n_sum, n_square = frame
    shape = groups.size, n_genes
    limbs = cp.zeros((*shape, int(n_sum + 1 + n_square)), dtype=np.uint64)
    cuda.kernel("moments/moments", f"add_{value}_{kind}", *types)(
        grid, block, (*added, np.int64(n_genes), *frame, limbs)
    )
    sums = cp.empty((*shape, 4), dtype=np.float64)
    expressed = cp.empty(shape, dtype=np.int64)
    n = groups.size * n_genes
    grid, block = cuda.grid_of_threads(n)
    cuda.kernel("moments/moments", "close_sums", expressed.dtype)(
        grid, block, (limbs, np.int64(n), *frame, sums, expressed)
    )
    sizes = group_sizes(local, groups.size)
    return Moments(groups, sizes, cp.asnumpy(sums), cp.asnumpy(expressed))


def moments_above(
    x: cp.ndarray | sparse.csr_matrix,
    bounds: NDArray[np.float64],
    codes: Any = None,
) -> Moments:
    """As on the CPU; the moments of counts have the same bits."""
    codes = None if codes is None else cp.asnumpy(codes)
    n_rows, n_genes = map(int, x.shape)
    groups, local = local_groups(codes, n_rows)
    kind, types, block = cuda.rows_of(x)
    args = (
        *block,
        np.int64(n_rows),
        np.int64(n_genes),
        cp.asarray(local.astype(np.int32)),
        cuda.as_float64(bounds[groups]),
    )
    warps = cuda.grid_of_warps(n_rows)
    indptr = cp.zeros(n_rows + 1, dtype=np.int64)
    cuda.kernel("moments/clipped_moments", f"count_above_{kind}", *types)(*warps, (*args, indptr))
    indptr = cp.cumsum(indptr)
    n_values = int(indptr[-1].get())
    data = cp.empty(n_values, dtype=x.dtype)
    indices = cp.empty(n_values, dtype=np.int32)
    take = cuda.kernel("moments/clipped_moments", f"take_above_{kind}", *types)
    take(*warps, (*args, indptr, data, indices))
    return moments(cupy_arrays.csr(data, indices, indptr, n_genes), codes)


def _frame(bounds: NDArray[np.int32], n_rows: int) -> tuple[np.int32, np.int32, np.int32, np.int32]:
    """Lowest bit of all values, bits per digit, digits per value and per square, from two
    exponents: of a power of two that divides all values, and of one above them.
    """
    bottom, top = (int(bound) for bound in bounds)
    if top < bottom:  # no value but zeros
        bottom, top = 0, 1
    width = 63 - n_rows.bit_length()
    n_sum, n_square = -(-(top - bottom) // width), -(-2 * (top - bottom) // width)
    # Limbs of a gene fill whole sectors of 32 bytes, which are added to in one go.
    n_square += -(n_sum + 1 + n_square) % 4
    return np.int32(bottom), np.int32(width), np.int32(n_sum), np.int32(n_square)
