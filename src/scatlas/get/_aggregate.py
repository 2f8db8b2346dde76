"""Cells (or genes) aggregated by group: ``sa.get.aggregate``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas as pd

from scatlas import blocks, columns, elements
from scatlas.arrays.kinds import kind_of
from scatlas.errors import InputError
from scatlas.matrix import group_sums

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from anndata import AnnData
    from numpy.typing import NDArray

AggType = Literal["sum", "mean", "var", "count_nonzero", "median"]
logger = logging.getLogger(__name__)

N_CELLS = "n_obs_aggregated"

_PASSES = "a median takes one more for each set of groups that fits the memory"


@blocks.passes(1, _PASSES)
def aggregate(
    adata: AnnData,
    by: str | Collection[str],
    func: AggType | Iterable[AggType],
    *,
    axis: Literal["obs", 0, "var", 1] | None = None,
    mask: NDArray[np.bool_] | str | None = None,
    dof: int = 1,
    layer: str | None = None,
    obsm: str | None = None,
    varm: str | None = None,
) -> AnnData:
    """Aggregate cells (or genes) by group, for pseudobulks among others.

    As :func:`scanpy.get.aggregate`, in one pass over a Dask X, which all functions of a call share
    except the median: it needs all cells of a group at once.

    Memory: the result, 8 bytes per group, gene and function, and the blocks being read. ``mean``
    and ``var`` replace their sums. In addition, at 8 bytes per group and gene: the sums, for
    ``var`` without ``mean``; one array for ``sum`` and ``mean`` together; and for floats, whose
    rounding errors are kept, one array for the sums and one for the squares. 10,000 groups of
    60,000 genes take 4.8 GB for the ``sum`` of counts, whatever the number of cells and blocks.

    Parameters
    ----------
    adata
        Annotated data; the matrix on the CPU or a GPU, in memory or Dask.
    by
        Column, or columns, of obs (of var with ``axis=1``) whose values define the groups. Cells
        with a missing value are left out.
    func
        ``"sum"``, ``"mean"``, ``"var"``, ``"count_nonzero"``, ``"median"``, or several.
    axis
        Aggregate cells (``"obs"``, 0) or genes (``"var"``, 1). By default cells, but genes if
        `varm` is given.
    mask
        Boolean per cell (or gene), or the name of such a column: cells with False are left out. A
        group without remaining cells stays, with sums of zero.
    dof
        Delta degrees of freedom: ``var`` divides by n - dof, and is NaN if that is not above zero.
    layer, obsm, varm
        Key of the layer, array or table to aggregate in place of X: of obsm over the cells, of varm
        over the genes (``axis=1``).

    Returns
    -------
    AnnData ``[n_groups, n_genes]`` (``[n_cells, n_groups]`` with ``axis=1``) with a dense layer
    for each function, on the GPU if the data is there, else in the main memory. ``sum`` of integers
    and ``count_nonzero`` are int64 and exact, all else is float64. obs has the columns of `by` and
    ``n_obs_aggregated``, the number of cells per group (int64); its names are the values joined by
    ``_``. Groups are in the order of the categories, the last column changing fastest; groups
    without cells are left out. No result depends on the blocks of X. For data on a GPU, the host
    computes medians, and genes by group, block by block.

    Raises
    ------
    InputError
        A column, layer or function does not exist, more than one of `layer`, `obsm` and `varm` is
        given, or sums of integers do not fit 64 bits.
    TooLargeError
        The result does not fit the available memory.

    References
    ----------
    Masks apply to every function, and missing values are left out, as in scanpy 1.12
    (scverse/scanpy #4178, #3903); 1.11 divides by all cells of a group, and mistakes missing values
    for others.
    """
    from anndata import AnnData

    if axis not in (None, 0, 1, "obs", "var"):
        raise InputError(f"axis must be 'obs', 'var', 0 or 1, not {axis!r}")
    over_genes = varm is not None if axis is None else axis in (1, "var")
    elements.check_not_backed(adata)
    data = _get_data(adata, layer=layer, obsm=obsm, varm=varm, over_genes=over_genes)
    table = elements.get_table(adata, "var" if over_genes else "obs")
    x = data.to_numpy() if isinstance(data, pd.DataFrame) else data
    x = elements.check_array(x, "the matrix to aggregate", all_floats=True)
    by_columns = over_genes and varm is None
    axis = "var" if over_genes else "obs"
    mask = _parse_mask(mask, table, axis)
    labels, layers = _aggregate(x, table, by, func, mask, dof, axis=axis, by_columns=by_columns)
    if isinstance(data, pd.DataFrame):
        other = pd.DataFrame(index=data.columns)
    elif obsm is not None or varm is not None:
        other = pd.DataFrame(index=pd.RangeIndex(x.shape[1]).astype(str))
    else:
        other = elements.get_table(adata, "obs" if over_genes else "var")
    if varm is not None:
        layers = {name: layer.T for name, layer in layers.items()}
    obs, var = (other, labels) if over_genes else (labels, other)
    return AnnData(layers=layers, obs=obs, var=var)


@blocks.passes(1, _PASSES)
def aggregate_cells(
    x: Any,
    cells: pd.DataFrame,
    by: str | Collection[str],
    *,
    func: AggType | Iterable[AggType],
    mask: NDArray[np.bool_] | None = None,
    dof: int = 1,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """As :func:`aggregate`, for a matrix and the columns of obs that define the groups.

    Parameters
    ----------
    x
        Matrix ``[n_cells, n_genes]``.
    cells
        Table with one row per cell; its index is ignored.
    by, func, mask, dof
        As for :func:`aggregate`.

    Returns
    -------
    Table of the groups (obs of the result), and a dense array ``[n_groups, n_genes]`` by function.

    Raises
    ------
    InputError, TooLargeError
        As :func:`aggregate`.
    """
    x = elements.check_array(x, "the matrix to aggregate", all_floats=True)
    mask = _parse_mask(mask, cells, "obs")
    return _aggregate(x, cells, by, func, mask, dof, axis="obs", by_columns=False)


def _aggregate(
    x: Any,
    table: pd.DataFrame,
    by: str | Collection[str],
    func: AggType | Iterable[AggType],
    mask: NDArray[np.bool_] | None,
    dof: int,
    *,
    axis: str,
    by_columns: bool,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Table of the groups, and their layers ``[groups, genes]``, or ``[cells, groups]``."""
    funcs = _parse_functions(func)
    codes, labels = _label_groups(table, by, axis)
    if mask is not None:
        codes = np.where(mask, codes, -1)
    sizes = np.bincount(codes[codes >= 0], minlength=len(labels)).astype(np.int64)
    if N_CELLS in labels:
        logger.warning("obs has no sizes of the groups: %r names the groups", N_CELLS)
    else:
        labels[N_CELLS] = sizes
    aggregate = group_sums.aggregate_columns if by_columns else group_sums.aggregate_rows
    layers = aggregate(x, codes, sizes, funcs, dof)
    if kind_of(x).gpu:
        import cupy

        layers = {name: cupy.asarray(layer) for name, layer in layers.items()}
    return labels, {name: layers[name] for name in funcs}


def _get_data(
    adata: AnnData, *, layer: str | None, obsm: str | None, varm: str | None, over_genes: bool
) -> Any:
    """The array or table to aggregate: X by default."""
    if sum(name is not None for name in (layer, obsm, varm)) > 1:
        raise InputError("give one of layer, obsm and varm, or none")
    for name, key, axis, has_axis in (
        ("obsm", obsm, "cells (axis=0)", not over_genes),
        ("varm", varm, "genes (axis=1)", over_genes),
    ):
        if key is None:
            continue
        if not has_axis:
            raise InputError(f"{name} can only be aggregated over {axis}")
        arrays = getattr(adata, name)
        if key not in arrays:
            raise InputError(f"adata.{name} has no {key!r}; it has {sorted(arrays.keys())}")
        return arrays[key]
    return elements.get_matrix(adata, layer=layer, all_floats=True)


def _parse_functions(func: AggType | Iterable[AggType]) -> tuple[str, ...]:
    """Names of functions without repeats, in a fixed order."""
    funcs = set(columns.as_names(func, "func"))
    known = get_args(AggType)
    if unknown := sorted(map(str, funcs.difference(known))):
        msg = f"func {unknown[0]!r} is unknown: use {', '.join(known[:-1])} or {known[-1]}"
        raise InputError(msg)
    if not funcs:
        raise InputError(f"func names no function: use {', '.join(known[:-1])} or {known[-1]}")
    return tuple(name for name in known if name in funcs)


def _parse_mask(mask: Any, table: pd.DataFrame, name: str) -> NDArray[np.bool_] | None:
    """Boolean mask with one entry per row of the table."""
    return None if mask is None else columns.get_mask(mask, table, len(table), "mask", name)


def _label_groups(
    table: pd.DataFrame, by: str | Collection[str], axis: str
) -> tuple[NDArray[np.int64], pd.DataFrame]:
    """Group of each row, -1 for missing values, and the table of the groups that occur."""
    from anndata.utils import make_index_unique

    names = list(dict.fromkeys(columns.as_names(by, "by")))
    if not names:
        raise InputError("by names no column: give one or several")
    codes = np.zeros(len(table), dtype=np.int64)
    missing = np.zeros(len(table), dtype=bool)
    # Per column: code of each group, categories.
    columns_of_groups: list[tuple[NDArray[np.int64], pd.Index]] = []
    for column in names:
        values = columns.get_labels(table, column, "by", axis).remove_unused_categories()
        missing |= values.codes < 0
        codes = codes * len(values.categories) + values.codes
        # Renumber after each column: the product of many numbers of categories would overflow.
        present, codes = np.unique(np.where(missing, -1, codes), return_inverse=True)
        if present.size and present[0] < 0:
            present, codes = present[1:], codes - 1
        before, last = np.divmod(present, max(1, len(values.categories)))
        columns_of_groups = [(code[before], categories) for code, categories in columns_of_groups]
        columns_of_groups.append((last, values.categories))
    texts = [
        np.array([*map(str, categories)], dtype=object)[code]
        for code, categories in columns_of_groups
    ]
    joined = pd.Index(["_".join(values) for values in zip(*texts, strict=True)], dtype=object)
    labels = pd.DataFrame(
        {
            column: pd.Categorical.from_codes(code, categories)
            for column, (code, categories) in zip(names, columns_of_groups, strict=True)
        },
        index=make_index_unique(joined),
    )
    return codes, labels
