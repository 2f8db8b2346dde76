"""What regressing genes on columns of ``obs`` leaves of them."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks, columns, elements
from scatlas.compute.threads import use_threads
from scatlas.errors import InputError
from scatlas.kernels import kernels_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from anndata import AnnData
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

# A column whose part that the others do not explain is smaller than this is their combination.
_DEPENDENT = 1e-12


@blocks.passes(1, "sums per gene; the residuals' blocks are lazy")
def regress_out(
    adata: AnnData,
    keys: str | Sequence[str],
    *,
    layer: str | None = None,
    n_jobs: int | None = None,
    copy: bool = False,
) -> AnnData | None:
    """Replace every gene by what its linear regression on columns of ``obs`` leaves of it.

    Least squares with an intercept, on one or several columns of numbers (totals, mitochondrial
    fraction), or on one of categories, whose means are taken off. The sums that the coefficients
    follow from take one pass; the residuals are made block by block, and stay lazy for a Dask X.
    They are dense. No existing array is changed.

    Parameters
    ----------
    adata
        Annotated data; X in memory or Dask, on the CPU or a GPU.
    keys
        Column, or columns, of ``obs``: numbers (or True and False), or one of categories or texts.
    layer
        Take ``adata.layers[layer]`` instead of X.
    n_jobs
        Threads that work on blocks in this call; as always when left out.
    copy
        Return a changed copy and leave ``adata`` as it is.

    Returns
    -------
    None, or the copy, with X (the layer) dense: float32 for float32 and for integers of up to 32
    bits, else float64. (scanpy gives float64 for a column of categories.)

    Raises
    ------
    InputError
        A column is not there, has missing or infinite values, or is of categories beside another;
        there are no cells, or values of X are not finite.

    Notes
    -----
    The columns are made orthonormal over the cells, and a column that is a combination of the
    others (or constant) plays no part, so that badly scaled columns cost no digits. scanpy inverts
    the matrix of their products. A gene that has the same value in all cells becomes zero, where
    scanpy does not change it if the column is categorical.

    References
    ----------
    R. Satija et al., Nat. Biotechnol. 33 (2015). A. Björck, Linear Algebra Appl. 197-198 (1994):
    Gram-Schmidt with reorthogonalisation. Reference implementation: scanpy 1.11.5,
    ``preprocessing/_simple.py``.
    """
    x = elements.get_array(adata, layer)
    if x.shape[0] == 0:
        raise InputError("regress_out needs at least one cell, but the AnnData has none")
    regressors = _regressors(adata, keys)
    with nullcontext() if n_jobs is None else use_threads(n_jobs):
        left = _residuals(elements.as_rows(x), regressors)
    adata = adata.copy() if copy else adata
    elements.copy_if_view(adata)
    elements.set_matrix(adata, left, layer=layer)
    return adata if copy else None


def _regressors(
    adata: AnnData, keys: str | Sequence[str]
) -> list[pd.Categorical | NDArray[np.float64]]:
    """Columns of numbers, float64 ``[n_cells]``, or a single categorical."""
    import pandas as pd

    keys = columns.as_names(keys, "keys")
    if not keys:
        raise InputError("regress_out needs a column of obs (keys)")
    regressors = []
    obs = elements.get_table(adata, "obs")
    for key in keys:
        column = columns.get_column(obs, key, "keys")
        if column.isna().any():
            raise InputError(f"obs[{key!r}] (keys) has no value for {column.isna().sum():,} cells")
        is_categorical = isinstance(column.dtype, pd.CategoricalDtype)
        if is_categorical or columns.kind_of_values(column) == "labels":
            if len(keys) > 1:
                msg = f"obs[{key!r}] is of categories, which only a single one of keys may be"
                raise InputError(msg)
            return [_groups(obs, key)]
        values = columns.get_numbers(obs, key, "keys").astype(np.float64)
        if not np.isfinite(values).all():
            raise InputError(f"obs[{key!r}] (keys) has infinite values")
        regressors.append(values)
    return regressors


def _groups(obs: pd.DataFrame, key: str) -> pd.Categorical:
    """Groups whose means are taken off; as many groups as cells would leave nothing."""
    groups = columns.get_labels(obs, key, "keys").remove_unused_categories()
    if len(groups.categories) == len(groups) > 2:
        raise InputError(
            f"obs[{key!r}] (keys) has another value for each cell, so that nothing would be left "
            "of X: convert it to numbers with .astype(float), or name another column"
        )
    return groups


def _residuals(x: Any, regressors: list[pd.Categorical | NDArray[np.float64]]) -> Any:
    n_cells, n_genes = x.shape
    if isinstance(regressors[0], np.ndarray):
        weights = _orthonormal(regressors)
        sums = _weighted_sums(x, [np.ones(n_cells), *weights])
        codes, base, slopes = np.zeros(n_cells, np.int64), sums[:1] / n_cells, sums[1:]
    else:
        from scatlas.matrix.group_sums import aggregate_rows

        codes = regressors[0].codes.astype(np.int64)
        means = aggregate_rows(x, codes, np.bincount(codes), ("mean",), 0)["mean"]
        base, weights, slopes = blocks.on_host(means), [], np.empty((0, n_genes))
    unusable = ~(np.isfinite(base).all(axis=0) & np.isfinite(slopes).all(axis=0))
    if unusable.any():
        raise InputError(
            f"{unusable.sum():,} genes, the first at position {int(np.argmax(unusable))}, have NaN "
            "or infinite values, on which nothing can be regressed: remove these genes or cells"
        )
    narrow = x.dtype == np.float32 or (x.dtype.kind in "iub" and x.dtype.itemsize <= 4)
    dtype = np.dtype(np.float32 if narrow else np.float64)
    residuals = kernels_for("linalg.regress", x).residuals

    def regress_block(block: Any, codes: NDArray[np.int64], *weights: NDArray[np.float64]) -> Any:
        regressors = np.stack([*weights], axis=1) if weights else np.empty((codes.size, 0))
        return residuals(block, codes, base, regressors, slopes, dtype=dtype)

    return blocks.apply(regress_block, x, codes, *weights, dtype=dtype, dense=True)


def _weighted_sums(x: Any, weights: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Sum over the cells of each gene times each of the weights ``[n_weights, n_genes]``."""
    from scatlas.kernels.linalg import regress_cpu

    weighted_sums = kernels_for("linalg.regress", x).weighted_sums

    def sum_block(block: Any, *weights: NDArray[np.float64]) -> NDArray[np.float64]:
        return weighted_sums(block, np.stack(weights, axis=1))

    return blocks.reduce(sum_block, regress_cpu.merge, x, *weights)[0]


def _orthonormal(columns: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    """Orthonormal columns that span, with a constant one, what the columns do."""
    n = columns[0].size
    basis = [np.full(n, 1 / np.sqrt(n))]
    for column in columns:
        rest = column / (np.abs(column).max() or 1.0)
        size = np.sqrt((rest * rest).sum())
        for _ in range(2):  # once leaves what rounding has put in
            for other in basis:
                # Not np.dot, whose sums depend on BLAS and its threads.
                rest = rest - (other * rest).sum() * other
        left = np.sqrt((rest * rest).sum())
        if left > _DEPENDENT * size:
            basis.append(rest / left)
        else:
            logger.warning("a column to regress on is constant, or a combination of the others")
    return basis[1:]
