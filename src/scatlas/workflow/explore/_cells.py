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

    from scatlas.io.files.stored_nodes import StoredGroup


@dataclass(frozen=True)
class MapCells:
    """A store of cells with ``obsm['X_umap']``.

    Attributes
    ----------
    path
        ``atlas.zarr`` or ``umap.h5ad``.
    """

    path: Path

    @contextmanager
    def open(self) -> Iterator[StoredGroup]:
        """Root group of the store."""
        if self.path.suffix == ".h5ad":
            with h5py.File(self.path, "r") as file:
                yield file
        else:
            yield open_with_zarr_python(self.path)

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
        """First row of a plate and the row after its last; equal if it has no cell.

        Raises
        ------
        InputError
            The cells of the plate are not together.
        """
        with self.open() as root:
            column = self._column(root, "plate")
            found: list[NDArray[np.int64]] = []
            for lo, hi in column.spans(wide=True):
                if column.kind == "categorical":
                    is_plate = np.append(column.categories.astype(str) == plate, False)  # -1: none
                    is_here = is_plate[column.values(lo, hi)]
                else:
                    is_here = column.text(lo, hi) == plate
                found.append(lo + np.flatnonzero(is_here))
        rows = np.concatenate([np.empty(0, np.int64), *found])
        if not rows.size:
            return 0, 0
        first, last = int(rows[0]), int(rows[-1])
        if last - first + 1 != rows.size:
            msg = f"{self.path}: the cells of plate {plate!r} are not together: build it again"
            raise InputError(msg)
        return first, last + 1

    def expression(
        self, lo: int, hi: int, genes: NDArray[np.int64], **sizes: Any
    ) -> Iterator[sparse.csr_matrix]:
        """Log-normalised values of some genes, block by block of the rows."""
        x, _ = read_matrix(self.path, **sizes)
        yield from blocks.stream(x[lo:hi], lambda block: block[:, genes])

    def _column(self, root: StoredGroup, name: str) -> Column:
        return Column.open(self.path, root["obs"], name)
