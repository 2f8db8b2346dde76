"""Sums of analytic Pearson residuals and of their squares, of one row block on the GPU: the
corrections by nonzero values have exact sums (:mod:`scatlas.kernels.moments.moments_gpu`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy as cp
import numpy as np

from scatlas.arrays import cupy_arrays
from scatlas.kernels.build import cuda
from scatlas.kernels.moments.moments_cpu import Moments
from scatlas.kernels.moments.moments_gpu import moments
from scatlas.kernels.moments.pairs_cpu import local_groups, pair_sum

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scatlas.arrays.cupy_arrays import Block
    from scatlas.kernels.moments.pearson_cpu import PearsonModel


def sums_of_zeros(
    model: PearsonModel, group: int, totals: NDArray[np.float64], n_cells: NDArray[np.int64]
) -> NDArray[np.float64]:
    """As on the CPU: the same bits."""
    genes = cuda.as_float64(model.genes[group])
    out = cp.empty((genes.size, 4))
    run = cuda.kernel("moments/pearson", "sums_of_zeros", genes.dtype)
    numbers = map(np.float64, (model.groups[group], model.clips[group], model.theta))
    cells = cuda.as_float64(totals), cuda.as_float64(n_cells), np.int64(totals.size)
    run(*cuda.grid_of_threads(genes.size), (genes, np.int64(genes.size), *numbers, *cells, out))
    return cp.asnumpy(out)


def sums_of_nonzeros(x: Block, totals: Any, model: PearsonModel, codes: Any = None) -> Moments:
    """As on the CPU; sums of the same terms have no rounding but that of the result, 2**-106."""
    n_rows, n_genes = map(int, x.shape)
    codes = None if codes is None else cp.asnumpy(codes)
    groups, local = local_groups(codes, n_rows)
    kind, types, block = cuda.rows_of(x)
    values = block[0]
    terms = cp.empty((4, *values.shape))
    args = (
        np.int64(n_rows),
        np.int64(n_genes),
        cp.asarray(local.astype(np.int32)),
        cuda.as_float64(totals),
        cuda.as_float64(model.genes[groups]),
        cuda.as_float64(model.groups[groups]),
        cuda.as_float64(model.clips[groups]),
        np.float64(model.theta),
        np.int64(values.size),
    )
    cuda.kernel("moments/pearson", f"differences_{kind}", *types)(
        *cuda.grid_of_warps(n_rows), (*block, *args, terms)
    )
    found = []
    for term in terms:
        of_term = cupy_arrays.csr(term, x.indices, x.indptr, n_genes) if kind == "csr" else term
        found.append(moments(of_term, codes))
    # Of the residuals and of their squares: sum and error of the differences, and of their errors.
    highs, lows = ([part.sums[..., :2] for part in found[i::2]] for i in (0, 1))
    pairs = [
        pair_sum(*np.moveaxis(np.concatenate(two, axis=-1), -1, 0))
        for two in zip(highs, lows, strict=True)
    ]
    sums = np.stack([part for pair in pairs for part in pair], axis=-1)
    return Moments(groups, found[0].n_cells, sums, np.zeros_like(found[0].expressed))
