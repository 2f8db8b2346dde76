"""Moments of genes over all row blocks, and the element of an AnnData that a function works on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas.errors import InputError
from scatlas.kernels.dispatch import is_gpu, kernels_for

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData
    from numpy.typing import NDArray

    from scatlas.kernels.moments.moments_cpu import Moments


def representation(adata: AnnData, layer: str | None) -> Any:
    """``adata.X`` or a layer, checked to be an array that blocks can be cut from.

    Raises
    ------
    InputError
        For a layer that is absent, and for an X that is absent or read from a file on each access.
    """
    name = "X" if layer is None else f"layers[{layer!r}]"
    if layer is not None and layer not in adata.layers:
        msg = f"the AnnData has no {name}; its layers are {list(adata.layers)}"
        raise InputError(msg)
    return checked(adata.X if layer is None else adata.layers[layer], name)


def checked(x: Any, name: str, *, all_floats: bool = False) -> Any:
    """Return ``x`` if it is a NumPy, SciPy, CuPy, CuPyX or Dask array cut along the cells only.

    Its values must be of a type that the kernels take (`all_floats`: the caller takes float16 and
    longdouble, too).
    """
    if blocks.is_dask(x):
        blocks.check(x, name)
    elif not (x.format in {"csr", "csc"} if blocks.is_sparse(x) else _is_dense(x)):
        msg = (
            f"{name} is {type(x).__name__}, but a NumPy array, a SciPy CSR or CSC matrix, the same "
            "of CuPy, or a Dask array is needed: open files with scatlas.read_lazy"
        )
        raise InputError(msg)
    if x.ndim != 2:
        msg = f"{name} has {x.ndim} dimensions, but cells x genes are needed"
        raise InputError(msg)
    blocks.check_type(x, name, all_floats=all_floats)
    return x


def _is_dense(x: Any) -> bool:
    return isinstance(x, np.ndarray) or (is_gpu(x) and hasattr(x, "__cuda_array_interface__"))


def check_finite(moments: Moments, names: pd.Index, expected: str) -> None:
    """Refuse values that are not finite, by what `highly_variable_genes` expects instead."""
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
    Moments of each group that has cells. They do not depend on the blocks of ``x``.
    """
    from scatlas.kernels.moments import moments_cpu

    rows = () if codes is None else (codes,)
    kernels = kernels_for("moments.moments", x)

    def of_block(block: Any, codes: NDArray[np.integer] | None = None) -> Moments:
        pending = getattr(block, "pending", None)
        if pending is not None and log_base is None and (pending.log or not expm1):
            from scatlas.kernels.moments.count_moments_cpu import normalized_moments

            counts, scales, log = pending
            return normalized_moments(counts, scales, codes, log=log, expm1=expm1)
        return kernels.moments(block, codes, expm1=expm1, log_base=log_base)

    return blocks.reduce(of_block, moments_cpu.fold, x, *rows)


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
        float64 ``[n_cells]``, one over the size factor of each cell. NaN leaves the cell out.
    codes
        As in :func:`gene_moments`.
    log
        Take the moments of the natural logarithm of 1 + the normalised count.

    Returns
    -------
    As :func:`gene_moments` of what :func:`scatlas.pp.normalize_total` and
    :func:`scatlas.pp.log1p` make, the same to the last bit.
    """
    from scatlas.kernels.moments import moments_cpu

    rows = (scales,) if codes is None else (scales, codes)
    kernels = kernels_for("moments.count_moments", x)

    def of_block(block: Any, *rows: NDArray) -> Moments:
        return kernels.normalized_moments(block, *rows, log=log)

    return blocks.reduce(of_block, moments_cpu.fold, x, *rows)
