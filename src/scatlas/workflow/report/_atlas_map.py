"""The map of all cells of an atlas, read in ranges of rows."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING

import anndata as ad
import numpy as np
import pandas as pd
from natsort import natsorted

from scatlas import pl
from scatlas.io.files.local_zarr import open_with_zarr_python
from scatlas.io.tables.column import Column, ColumnCodes

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

# Up to this many cells are drawn as points.
MOST_POINTS = 200_000
# Integers of more values measure cells; text of more has no use as colours.
_MOST_NAMES = 10_000
_MOST_INTEGERS = 76


class AtlasMap:
    """Coordinates and ``obs`` columns of all cells of an ``atlas.zarr`` with ``obsm['X_umap']``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        root = open_with_zarr_python(path)
        self._root = root
        self._obs, self._xy = root["obs"], root["obsm/X_umap"]
        self.n_cells: int = self._xy.shape[0]
        self.columns: list[str] = list(self._obs.attrs["column-order"])

    @cached_property
    def clusters(self) -> list[str]:
        """Names of the clusters."""
        found = self._codes("leiden")
        assert found is not None
        return found.names

    @cached_property
    def n_sample(self) -> int:
        """Cells with which the map was computed; all others were projected."""
        return int(self._root["uns/map/n_sample"][()])

    def can_colour(self, column: str) -> bool:
        """Whether the atlas has a column, with numbers or not too many values."""
        if column not in self.columns:
            return False
        found = self._column(column)
        if found.kind in ("number", "nullable") or self._codes(column) is not None:
            return True
        logger.warning(
            "obs[%r] has more than %s values: no picture shows it", column, f"{_MOST_NAMES:,}"
        )
        return False

    def picture(self, color: str) -> Figure:
        """Draw the map: points, or the density of very many cells."""
        low = color == "leiden_share"  # low values are the remarkable ones
        column = self._column(color)
        if self.n_cells <= MOST_POINTS:
            obs = pd.DataFrame({color: column.take()}, index=np.arange(self.n_cells).astype(str))
            cells = ad.AnnData(obs=obs, obsm={"X_umap": self._xy[:]})
            return pl.umap(cells, color, lowest_on_top=low)
        codes = None if column.dtype.kind == "f" else self._codes(color)
        is_integer = column.kind in ("number", "nullable") and column.dtype.kind in "iu"
        if codes is None or (is_integer and len(codes.names) > _MOST_INTEGERS):

            def read(lo: int, hi: int) -> tuple[NDArray[np.float32], NDArray[np.generic]]:
                values = column.values(lo, hi).astype(np.float64)
                values[column.gaps(lo, hi)] = np.nan
                return self._xy[lo:hi], values

            return pl.umap_density(read, self.n_cells, color, low=low)
        found, (names, number) = codes, _names_in_use(codes)
        return pl.umap_density(
            lambda lo, hi: (self._xy[lo:hi], number[found.read(lo, hi)]),
            self.n_cells,
            color,
            names=names,
        )

    def n_values(self, color: str) -> int | None:
        """Number of values of a column; None if it measures cells."""
        column = self._column(color)
        codes = None if column.dtype.kind == "f" else self._codes(color)
        return None if codes is None else len(codes.names)

    def crosstab(self, column: str) -> pd.DataFrame:
        """Cells of each cluster by the values of a column, which has some 10,000 at most."""
        leiden, other = self._codes("leiden"), self._codes(column)
        assert leiden is not None
        assert other is not None
        shape = len(leiden.names), len(other.names) + 1  # the last: no value
        counts = np.zeros(shape[0] * shape[1], np.int64)
        for lo, hi in leiden.column.spans(wide=True):
            pair = leiden.read(lo, hi) * shape[1] + other.read(lo, hi) % shape[1]
            counts += np.bincount(pair, minlength=counts.size)
        table = pd.DataFrame(counts.reshape(shape), leiden.names, [*other.names, "no value"])
        return table.loc[:, table.any()]

    def _column(self, name: str) -> Column:
        return Column.open(self._path, self._obs, name)

    def _codes(self, name: str) -> ColumnCodes | None:
        return ColumnCodes.open(self._column(name), most=_MOST_NAMES)


def _names_in_use(codes: ColumnCodes) -> tuple[list[str], NDArray[np.int64]]:
    """Names that cells have, as `pl.umap` orders them, and the new code of each old one."""
    sizes = np.zeros(len(codes.names) + 1, np.int64)  # the last: no value
    for lo, hi in codes.column.spans(wide=True):
        sizes += np.bincount(codes.read(lo, hi) % len(sizes), minlength=len(sizes))
    used = [name for name, size in zip(codes.names, sizes[:-1], strict=True) if size]
    names = natsorted(used) if used == sorted(used) else used
    place = {name: i for i, name in enumerate(names)}
    return names, np.array([*(place.get(name, -1) for name in codes.names), -1])
