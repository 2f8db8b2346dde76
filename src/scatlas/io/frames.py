"""obs and var as every version of AnnData can write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Callable


def unique_names(obs: pd.DataFrame, notify: Callable[[str], None]) -> pd.DataFrame:
    """Make cell names unique as AnnData does: a second ``A`` becomes ``A-1``, and so on.

    Parameters
    ----------
    obs
        Not changed.
    notify
        Called with a sentence when names were changed.
    """
    import warnings

    from anndata.utils import make_index_unique

    names = obs.index.astype(str)
    if not names.is_unique:
        n = int(names.duplicated().sum())
        notify(f"obs had {n:,} repeated cell names: made unique by a number at the end")
        with warnings.catch_warnings():
            # anndata warns when a suffix is taken already; it then takes the next number.
            warnings.filterwarnings("ignore", message="Suffix used", category=UserWarning)
            names = make_index_unique(names)
    obs = obs.copy(deep=False)
    obs.index = names.rename(obs.index.name)
    if obs.index.name in obs.columns and list(obs[obs.index.name].astype(str)) != list(names):
        # AnnData refuses an index that shares its name with a column of other values.
        obs.index.name = None
    return obs


def writable(frame: pd.DataFrame, name: str, notify: Callable[[str], None]) -> pd.DataFrame:
    """Convert columns that AnnData cannot write to text, and names it does not take.

    Parameters
    ----------
    frame
        ``obs`` or ``var``; not changed.
    name
        ``"obs"`` or ``"var"``, for the notices.
    notify
        Called with a sentence for each change.
    """
    new = frame.copy(deep=False)
    for column in frame.columns:
        text = _as_text(frame[column])
        if text is not None:
            notify(f"{name}[{column!r}] ({frame[column].dtype}) cannot be stored: made text")
            new[column] = text
    renamed = {column: str(column).replace("/", "_") for column in frame.columns}
    changed = {old: fresh for old, fresh in renamed.items() if old != fresh}
    taken = set(frame.columns)
    for old, fresh in changed.items():
        if fresh in taken:
            del renamed[old]
            new = new.drop(columns=old)
            notify(f"{name}[{old!r}] was dropped: its name cannot be stored and {fresh!r} exists")
        else:
            notify(f"{name}[{old!r}] was renamed to {fresh!r}: AnnData stores no such names")
    return new.rename(columns=renamed)


def _as_text(column: pd.Series) -> pd.Series | None:
    """Column as text when AnnData cannot write it as it is, else None; gaps stay gaps."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        if _as_text(pd.Series(column.cat.categories)) is None:
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
