"""Columns of any kind as codes of their distinct values, a range of rows at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scatlas.io.tables.column import Column


@dataclass(frozen=True)
class ColumnCodes:
    """A column as codes of its distinct values, whose ``names`` are categories in their own order
    (also those that no row has), or other values in ascending order.
    """

    column: Column
    names: list[str]
    _values: pd.Index | None  # None: the column stores codes itself

    @classmethod
    def open(cls, column: Column, *, most: int | None = None) -> ColumnCodes | None:
        """Find the distinct values, for which other columns than categories are read once; None if
        such a column has more than ``most`` values.
        """
        if column.kind == "categorical":
            return cls(column, column.categories.astype(str).tolist(), None)
        found = pd.Index([], dtype=column.dtype)
        for lo, hi in column.spans(wide=True):
            values = column.values(lo, hi)[~column.gaps(lo, hi)]
            found = found.append(pd.Index(pd.unique(values))).unique()
            if most is not None and len(found) > most:
                return None
        found = found.sort_values()
        return cls(column, found.astype(str).tolist(), found)

    def read(self, lo: int, hi: int) -> NDArray[np.int64]:
        """Codes of rows ``lo`` to ``hi``, int64; -1 where there is no value."""
        values = self.column.values(lo, hi)
        if self._values is None:
            return values.astype(np.int64)
        codes = self._values.get_indexer(values).astype(np.int64)
        codes[self.column.gaps(lo, hi)] = -1
        return codes
