"""What figures show of the cells of an AnnData, or of a file of which no more is read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from natsort import natsorted

from scatlas import blocks
from scatlas.columns import get_column, get_numbers, name_of_gaps
from scatlas.elements import check_finite_values, get_obsm, get_table, to_contiguous
from scatlas.errors import InputError
from scatlas.get import gene
from scatlas.io import open_tables
from scatlas.io.matrices.lazy import read_embedding

if TYPE_CHECKING:
    from typing import TypeAlias

    from anndata import AnnData

    Source: TypeAlias = AnnData | Path | str


class CellValues:
    """Columns of obs, genes and coordinates of all cells, none of which is kept."""

    def __init__(self, source: Source, layer: str | None = None) -> None:
        self._source, self._layer = source, layer

    def column(self, name: str, option: str) -> pd.Series:
        """Column of obs."""
        return get_column(self._obs(name), name, option)

    def _obs(self, name: str) -> pd.DataFrame:
        """Table of obs; of a file the column alone, or all names without cells if it lacks it."""
        if not isinstance(self._source, str | Path):
            return get_table(self._source, "obs")
        with open_tables(self._source) as (obs, _):
            if name not in obs.columns:
                return pd.DataFrame(columns=list(obs.columns))
            return obs.read([name], index=False)

    def values(self, name: str, option: str) -> pd.Series:
        """Column of obs, or gene where there is no such column."""
        obs = self._obs(name)
        if name in obs:
            return get_column(obs, name, option).infer_objects()
        try:
            found = gene(self._source, name, layer=self._layer)
            return pd.Series(found.astype(np.float64), name=name)  # few whole numbers are no names
        except InputError as error:
            there = ", ".join(map(str, obs.columns)) or "none"
            msg = f"obs has no column {name!r} ({option}), it has {there}; and {error}"
            raise InputError(msg) from error

    def name_of_gaps(self, name: str, values: list[str]) -> str:
        """What cells without a value of a column of obs are called."""
        return name_of_gaps(name, self._obs("").columns, values)

    def numbers(self, name: str, option: str) -> np.ndarray:
        """Numbers of such a column or gene, NaN for cells without a value."""
        values = self.values(name, option)
        return get_numbers(values.to_frame(), name, option).astype(np.float64, copy=False)

    def positions(self, basis: str) -> np.ndarray:
        """Where the cells lie on a map: two dimensions of an array of obsm, in the main memory."""
        if isinstance(self._source, str | Path):
            stored = read_embedding(self._source, basis)
        else:
            stored = get_obsm(self._source, basis, "basis", all_floats=True)
        xy = to_contiguous(blocks.to_memory(stored))
        check_finite_values(xy, basis)
        return np.asarray(xy)[:, :2]


def categories(column: pd.Series) -> tuple[np.ndarray, list[str]]:
    """Code of each cell (-1: missing) and the names, categories in their own order."""
    text = column.astype("string")
    names = sorted(text.dropna().unique().tolist())
    if isinstance(column.dtype, pd.CategoricalDtype):
        names = [str(c) for c in column.cat.remove_unused_categories().cat.categories]
    names = in_natural_order(names)
    codes = pd.Categorical(text.astype(object), categories=names).codes
    return np.asarray(codes, np.int64), names


def in_natural_order(names: list[str]) -> list[str]:
    """The names, sorted again if only pandas made their order: plate10 before plate9."""
    return natsorted(names) if names == sorted(names) else names
