"""Cells (or genes) aggregated by group: ``sa.get.aggregate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas as pd

from scatlas import blocks, elements
from scatlas.errors import InputError
from scatlas.kernels.dispatch import is_gpu
from scatlas.matrix import group_sums
from scatlas.matrix.gene_moments import checked

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from anndata import AnnData
    from numpy.typing import NDArray

AggType = Literal["sum", "mean", "var", "count_nonzero", "median"]
N_CELLS = "n_obs_aggregated"

_PASSES = "a median takes one more, and one more for each so many groups as fit the memory"


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

    As :func:`scanpy.get.aggregate`, in one pass over a Dask X. All functions of a call share it,
    but for the median, which sees each group's cells at once.

    Memory: the result, 8 bytes for each group, gene and function, and the blocks in work. ``mean``
    and ``var`` are computed where their sums were; beside the result are needed, at 8 bytes a group
    and gene: the sums, for ``var`` without ``mean``; one array more for ``sum`` and ``mean``
    together, both being results; and for reals, whose sums carry their rounding error, as many
    again as there are of sums and squares. 10,000 groups of 60,000 genes take 4.8 GB for the
    ``sum`` of counts, whatever the number of cells and blocks.

    Parameters
    ----------
    adata
        Annotated data; the matrix as for all functions, on the CPU or a GPU, in memory or Dask.
    by
        Column, or columns, of obs (of var with ``axis=1``) whose values make the groups. Cells
        where one of them is missing are left out.
    func
        ``"sum"``, ``"mean"``, ``"var"``, ``"count_nonzero"``, ``"median"``, or several.
    axis
        Aggregate cells (``"obs"``, 0) or genes (``"var"``, 1); genes only if `varm` is given by
        default.
    mask
        Boolean, one a cell (or gene), or the name of a column of such: what is False is left out.
        A group of which nothing is left stays, with sums of zero.
    dof
        Degrees of freedom that ``var`` takes off: it divides by n - dof, and is NaN where that is
        not above zero.
    layer, obsm, varm
        Aggregate this in place of X. A table or array of obsm is aggregated over the cells, of varm
        over the genes (``axis=1``).

    Returns
    -------
    AnnData ``[n_groups, n_genes]`` (``[n_cells, n_groups]`` with ``axis=1``) with a dense layer
    for each function, in the main memory or, of data on a GPU, on that GPU. ``sum`` of integers
    and ``count_nonzero`` are int64 and exact, all else is float64. obs has the columns of `by` and
    ``n_obs_aggregated``, the cells (int64) that were; its names are the values joined by ``_``.
    Groups come in the order of the categories, the last column's first; those without a cell are
    left out. No result depends on the blocks of X. Medians, and genes by group, of data on a GPU
    are computed on the host, a block at a time.

    Raises
    ------
    InputError
        A column, layer or function is not there, more than one of `layer`, `obsm` and `varm` is
        given, or sums of integers do not fit 64 bits.
    TooLargeError
        The result does not fit the memory that is left.

    References
    ----------
    Masks that count in every function, and missing values: as in scanpy 1.12 (scverse/scanpy
    #4178, #3903); 1.11 divides by all cells of a group, and takes missing values for others.
    """
    from anndata import AnnData

    over_genes = _over_genes(axis, varm)
    elements.check_not_backed(adata)
    data = _data(adata, layer=layer, obsm=obsm, varm=varm, over_genes=over_genes)
    table = elements.table(adata, "var" if over_genes else "obs")
    x = data.to_numpy() if isinstance(data, pd.DataFrame) else data
    x = checked(x, "the matrix to aggregate", all_floats=True)
    mask = _mask(mask, table, "var" if over_genes else "obs")
    columns = over_genes and varm is None
    labels, layers = _aggregated(x, table, by, func, mask, dof, genes=columns)
    if isinstance(data, pd.DataFrame):
        other = pd.DataFrame(index=data.columns)
    elif obsm is not None or varm is not None:
        other = pd.DataFrame(index=pd.RangeIndex(x.shape[1]).astype(str))
    else:
        other = elements.table(adata, "obs" if over_genes else "var")
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
    """As :func:`aggregate`, for a matrix and those columns of obs alone that make the groups.

    Parameters
    ----------
    x
        Matrix ``[n_cells, n_genes]``.
    cells
        Table with a row a cell; its index is not looked at.
    by, func, mask, dof
        As for :func:`aggregate`.

    Returns
    -------
    The groups' table (obs of the result), and a dense array ``[n_groups, n_genes]`` by function.

    Raises
    ------
    InputError, TooLargeError
        As :func:`aggregate`.
    """
    x = checked(x, "the matrix to aggregate", all_floats=True)
    return _aggregated(x, cells, by, func, _mask(mask, cells, "obs"), dof, genes=False)


