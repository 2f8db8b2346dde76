"""Cells with places on the map: all of ``atlas.zarr``, or the sample of ``umap.h5ad``."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from anndata.io import read_elem

from scatlas import blocks
from scatlas.errors import InputError
from scatlas.io import read_matrix
from scatlas.io.files.local_zarr import open_with_zarr_python
from scatlas.io.tables.column import Column

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pandas as pd
    from numpy.typing import NDArray
    from scipy import sparse

    from scatlas.io.files.local_zarr import StoredGroup


@dataclass(frozen=True)
class MapCells:
    """A store of cells with ``obsm['X_umap']``: ``atlas.zarr`` or ``umap.h5ad``."""

    path: Path

    @contextmanager
    def open(self) -> Iterator[StoredGroup]:
        """Root group of the store."""
        if self.is_sample:
            with h5py.File(self.path, "r") as file:
                yield file
        else:
            yield open_with_zarr_python(self.path)

    @property
    def is_sample(self) -> bool:
        """Whether the store is the sample."""
        return self.path.suffix == ".h5ad"

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        with self.open() as root:
            return int(root["obsm/X_umap"].shape[0])

    def names(self, rows: NDArray[np.int64]) -> NDArray[np.object_]:
        """Names of some cells, in order."""
        with self.open() as root:
            column = self._column(root, root["obs"].attrs["_index"])
            return np.asarray(column.take(rows), dtype=object)

    def coordinates(self, lo: int, hi: int, *, key: str = "X_umap") -> NDArray[np.float32]:
        """Places of the cells of some rows, ``[n, 2]``."""
        with self.open() as root:
            return np.asarray(root[f"obsm/{key}"][lo:hi])[:, :2]

    def has_coordinates(self, key: str) -> bool:
        """Whether the cells have such places, too."""
        with self.open() as root:
            return key in root["obsm"]

    @property
    def columns(self) -> list[str]:
        """Columns of obs that are numbers, text or categories."""
        with self.open() as root:
            names = root["obs"].attrs["column-order"]
            return [name for name in names if Column.find(self.path, root["obs"], name)]

    def values(self, name: str, lo: int, hi: int) -> Any:
        """Values of a column of some rows, as pandas keeps them."""
        with self.open() as root:
            return self._column(root, name).array(lo, hi)

    def categories(self, name: str) -> list[str] | None:
        """Categories of a column as text; None if it has none."""
        with self.open() as root:
            column = self._column(root, name)
            return column.categories.astype(str).tolist() if column.kind == "categorical" else None

    def var(self) -> pd.DataFrame:
        """Table of the genes."""
        with self.open() as root:
            return read_elem(root["var"])

    def rows_of(self, plate: str) -> tuple[int, int]:
        """First row of a plate and the row after its last; equal if it has no cell."""
        return self.rows_by_plate().get(plate, (0, 0))

    def rows_by_plate(self) -> dict[str, tuple[int, int]]:
        """First row of each plate and the row after its last; cells of a plate must be together."""
        rows: dict[str, tuple[int, int]] = {}
        with self.open() as root:
            column = self._column(root, "plate")
            is_categorical = column.kind == "categorical"
            for lo, hi in column.spans(wide=True):
                plates = column.values(lo, hi) if is_categorical else column.text(lo, hi)
                starts = np.flatnonzero(np.append(True, plates[1:] != plates[:-1])).tolist()
                for start, end in zip(starts, [*starts[1:], hi - lo], strict=True):
                    if is_categorical and plates[start] < 0:
                        continue
                    value = plates[start]
                    plate = str(column.categories[value] if is_categorical else value)
                    first, last = rows.get(plate, (lo + start, lo + start))
                    if last != lo + start:
                        msg = (
                            f"{self.path}: the cells of plate {plate!r} are not together: build it "
                            "again"
                        )
                        raise InputError(msg)
                    rows[plate] = first, lo + end
        return rows

    def expression(
        self, lo: int, hi: int, genes: NDArray[np.int64], **sizes: Any
    ) -> Iterator[sparse.csr_matrix]:
        """Log-normalised values of some genes, block by block of the rows."""
        x, _ = read_matrix(self.path, **sizes)
        yield from blocks.stream(x[lo:hi], lambda block: block[:, genes])

    def _column(self, root: StoredGroup, name: str) -> Column:
        return Column.open(self.path, root["obs"], name)
