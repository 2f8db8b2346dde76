"""Values of cells and genes that are matched by their names, never by the place alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.elements import get_table
from scatlas.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData
    from numpy.typing import NDArray


def genes_of(adata: AnnData, *, use_raw: bool) -> tuple[pd.DataFrame, str]:
    """Table of the genes of X or of ``raw``, in the order of that matrix, and its name.

    The table of ``raw`` has the columns of ``adata.var``, too, if all of its genes are there; of
    two columns of one name it has that of ``adata.var``.
    """
    var = get_table(adata, "var")
    if not use_raw:
        return var, "adata.var"
    table = adata.raw.var.copy()
    lacking = int((~table.index.isin(var.index)).sum())
    if lacking or not (var.index.equals(table.index) or var.index.is_unique):
        return table, f"adata.raw.var (adata.var has {table.index.size - lacking} of its genes)"
    for name in var.columns:
        table[name] = in_order(var[name], table.index, "adata.var")
    return table, "adata.raw.var"


def column_of(table: pd.DataFrame, name: str, argument: str, element: str) -> pd.Series:
    """A column of obs or var that an argument names."""
    if name not in table:
        msg = f"{argument}: {element} has no column {name!r}; it has {list(table.columns)}"
        raise InputError(msg)
    return table[name]


def has_names(values: Any) -> bool:
    """Whether values are a Series or table with names, not with the numbers of its rows."""
    import pandas as pd

    is_table = isinstance(values, pd.Series | pd.DataFrame)
    return is_table and not isinstance(values.index, pd.RangeIndex)


def in_order(values: Any, names: pd.Index, argument: str) -> NDArray[Any]:
    """Values as an array; those of a table or Series in the order of `names`."""
    if not has_names(values) or values.index.equals(names):
        return np.asarray(values)
    if not values.index.is_unique:
        msg = f"{argument} holds a name twice: give one value for each name"
        raise InputError(msg)
    if (missing := names.difference(values.index, sort=False)).size:
        msg = (
            f"{argument} has no value for {missing[0]!r}: give one for each name of the AnnData, "
            "or an array in their order"
        )
        raise InputError(msg)
    return np.asarray(values.reindex(names))


def values_of(given: Any, table: pd.DataFrame, argument: str, element: str) -> NDArray[Any]:
    """A value for each row of obs or var, from the name of a column, a Series or an array."""
    if isinstance(given, str):
        given = column_of(table, given, argument, element)
    return in_order(given, table.index, argument)


def parse_mask(mask: Any, table: pd.DataFrame, *, argument: str, element: str) -> NDArray[np.bool_]:
    """As :func:`values_of`, of booleans."""
    mask = values_of(mask, table, argument, element)
    if mask.dtype != bool or mask.shape != (len(table),):
        n = len(table)
        msg = f"{argument} is {mask.dtype} of shape {mask.shape}, but {n} booleans are needed"
        raise InputError(msg)
    return mask
