"""Highly variable genes from counts, without an AnnData."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.errors import InputError
from scatlas.matrix import hvg_dispersion, hvg_pearson, hvg_v3
from scatlas.matrix.hvg_dispersion import hvg_table

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike, NDArray

    from scatlas.kernels.moments.moments_cpu import Moments


FLAVORS = (*hvg_dispersion.FLAVORS, *hvg_v3.FLAVORS, hvg_pearson.FLAVOR)


def hvg_of_counts(
    x: Any,
    names: pd.Index,
    size_factors: ArrayLike,
    *,
    flavor: str = "seurat",
    n_top_genes: int | None = None,
    n_bins: int = 20,
    min_cells: int | None = None,
    genes: NDArray[np.bool_] | None = None,
) -> pd.DataFrame:
    """Table of :func:`highly_variable_genes` for counts without an AnnData.

    The cell names of an AnnData take sixty bytes per cell, more than the pass itself.

    Parameters
    ----------
    x
        Counts ``[n_cells, n_genes]``, in memory or Dask.
    names
        Genes.
    size_factors
        One number per cell; NaN leaves the cell out.
    flavor, n_top_genes, n_bins, min_cells
        As in :func:`highly_variable_genes`.
    genes
        Boolean ``[n_genes]``, genes to rank; the others are left out, as those below `min_cells`.
        None for all.

    Raises
    ------
    InputError
        As :func:`highly_variable_genes` with size factors.
    """
    from scatlas.elements import check_array
    from scatlas.matrix.select_normalize import scales_from_size_factors

    check_flavor(flavor)
    x = check_array(x, "the array")
    if x.shape[1] == 0:
        raise InputError("the array has no genes, of which some could be highly variable")
    scales = scales_from_size_factors(size_factors, x.shape[0])
    cell_mask = ~np.isnan(scales)
    check_cells(cell_mask, None, 0)
    options: dict[str, Any] = {
        "cell_mask": cell_mask,
        "n_top_genes": n_top_genes,
        "min_cells": min_cells,
        "genes": genes,
    }
    if flavor == hvg_pearson.FLAVOR:
        return hvg_pearson.hvg_table(x, names, None, None, **options)
    if flavor in hvg_v3.FLAVORS:
        return hvg_v3.hvg_table(x, names, None, None, flavor=flavor, **options)
    moments = normalized_count_moments(x, names, scales, flavor, None)
    return hvg_table(
        moments,
        names,
        batches=None,
        flavor=flavor,
        n_bins=n_bins,
        n_top_genes=n_top_genes,
        min_cells=min_cells,
        genes=genes,
    )


def normalized_count_moments(
    x: Any,
    names: pd.Index,
    scales: NDArray[np.float64],
    flavor: str,
    codes: NDArray[np.int64] | None,
) -> Moments:
    """Moments of normalised counts; refuse moments that cannot be those of counts."""
    from scatlas.matrix.gene_moments import check_finite_moments, normalized_moments

    moments = normalized_moments(x, scales, codes, log=flavor == "cell_ranger")
    expected = "counts where size_factors are given"
    check_finite_moments(moments, names, expected)
    negative = (moments.mean < 0).any(axis=0)
    if negative.any():
        gene = names[int(np.argmax(negative))]
        msg = f"gene {gene!r} has a mean below 0: highly_variable_genes expects {expected}"
        raise InputError(msg)
    return moments


def check_cells(
    cell_mask: NDArray[np.bool_], codes: NDArray[np.int64] | None, n_batches: int
) -> None:
    """Refuse size factors that leave out every cell, or every cell of all batches."""
    if not cell_mask.any():
        raise InputError("size_factors are NaN for every cell, so that none is left")
    if codes is not None and not (codes[cell_mask] < n_batches).any():
        raise InputError("size_factors leave no cell that belongs to a batch (batch_key)")


def check_flavor(flavor: str) -> None:
    """Refuse an unknown flavor."""
    if flavor not in FLAVORS:
        msg = f"flavor={flavor!r} is not supported: choose one of {', '.join(FLAVORS)}"
        raise InputError(msg)
