"""Comparing tables that different versions of pandas hold differently."""

from __future__ import annotations

from typing import Any

import pandas as pd


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
