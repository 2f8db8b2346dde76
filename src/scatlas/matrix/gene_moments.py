"""Moments of genes over all row blocks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas.errors import InputError
from scatlas.kernels.dispatch import kernels_for

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from scatlas.kernels.moments.moments_cpu import Moments


def check_finite_moments(moments: Moments, names: pd.Index, expected: str) -> None:
    """Refuse moments that are not finite; highly_variable_genes expects `expected`."""
    bad = ~np.isfinite(moments.mean).all(axis=0) | ~np.isfinite(moments.var).all(axis=0)
    if bad.any():
        msg = (
            f"gene {names[int(np.argmax(bad))]!r} has NaN or infinite values (or values so large "
            f"that expm1 overflows): highly_variable_genes expects {expected}"
        )
        raise InputError(msg)


def gene_moments(
    x: Any,
    codes: NDArray[np.integer] | None = None,
    *,
    expm1: bool = False,
    log_base: float | None = None,
) -> Moments:
    """Moments per gene in one pass over ``x``, for all groups of cells together.

    Parameters
    ----------
    x
        Array ``[n_cells, n_genes]``, in memory or Dask.
    codes
        Group of each cell, integer ``[n_cells]``; cells with a negative code are left out.
    expm1, log_base
        As in :func:`scatlas.kernels.moments.moments_cpu.moments`.

    Returns
    -------
    Moments of each group that has cells, the same whatever the blocks of ``x``.
    """
    from scatlas.kernels.moments import moments_cpu

    rows = () if codes is None else (codes,)
    kernels = kernels_for("moments.moments", x)

    def block_moments(block: Any, codes: NDArray[np.integer] | None = None) -> Moments:
        pending = getattr(block, "pending", None)
        if pending is not None and log_base is None and (pending.log or not expm1):
            from scatlas.kernels.moments.count_moments_cpu import normalized_moments

            counts, scales, log = pending
            return normalized_moments(counts, scales, codes, log=log, expm1=expm1)
        return kernels.moments(block, codes, expm1=expm1, log_base=log_base)

    return blocks.reduce(block_moments, moments_cpu.merge_in_place, x, *rows)


def normalized_moments(
    x: Any,
    scales: NDArray[np.float64],
    codes: NDArray[np.integer] | None = None,
    *,
    log: bool,
) -> Moments:
    """Moments per gene of normalised counts in one pass over the counts ``x``.

    Parameters
    ----------
    x
        Counts ``[n_cells, n_genes]``, in memory or Dask.
    scales
        float64 ``[n_cells]``, 1 / size factor per cell; NaN leaves the cell out.
    codes
        As in :func:`gene_moments`.
    log
        Compute the moments of the natural logarithm of 1 + the normalised count.

    Returns
    -------
    The same bits as :func:`gene_moments` of the result of :func:`scatlas.pp.normalize_total` and
    :func:`scatlas.pp.log1p`.
    """
    from scatlas.kernels.moments import moments_cpu

    rows = (scales,) if codes is None else (scales, codes)
    kernels = kernels_for("moments.count_moments", x)

    return blocks.reduce(
        partial(kernels.normalized_moments, log=log), moments_cpu.merge_in_place, x, *rows
    )
