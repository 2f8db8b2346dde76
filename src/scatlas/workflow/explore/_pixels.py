"""Pixels of one plate, which the page adds up: cells by level, sums of genes and numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import h5py
import numpy as np
from anndata.io import read_elem, write_elem
from scipy import sparse

from scatlas.io import atomic_path
from scatlas.io.files.hdf5_elements import create_hdf5
from scatlas.io.files.read_errors import reading
from scatlas.matrix.map_pixels import (
    FIXED_POINT,
    MEANS_SIDE,
    NO_COUNTS,
    SIDE,
    SparseCounts,
    add_counts,
    box_of,
    count_levels,
    pixels,
    positions,
    sum_by_pixel,
)
from scatlas.workflow.explore._choose import N_CODES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from scatlas.workflow.explore._cells import MapCells
    from scatlas.workflow.explore._choose import PageColumn

_CELLS_AT_ONCE = 2**18
_GZIP = {"compression": "gzip", "compression_opts": 1}


class PlatePixels(NamedTuple):
    """Pixels of a plate, or of several."""

    n_cells: int
    cells: SparseCounts  # by pixel, SIDE per side
    # By column of categories: cells by level and pixel, PageColumn.side per side.
    levels: dict[str, SparseCounts]
    # int64 [MEANS_SIDE**2, n]: sums of the genes in multiples of FIXED_POINT, then of each column
    # of numbers the sum of its codes and the cells with a number.
    sums: sparse.csr_matrix


def count_plate(
    cells: MapCells,
    rows: tuple[int, int],
    sample: MapCells,
    columns: Sequence[PageColumn],
    genes: Sequence[str],
    **sizes: Any,
) -> PlatePixels:
    """Count the cells of a plate by pixel of the box around the sample.

    ``rows`` are the first row of the plate and the row after its last; ``sizes`` are options of
    :func:`scatlas.io.read_matrix`.
    """
    lo, hi = rows
    box = box_of(sample.coordinates(0, sample.n_cells))
    places = np.empty((hi - lo, 2), np.uint16)
    for first in range(lo, hi, _CELLS_AT_ONCE):
        last = min(first + _CELLS_AT_ONCE, hi)
        places[first - lo : last - lo] = positions(cells.coordinates(first, last), box)
    coarse = pixels(places, MEANS_SIDE)
    n_pixels = MEANS_SIDE**2
    levels, sums = {}, []
    place = cells.var().index.get_indexer(list(genes))
    # Blocks of SciPy's sums are added in the order of the rows; whole numbers need no order.
    of_genes = sparse.csr_matrix((n_pixels, len(genes)), dtype=np.int64)
    first = 0
    if hi > lo and len(genes):
        for block in cells.expression(lo, hi, place, **sizes):
            part = coarse[first : first + block.shape[0]]
            of_genes = of_genes + sum_by_pixel(block, part, n_pixels)
            first += block.shape[0]
    sums.append(of_genes)
    for column in columns:
        codes = codes_of(cells, column, lo, hi)
        if column.kind == "category":
            pixel, n = pixels(places, column.side), column.side**2
            levels[column.name] = count_levels(pixel, codes, len(column.levels), n)
        else:
            is_known = codes < N_CODES
            values = np.stack([np.where(is_known, codes, 0), is_known], axis=1)
            sums.append(sum_by_pixel(values * FIXED_POINT, coarse, n_pixels))
    everywhere = count_levels(pixels(places, SIDE), np.zeros(hi - lo, np.int64), 1, SIDE**2)
    joined = sparse.hstack(sums, format="csr")
    return PlatePixels(hi - lo, everywhere, levels, joined)


def codes_of(cells: MapCells, column: PageColumn, lo: int, hi: int) -> NDArray[np.int64]:
    """Codes of a column of some rows, a part at a time: text takes much memory."""
    starts = range(lo, hi, _CELLS_AT_ONCE)
    parts = (cells.values(column.name, at, min(at + _CELLS_AT_ONCE, hi)) for at in starts)
    return np.concatenate([np.empty(0, np.int64), *map(column.codes, parts)])


def write_pixels(path: Path, found: PlatePixels) -> None:
    """Write the pixels of a plate as HDF5; atomic."""
    with atomic_path(path) as partial, create_hdf5(partial) as file:
        file.attrs["n_cells"] = found.n_cells
        _write_counts(file.create_group("cells"), found.cells)
        levels = file.create_group("levels")
        # A column may be called anything, a member of HDF5 may not.
        for i, counts in enumerate(found.levels.values()):
            _write_counts(levels.create_group(str(i)), counts)
        write_elem(file, "sums", found.sums, dataset_kwargs=_GZIP)


def _write_counts(group: h5py.Group, counts: SparseCounts) -> None:
    for name, values in counts._asdict().items():
        write_elem(group, name, values, dataset_kwargs=_GZIP)


def _read_counts(group: h5py.Group) -> SparseCounts:
    return SparseCounts(group["keys"][:], group["counts"][:])


def add_plates(paths: Iterable[Path], columns: Sequence[PageColumn]) -> PlatePixels:
    """Read and add the pixels of all plates."""
    names = [column.name for column in columns if column.kind == "category"]
    n_cells, everywhere = 0, NO_COUNTS
    # Plate by plate: all of them at once would take several times the memory.
    levels = dict.fromkeys(names, NO_COUNTS)
    sums: sparse.csr_matrix = 0
    for path in paths:
        with reading(str(path), "pixels"), h5py.File(path) as file:
            n_cells += int(file.attrs["n_cells"])
            everywhere = add_counts([everywhere, _read_counts(file["cells"])])
            for i, name in enumerate(names):
                levels[name] = add_counts([levels[name], _read_counts(file[f"levels/{i}"])])
            sums = sums + read_elem(file["sums"])
    return PlatePixels(n_cells, everywhere, levels, sums.tocsr())


def means_of(
    found: PlatePixels, n_genes: int
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Pixels with cells, and means there of genes ``[n, n_genes]`` and of codes of numbers."""
    cells = count_cells(found)
    used = np.flatnonzero(cells)
    sums = found.sums[used].toarray()
    genes = sums[:, :n_genes] * FIXED_POINT / cells[used, None]
    codes, known = sums[:, n_genes::2], sums[:, n_genes + 1 :: 2]
    return used, genes, np.where(known > 0, codes / np.maximum(known, 1), np.nan)


def count_cells(found: PlatePixels) -> NDArray[np.int64]:
    """Cells by pixel of the means."""
    step = SIDE // MEANS_SIDE
    row, column = np.divmod(found.cells.keys, SIDE)
    pixel = row // step * MEANS_SIDE + column // step
    out = np.zeros(MEANS_SIDE**2, np.int64)
    np.add.at(out, pixel, found.cells.counts)
    return out
