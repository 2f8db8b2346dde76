"""Cells of the map, all of ``atlas.zarr`` or the sample of ``umap.h5ad``, and their pixels."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import h5py
import numpy as np
import pandas as pd
from anndata.io import read_elem
from scipy import sparse

from scatlas import blocks
from scatlas.io import read_matrix
from scatlas.io.files.local_zarr import open_with_zarr_python
from scatlas.io.tables.column import Column
from scatlas.matrix.map_pixels import (
    FIXED_POINT,
    MEANS_SIDE,
    SIDE,
    SparseCounts,
    add_by_pixel,
    box_of,
    count_levels,
    pixels,
    positions,
)
from scatlas.workflow.explore._choose import N_CODES
from scatlas.workflow.sample import ATLAS_ROW

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from scatlas.io.files.local_zarr import StoredGroup
    from scatlas.matrix.measured_genes import MeasuredGenes
    from scatlas.workflow.explore._choose import PageColumn

_CELLS_AT_ONCE = 2**18


@dataclass(frozen=True)
class MapCells:
    """A store of cells with ``obsm['X_umap']``: ``atlas.zarr`` or ``umap.h5ad``."""

    path: Path

    @property
    def has_all(self) -> bool:
        """Whether this is the atlas, not its sample."""
        return self.path.suffix != ".h5ad"

    @contextmanager
    def open(self) -> Iterator[StoredGroup]:
        if self.has_all:
            yield self._root
        else:
            with h5py.File(self.path, "r") as file:
                yield file

    @cached_property
    def _root(self) -> StoredGroup:
        return open_with_zarr_python(self.path)

    @property
    def n_cells(self) -> int:
        with self.open() as root:
            return int(root["obsm/X_umap"].shape[0])

    def names(self, rows: NDArray[np.int64]) -> NDArray[np.object_]:
        """Names of some cells, in order."""
        with self.open() as root:
            column = self._column(root, root["obs"].attrs["_index"])
            return np.asarray(column.take(rows), dtype=object)

    def coordinates(self, rows: slice = slice(None), *, key: str = "X_umap") -> NDArray[np.float32]:
        """Coordinates of some rows, ``[n, 2]``."""
        with self.open() as root:
            return np.asarray(root[f"obsm/{key}"][rows])[:, :2]

    def has_coordinates(self, key: str) -> bool:
        """Whether the cells have such coordinates, too."""
        with self.open() as root:
            return key in root["obsm"]

    @property
    def columns(self) -> list[str]:
        """Columns of obs that are numbers, text or categories."""
        with self.open() as root:
            names = root["obs"].attrs["column-order"]
            return [name for name in names if Column.find(self.path, root["obs"], name)]

    def values(self, name: str) -> Any:
        """Values of a column, as pandas keeps them."""
        with self.open() as root:
            return self._column(root, name).array(0, self.n_cells)

    def categories(self, name: str) -> list[str] | None:
        """Categories of a column as text; None if it has none."""
        with self.open() as root:
            column = self._column(root, name)
            return column.categories.astype(str).tolist() if column.kind == "categorical" else None

    def var(self) -> pd.DataFrame:
        with self.open() as root:
            return read_elem(root["var"])

    def codes(self, column: PageColumn) -> Iterator[NDArray[np.int64]]:
        """Codes of a column, for each part of the cells."""
        with self.open() as root:
            values = self._column(root, column.name)
            for rows in self.row_ranges():
                yield column.codes(values.array(rows.start, rows.stop))

    def row_ranges(self) -> Iterator[slice]:
        """Rows of the parts that are read at once: text of many cells takes much memory."""
        n_cells = self.n_cells
        for lo in range(0, n_cells, _CELLS_AT_ONCE):
            yield slice(lo, min(lo + _CELLS_AT_ONCE, n_cells))

    def expression(self, genes: Sequence[str], **sizes: Any) -> Iterator[sparse.csr_matrix]:
        """Log-normalised values of some genes, by block of the rows; no block without genes."""
        if genes:
            columns = self.var().index.get_indexer(list(genes))
            x, _ = read_matrix(self.path, **sizes)
            yield from blocks.stream(x, lambda block: sparse.csr_matrix(block[:, columns]))

    def _column(self, root: StoredGroup, name: str) -> Column:
        return Column.open(self.path, root["obs"], name)


class MapPixels(NamedTuple):
    """Cells by pixel of the map; the means of genes and numbers have wider pixels."""

    cells: SparseCounts  # SIDE per side
    # By column of categories: cells by level and pixel, PageColumn.side per side.
    levels: dict[str, SparseCounts]
    wide_cells: NDArray[np.int64]  # [MEANS_SIDE**2]
    wide_pixel: NDArray[np.uint16]  # [n_cells], of each cell
    # By column of numbers, [2, MEANS_SIDE**2]: sums of the codes, and cells with a number.
    numbers: list[NDArray[np.int64]]


def count_pixels(cells: MapCells, sample: MapCells, columns: Sequence[PageColumn]) -> MapPixels:
    """Count the cells by pixel of the box around the sample, part by part."""
    box = box_of(sample.coordinates())
    steps = np.empty((cells.n_cells, 2), np.uint16)
    for rows in cells.row_ranges():
        steps[rows] = positions(cells.coordinates(rows), box)

    def pixel_parts(side: int) -> Iterator[NDArray[np.int64]]:
        return (pixels(steps[rows], side) for rows in cells.row_ranges())

    all_parts = ((pixel, np.zeros_like(pixel)) for pixel in pixel_parts(SIDE))
    everywhere = count_levels(all_parts, 1, SIDE**2)
    wide_pixel = np.empty(cells.n_cells, np.uint16)
    for rows, pixel in zip(cells.row_ranges(), pixel_parts(MEANS_SIDE), strict=True):
        wide_pixel[rows] = pixel
    levels, numbers = {}, []
    for column in columns:
        side = column.side if column.kind == "category" else MEANS_SIDE
        parts = zip(pixel_parts(side), cells.codes(column), strict=True)
        if column.kind == "category":
            levels[column.name] = count_levels(parts, len(column.levels) + 1, side**2)
        else:
            numbers.append(_sum_numbers(parts))
    return MapPixels(everywhere, levels, _sizes(wide_pixel), wide_pixel, numbers)


def _sizes(pixel: NDArray[np.uint16]) -> NDArray[np.int64]:
    """Cells of each wide pixel."""
    sizes = np.zeros(MEANS_SIDE**2, np.int64)
    for lo in range(0, pixel.size, _CELLS_AT_ONCE):
        sizes += np.bincount(pixel[lo : lo + _CELLS_AT_ONCE], minlength=sizes.size)
    return sizes


class GeneValues(NamedTuple):
    """Log-normalised values of the genes of the page."""

    means: NDArray[np.float64]  # of all cells, [n_genes, pixels of MEANS_SIDE that have cells]
    points: sparse.csc_matrix  # [n_points, n_genes]


def read_genes(
    cells: MapCells,
    sample: MapCells,
    genes: Sequence[str],
    pixel: NDArray[np.uint16],
    rows: NDArray[np.int64],
    measured: MeasuredGenes | None = None,
    **sizes: Any,
) -> GeneValues:
    """Read genes of the page: first those of the atlas, from the stores of the cells, then all
    others, in one pass over the counts of the plates. ``pixel`` is that of each cell, and
    ``rows`` of the sample are points; ``sizes`` are options of :func:`scatlas.io.read_matrix`.
    """
    names, atlas_rows = pd.Index(genes), sample.values(ATLAS_ROW)
    in_atlas = names.isin(sample.var().index)
    n_cells = _sizes(pixel)
    used = np.flatnonzero(n_cells)
    number = np.cumsum(n_cells > 0) - 1
    everything, nothing = slice(None), np.zeros(0, np.int64)
    own, others = list(names[in_atlas]), names[~in_atlas]
    # Blocks of cells, and which of their rows are cells of the map and points.
    streams: list[tuple[int, Iterable[Any], _Rows, _Rows]] = [
        (0, cells.expression(own, **sizes), _Rows(everything), _Rows(nothing)),
        (0, sample.expression(own, **sizes), _Rows(nothing), _Rows(rows)),
    ]
    if others.size:
        assert measured is not None
        on_map = everything if cells.has_all else atlas_rows
        blocks_of_plates = measured.blocks(others, **sizes)
        streams.append((1, blocks_of_plates, _Rows(on_map), _Rows(atlas_rows[rows])))
    sums = [np.zeros((used.size, n), np.int64) for n in (len(own), others.size)]
    points: list[list[sparse.csr_matrix]] = [[], []]
    for kind, stream, on_map, in_points in streams:
        first = 0
        for block in stream:
            part = on_map.take(block)
            last, first = first, first + part.shape[0]
            add_by_pixel(sums[kind], part, number[pixel[last:first]])
            points[kind].append(in_points.take(block))
    means = np.concatenate(sums, axis=1).T * FIXED_POINT / n_cells[used]
    empty = sparse.csc_matrix((rows.size, 0))
    parts = [sparse.vstack(blocks, format="csc") if blocks else empty for blocks in points]
    return GeneValues(means, sparse.hstack(parts, format="csc"))


class _Rows:
    """Rows of a matrix that comes in blocks, by ascending positions."""

    def __init__(self, wanted: slice | NDArray[np.int64]) -> None:
        self._wanted, self._first = wanted, 0

    def take(self, block: sparse.csr_matrix) -> sparse.csr_matrix:
        """The wanted rows of the next block."""
        if isinstance(self._wanted, slice):
            return block
        first, self._first = self._first, self._first + block.shape[0]
        lo, hi = np.searchsorted(self._wanted, [first, self._first])
        return block[self._wanted[lo:hi] - first]


def _sum_numbers(parts: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> NDArray[np.int64]:
    """Sums of the codes of numbers, and cells with a number, by pixel."""
    sums = np.zeros((2, MEANS_SIDE**2))  # whole numbers, far below 2**53
    for pixel, codes in parts:
        known = codes < N_CODES
        sums[0] += np.bincount(pixel[known], codes[known], minlength=MEANS_SIDE**2)
        sums[1] += np.bincount(pixel[known], minlength=MEANS_SIDE**2)
    return sums.astype(np.int64)
