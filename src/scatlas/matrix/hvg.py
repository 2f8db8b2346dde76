"""Highly variable genes of counts."""

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
    """Table of :func:`highly_variable_genes` for counts without an AnnData around them.

    An AnnData names its cells, which takes sixty bytes a cell and more than the pass itself.

    Parameters
    ----------
    x
        Counts ``[n_cells, n_genes]``, in memory or Dask.
    names
        Genes.
    size_factors
        One a cell; NaN leaves the cell out.
    flavor, n_top_genes, n_bins, min_cells
        As in :func:`highly_variable_genes`.
    genes
        Boolean ``[n_genes]``: the genes that are ranked; the others are left out as those below
        `min_cells` are. None for all.

    Raises
    ------
    InputError
        As :func:`highly_variable_genes` with size factors.
    """
    from scatlas.matrix.gene_moments import checked
    from scatlas.matrix.select_normalize import scales_of

    check_flavor(flavor)
    x, scales = checked(x, "the array"), scales_of(size_factors, x.shape[0])
    kept = ~np.isnan(scales)
    check_cells(kept, None, 0)
    if flavor == hvg_pearson.FLAVOR:
        options = {"n_top_genes": n_top_genes, "min_cells": min_cells}
        return hvg_pearson.hvg_table(x, names, None, None, kept=kept, genes=genes, **options)
    if flavor in hvg_v3.FLAVORS:
        options = {"flavor": flavor, "n_top_genes": n_top_genes, "min_cells": min_cells}
        return hvg_v3.hvg_table(x, names, None, None, kept=kept, genes=genes, **options)
    moments = moments_of_counts(x, names, scales, flavor, None)
    return hvg_table(
        moments,
        names,
        n_batches=None,
        flavor=flavor,
        n_bins=n_bins,
        n_top_genes=n_top_genes,
        min_cells=min_cells,
        genes=genes,
    )


def moments_of_counts(
    x: Any,
    names: pd.Index,
    scales: NDArray[np.float64],
    flavor: str,
    codes: NDArray[np.int64] | None,
) -> Moments:
    """Moments of normalised counts; raise an InputError where they cannot be those of counts."""
    from scatlas.matrix.gene_moments import check_finite, normalized_moments

    moments = normalized_moments(x, scales, codes, log=flavor == "cell_ranger")
    expected = "counts where size_factors are given"
    check_finite(moments, names, expected)
    negative = (moments.mean < 0).any(axis=0)
    if negative.any():
        gene = names[int(np.argmax(negative))]
        msg = f"gene {gene!r} has a mean below 0: highly_variable_genes expects {expected}"
        raise InputError(msg)
    return moments


def check_cells(kept: NDArray[np.bool_], codes: NDArray[np.int64] | None, n_batches: int) -> None:
    """Raise an InputError where no cell is left to count."""
    if not kept.any():
        raise InputError("size_factors are NaN for every cell, so that none is left")
    if codes is not None and not (codes[kept] < n_batches).any():
        raise InputError("size_factors leave no cell that belongs to a batch (batch_key)")


def check_flavor(flavor: str) -> None:
    """Raise an InputError for an unknown flavor."""
    if flavor not in FLAVORS:
        msg = f"flavor={flavor!r} is not supported: choose one of {', '.join(FLAVORS)}"
        raise InputError(msg)
