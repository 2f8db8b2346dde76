"""Cells of a map by pixel: exact whole numbers, which add up over blocks of cells in any order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray
    from scipy import sparse

# Pixels per side of the finest histogram, and of the means of genes and numbers.
SIDE, MEANS_SIDE = 512, 128
# Positions are 16-bit numbers: a pixel is made of their first bits.
_STEPS = 65_536
_MARGIN = 0.01  # of the side, around the cells
# Counts of all levels of a column at most: their histograms are as fine as this allows.
_MAX_COUNTS = 2**26
# Values are summed as multiples of this, so that sums are exact.
FIXED_POINT = 1 / 1024


class Box(NamedTuple):
    """The square of a map that holds its cells: left, bottom and length of a side."""

    left: float
    bottom: float
    side: float


def box_of(xy: NDArray[np.floating[Any]]) -> Box:
    """Smallest square around cells with numbers, with a margin; without a cell the unit square."""
    known = xy[np.isfinite(xy).all(axis=1)].astype(np.float64)
    if not len(known):
        return Box(0.0, 0.0, 1.0)
    low, high = known.min(axis=0), known.max(axis=0)
    side = max(float((high - low).max()), 1e-6) * (1 + 2 * _MARGIN)
    left, bottom = (low + high) / 2 - side / 2
    return Box(float(left), float(bottom), side)


def positions(xy: NDArray[np.floating[Any]], box: Box) -> NDArray[np.uint16]:
    """Cells ``[n, 2]`` as steps from the lower left of the box; cells outside lie on its border."""
    steps = (xy.astype(np.float64) - (box.left, box.bottom)) / box.side * _STEPS
    return np.nan_to_num(steps).clip(0, _STEPS - 1).astype(np.uint16)


def pixels(coordinates: NDArray[np.uint16], side: int) -> NDArray[np.int64]:
    """Pixel of each position; rows from the bottom, ``side`` (a power of two) pixels each."""
    shift = 16 - (side.bit_length() - 1)
    at = (coordinates >> shift).astype(np.int64)
    return at[:, 1] * side + at[:, 0]


def side_for(n_levels: int) -> int:
    """Pixels per side of the histograms of a column with this many levels."""
    side = SIDE
    while side > 1 and n_levels * side**2 > _MAX_COUNTS:
        side //= 2
    return side


class SparseCounts(NamedTuple):
    """Numbers of cells that are not zero."""

    keys: NDArray[np.int64]  # ascending: level * side**2 + pixel
    counts: NDArray[np.int64]  # cells of this level in this pixel


def count_levels(
    parts: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]], n_levels: int, n_pixels: int
) -> SparseCounts:
    """Cells by level (-1: none) and pixel, of parts that have each cell's pixel and level."""
    counts = np.zeros(n_levels * n_pixels, np.uint32)  # at most _MAX_COUNTS
    for pixel, codes in parts:
        is_known = codes >= 0
        np.add.at(counts, codes[is_known] * n_pixels + pixel[is_known], np.uint32(1))
    keys = np.flatnonzero(counts)
    return SparseCounts(keys, counts[keys].astype(np.int64))


def add_by_pixel(sums: NDArray[np.int64], x: sparse.csr_matrix, pixel: NDArray[np.int64]) -> None:
    """Add values ``[n, n_columns]`` to the sums of their pixels in multiples of ``FIXED_POINT``."""
    whole = np.rint(x.data.astype(np.float64) / FIXED_POINT).astype(np.int64)
    row = np.repeat(pixel, np.diff(x.indptr))
    np.add.at(sums.reshape(-1), row * sums.shape[1] + x.indices, whole)