def _aggregated(
    x: Any,
    table: pd.DataFrame,
    by: str | Collection[str],
    func: AggType | Iterable[AggType],
    mask: NDArray[np.bool_] | None,
    dof: int,
    *,
    genes: bool,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Table of the groups, and their layers ``[groups, genes]``, or ``[cells, groups]``."""
    funcs = _functions(func)
    codes, labels = _labels(table, by)
    if mask is not None:
        codes = np.where(mask, codes, -1)
    sizes = np.bincount(codes[codes >= 0], minlength=len(labels)).astype(np.int64)
    labels[N_CELLS] = sizes
    layers = (group_sums.of_genes if genes else group_sums.of_cells)(x, codes, sizes, funcs, dof)
    if is_gpu(x):
        import cupy

        layers = {name: cupy.asarray(layer) for name, layer in layers.items()}
    return labels, {name: layers[name] for name in funcs}


def _over_genes(axis: Any, varm: str | None) -> bool:
    if axis not in (None, 0, 1, "obs", "var"):
        msg = f"axis must be 'obs', 'var', 0 or 1, not {axis!r}"
        raise InputError(msg)
    return varm is not None if axis is None else axis in (1, "var")


def _data(
    adata: AnnData, *, layer: str | None, obsm: str | None, varm: str | None, over_genes: bool
) -> Any:
    """The matrix that is aggregated: X, or what is named."""
    if sum(name is not None for name in (layer, obsm, varm)) > 1:
        msg = "give one of layer, obsm and varm, or none"
        raise InputError(msg)
    for name, key, needs, fits in (
        ("obsm", obsm, "cells (axis=0)", not over_genes),
        ("varm", varm, "genes (axis=1)", over_genes),
    ):
        if key is None:
            continue
        if not fits:
            msg = f"{name} can only be aggregated over {needs}"
            raise InputError(msg)
        place = getattr(adata, name)
        if key not in place:
            msg = f"adata.{name} has no {key!r}; it has {sorted(place.keys())}"
            raise InputError(msg)
        return place[key]
    return elements.get_matrix(adata, layer=layer, all_floats=True)


def _functions(func: AggType | Iterable[AggType]) -> tuple[str, ...]:
    """Names of functions, each once, in one order."""
    funcs = {func} if isinstance(func, str) else set(func)
    known = get_args(AggType)
    if unknown := sorted(map(str, funcs.difference(known))):
        msg = f"func {unknown[0]!r} is unknown: use {', '.join(known[:-1])} or {known[-1]}"
        raise InputError(msg)
    if not funcs:
        msg = f"func names no function: use {', '.join(known[:-1])} or {known[-1]}"
        raise InputError(msg)
    return tuple(name for name in known if name in funcs)


def _mask(mask: Any, table: pd.DataFrame, name: str) -> NDArray[np.bool_] | None:
    """Boolean, one a row of the table."""
    if mask is None:
        return None
    if isinstance(mask, str):
        if mask not in table:
            msg = f"mask {mask!r} is not a column of adata.{name}"
            raise InputError(msg)
        mask = table[mask].to_numpy()
    mask = np.asarray(mask)
    if mask.dtype != bool or mask.shape != (len(table),):
        msg = f"mask is {mask.dtype} of shape {mask.shape}, but {len(table)} booleans are needed"
        raise InputError(msg)
    return mask


def _labels(
    table: pd.DataFrame, by: str | Collection[str]
) -> tuple[NDArray[np.int64], pd.DataFrame]:
    """Group of each row, -1 where a value is missing, and the table of the groups that occur."""
    from anndata.utils import make_index_unique

    columns = [by] if isinstance(by, str) else list(dict.fromkeys(by))
    if not columns:
        msg = "by names no column: give one, or several"
        raise InputError(msg)
    codes = np.zeros(len(table), dtype=np.int64)
    missing = np.zeros(len(table), dtype=bool)
    kept: list[tuple[np.ndarray, pd.Index]] = []  # by column: code of each group, categories
    for column in columns:
        if column not in table:
            msg = f"there is no column {column!r} to group by; there are {list(table.columns)}"
            raise InputError(msg)
        values = pd.Categorical(table[column]).remove_unused_categories()
        missing |= values.codes < 0
        codes = codes * len(values.categories) + values.codes
        # Numbered anew after each column: products of many columns' categories would overflow.
        present, codes = np.unique(np.where(missing, -1, codes), return_inverse=True)
        if present.size and present[0] < 0:
            present, codes = present[1:], codes - 1
        before, last = np.divmod(present, max(1, len(values.categories)))
        kept = [(code[before], categories) for code, categories in kept]
        kept.append((last, values.categories))
    parts = [np.array([*map(str, values)], dtype=object)[code] for code, values in kept]
    names = pd.Index(["_".join(values) for values in zip(*parts, strict=True)], dtype=object)
    labels = pd.DataFrame(
        {
            column: pd.Categorical.from_codes(code, categories)
            for column, (code, categories) in zip(columns, kept, strict=True)
        },
        index=make_index_unique(names),
    )
    return codes, labels
