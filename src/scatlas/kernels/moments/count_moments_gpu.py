"""Moments of normalised counts, computed from the raw counts of one block, on the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy as cp
import numpy as np

from scatlas.kernels.moments.moments_gpu import exact_moments, moments

if TYPE_CHECKING:
    from cupyx.scipy import sparse
    from numpy.typing import NDArray

    from scatlas.kernels.moments.moments_cpu import Moments


def normalized_moments(
    x: cp.ndarray | sparse.csr_matrix,
    scales: Any,
    codes: Any = None,
    *,
    log: bool = False,
) -> Moments:
    """As on the CPU; the values are the very same, so that the exact sums are too."""
    n_rows = x.shape[0]
    scales = np.ascontiguousarray(cp.asnumpy(scales), dtype=np.float64)
    if scales.shape != (n_rows,):
        raise ValueError(f"{scales.size} scales for {n_rows} cells")
    kept = ~np.isnan(scales)
    if not kept.all():
        codes = np.where(kept, 0 if codes is None else cp.asnumpy(codes), -1)
    return exact_moments(x, codes, "logged" if log else "scaled", cp.asarray(scales))


def moments_of_counts(x: cp.ndarray | sparse.csr_matrix, codes: Any = None) -> Moments:
    return moments(x, codes)


def gene_sum_pairs(x: cp.ndarray | sparse.csr_matrix) -> NDArray[np.float64]:
    return np.ascontiguousarray(moments(x).sums[0, :, :2].T)
