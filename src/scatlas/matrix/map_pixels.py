"""Cells of a map by pixel: exact whole numbers, which add up over plates in any order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import sparse

if TYPE_CHECKING:
    from numpy.typing import NDArray

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


NO_COUNTS = SparseCounts(np.empty(0, np.int64), np.empty(0, np.int64))


def count_levels(
    pixel: NDArray[np.int64], codes: NDArray[np.integer[Any]], n_levels: int, n_pixels: int
) -> SparseCounts:
    """Cells by level and pixel; those with code -1 have no level."""
    is_known = codes >= 0
    keys = codes[is_known].astype(np.int64) * n_pixels + pixel[is_known]
    if keys.size * 8 < n_levels * n_pixels:  # few cells: sort them
        return SparseCounts(*np.unique(keys, return_counts=True))
    counts = np.bincount(keys, minlength=n_levels * n_pixels)
    found = np.flatnonzero(counts)
    return SparseCounts(found, counts[found])


def add_counts(parts: list[SparseCounts]) -> SparseCounts:
    """Sum of the counts of several plates."""
    parts = [part for part in parts if part.keys.size]
    if len(parts) < 2:  # as with one plate
        return parts[0] if parts else NO_COUNTS
    keys, place = np.unique(np.concatenate([part.keys for part in parts]), return_inverse=True)
    total = np.zeros(keys.size, np.int64)
    np.add.at(total, place, np.concatenate([part.counts for part in parts]))
    return SparseCounts(keys, total)


def sum_by_pixel(x: Any, pixel: NDArray[np.int64], n_pixels: int) -> sparse.csr_matrix:
    """Sums of the values of cells by pixel, exact, in multiples of ``FIXED_POINT``.

    ``x`` ``[n, n_columns]`` is CSR or dense; the result is int64 CSR ``[n_pixels, n_columns]``.
    """
    x = sparse.csr_matrix(x)
    whole = sparse.csr_matrix(
        (np.rint(x.data.astype(np.float64) / FIXED_POINT).astype(np.int64), x.indices, x.indptr),
        shape=x.shape,
    )
    ones = np.ones(pixel.size, np.int64)
    cells = sparse.csr_matrix((ones, (pixel, np.arange(pixel.size))), (n_pixels, pixel.size))
    sums = cells @ whole
    sums.sort_indices()
    return sums
