"""Loss and gradient of multinomial logistic regression, of one row block on the GPU: the same in
every run and for any blocks, per cell unlike the CPU's in the last bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import cupy as cp
import numpy as np

from scatlas.kernels.build import cuda
from scatlas.kernels.ranking.logreg_cpu import LogisticModel, LossAndGradient, exact_sum

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scatlas.arrays.cupy_arrays import Block

# Thread blocks at most; each warp has scratch memory for the scores of a row.
_BLOCKS = 132 * 8


def max_abs_per_gene(x: Block, codes: NDArray[np.int64]) -> NDArray[np.float64]:
    """As on the CPU; the result is in host memory."""
    kind, types, block = cuda.rows_of(x)
    out = cp.zeros(int(x.shape[1]), cp.float64)
    n_genes = () if kind == "csr" else (np.int64(x.shape[1]),)
    args = *block, *n_genes, np.int64(x.shape[0]), cp.asarray(codes.astype(np.int32)), out
    cuda.kernel("ranking/logreg", f"max_abs_{kind}", *types)(
        *cuda.grid_of_warps(int(x.shape[0])), args
    )
    return out.get()


def loss_and_gradient(x: Block, codes: NDArray[np.int64], model: LogisticModel) -> LossAndGradient:
    """As on the CPU; the gradient stays on the GPU."""
    kind, types, block = cuda.rows_of(x)
    n_rows, n_columns = int(x.shape[0]), model.coef.shape[1]
    per_block = cuda.THREADS // 32
    n_blocks = max(1, min(-(-n_rows // per_block), _BLOCKS))
    gradient = cp.zeros(model.coef.shape, cp.int64)
    losses = cp.zeros(n_rows, cp.float64)
    width = min(32, 1 << (n_columns - 1).bit_length())
    args = (
        *(*block, np.int64(n_rows), np.int64(x.shape[1]), cp.asarray(codes.astype(np.int32))),
        *(np.int32(n_columns), np.int32(width)),
        *map(cuda.as_float64, (model.coef, model.scales, model.weights)),
        *(cp.empty((n_blocks * per_block, n_columns), cp.float64), gradient, losses),
    )
    run = cuda.kernel("ranking/logreg", f"evaluate_{kind}", *types)
    run((n_blocks,), (cuda.THREADS,), args)
    return LossAndGradient(gradient, *exact_sum(losses.get()))


def class_scores(x: Block, coef: NDArray[np.float64]) -> NDArray[np.float64]:
    """As on the CPU; the result is in host memory."""
    kind, types, block = cuda.rows_of(x)
    n_rows, n_columns = int(x.shape[0]), coef.shape[1]
    scores = cp.zeros((n_rows, n_columns), cp.float64)
    width = min(32, 1 << (n_columns - 1).bit_length())
    args = (
        *(*block, np.int64(n_rows), np.int64(x.shape[1]), np.int32(n_columns), np.int32(width)),
        *(cuda.as_float64(coef), scores),
    )
    cuda.kernel("ranking/logreg", f"class_scores_{kind}", *types)(*cuda.grid_of_warps(n_rows), args)
    return scores.get()
