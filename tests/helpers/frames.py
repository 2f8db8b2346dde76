"""Comparing tables that different versions of pandas hold differently, and mending whole ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from scatlas.io.tables.storable_columns import as_text, made_text, storable_names

if TYPE_CHECKING:
    from collections.abc import Callable


def plain(frame: pd.DataFrame) -> pd.DataFrame:
    """The same with text as object, which pandas 3 and 2 give different dtypes."""
    frame = frame.copy()
    for name, column in frame.items():
        if pd.api.types.is_string_dtype(column.dtype):
            frame[name] = pd.Series(list(column), frame.index, object)
    frame.index = pd.Index(list(frame.index), dtype=object, name=frame.index.name)
    return frame


def assert_same_frame(actual: pd.DataFrame, expected: pd.DataFrame, **options: Any) -> None:
    """Equal but for the dtype of text."""
    pd.testing.assert_frame_equal(plain(actual), plain(expected), **options)


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
        text = as_text(frame[column])
        if text is not None:
            notify(made_text(name, column, frame[column].dtype))
            new[column] = text
    names = storable_names(frame.columns, name, notify)
    return new[list(names)].rename(columns=names)
