"""Names and types of obs and var columns that every version of AnnData can write."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pandas as pd

from scatlas.io.zarr_writer.node_metadata import MAX_NAME, is_storable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def storable_names(
    columns: Iterable[Any], name: str, notify: Callable[[str], None]
) -> dict[Any, str]:
    """Names under which columns of the table ``name`` are stored; those that cannot be are left
    out.
    """
    columns = list(columns)
    names = {column: _shortened(str(column).replace("/", "_")) for column in columns}
    taken = set(columns)
    for old, fresh in list(names.items()):
        if not is_storable(fresh):
            del names[old]
            notify(f"{name}[{old!r}] was dropped: its name cannot be stored")
        elif fresh != old and fresh in taken:
            del names[old]
            notify(f"{name}[{old!r}] was dropped: its name cannot be stored and {fresh!r} exists")
        elif fresh != old:
            taken.add(fresh)
            notify(f"{name}[{old!r}] was renamed to {fresh!r}: AnnData stores no such names")
    return names


def _shortened(name: str) -> str:
    """The beginning of a name that is too long for a folder."""
    encoded = os.fsencode(name)
    return name if len(encoded) <= MAX_NAME else encoded[:MAX_NAME].decode(errors="ignore")


def text_notice(name: str, column: Any, dtype: Any) -> str:
    """Sentence that says that a column is stored as text."""
    return f"{name}[{column!r}] ({dtype}) cannot be stored: made text"


def as_text(column: pd.Series) -> pd.Series | None:
    """Column as text when AnnData cannot write it as it is, else None; gaps stay gaps."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        if as_text(pd.Series(column.cat.categories)) is None:
            return None
        return column.astype(object).map(str, na_action="ignore").astype("category")
    if column.dtype == object:
        if pd.api.types.infer_dtype(column, skipna=True) in ("string", "empty"):
            return None
        return column.map(_text, na_action="ignore")
    if column.dtype.kind in "mMc" or isinstance(
        column.dtype, pd.DatetimeTZDtype | pd.PeriodDtype | pd.IntervalDtype
    ):
        return column.astype(object).map(str, na_action="ignore")
    return None


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
