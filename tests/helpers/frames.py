"""Compare tables of different versions of pandas, and convert tables for AnnData."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from scatlas.io.tables.encodings import as_text, storable_names, text_notice

if TYPE_CHECKING:
    from collections.abc import Callable


def text_as_object(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with text as object, because pandas 2 and 3 use different dtypes for text."""
    frame = frame.copy()
    for name, column in frame.items():
        if pd.api.types.is_string_dtype(column.dtype):
            frame[name] = pd.Series(list(column), frame.index, object)
    frame.index = pd.Index(list(frame.index), dtype=object, name=frame.index.name)
    return frame


def assert_same_frame(actual: pd.DataFrame, expected: pd.DataFrame, **options: Any) -> None:
    """Check for equality except the dtype of text."""
    pd.testing.assert_frame_equal(text_as_object(actual), text_as_object(expected), **options)


def writable(frame: pd.DataFrame, name: str, notify: Callable[[str], None]) -> pd.DataFrame:
    """Convert columns and names of ``obs`` or ``var`` that AnnData cannot write, with notices."""
    new = frame.copy(deep=False)
    for column in frame.columns:
        text = as_text(frame[column])
        if text is not None:
            notify(text_notice(name, column, frame[column].dtype))
            new[column] = text
    names = storable_names(frame.columns, name, notify)
    return new[list(names)].rename(columns=names)
