"""The map of very many cells, as the density of its pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from matplotlib.colors import to_rgb

from scatlas.kernels.build.numba_cache import njit
from scatlas.pl._style import colours, styled
from scatlas.pl._umap import (
    MISSING,
    add_colour_bar,
    colour_scale,
    empty_map,
    label_clusters,
    legend,
    title_of_categories,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    # Reads the rows from one to another: coordinates, and codes or numbers.
    Read = Callable[[int, int], tuple[NDArray[np.float32], NDArray[np.generic]]]

PIXELS = 700  # per side
_MARGIN = 0.02  # of the side
_CELLS_AT_ONCE = 2**18
_SAMPLED = 100_000  # cells that place the marks and bound the colours
_MIN_SAMPLED = 50  # of a category, or all its cells
# Opacity of a pixel with one cell: a rare group is still seen.
_FAINTEST = 0.45


class Survey(NamedTuple):
    """What one pass over the cells tells."""

    low: NDArray[np.float64]  # [2], the smallest coordinates, less a margin
    high: NDArray[np.float64]
    # One of this many cells is sampled: [n_names + 1], by category, the last of cells without one.
    steps: NDArray[np.int64]


class Pixels(NamedTuple):
    """Cells by pixel, and a sample of them."""

    counts: NDArray[np.int64]  # [PIXELS, PIXELS], the first row at the bottom
    sums: NDArray[np.float64]  # [PIXELS, PIXELS, n]: sums of n values per cell
    xy: NDArray[np.float32]  # of the sample, [n_sampled, 2]
    values: NDArray[np.generic]


@styled
def umap_density(
    read: Read,
    n_cells: int,
    color: str,
    *,
    names: list[str] | None = None,
    low: bool = False,
    no_value: str = "no value",
) -> Figure:
    """Draw cells on the map as the density of its pixels.

    A pixel has the mean colour of its cells, and is the more opaque the more cells it has (by the
    logarithm), so that rare groups are seen as well as large ones.

    Parameters
    ----------
    read
        Returns the cells from one row to another: coordinates, float ``[n, 2]``, and the values of
        the column: codes of ``names``, -1 where there is none; or numbers, NaN where there is none.
    n_cells
        Number of cells. They are read twice, 262,144 at a time.
    color
        Name of the column, for the title.
    names
        Names of the categories; None: the column has numbers.
    low
        Of numbers, give the brightest colours to the lowest.
    no_value
        Name of the cells without a category, which are grey.
    """
    seen = survey(read, n_cells, 0 if names is None else len(names))
    if names is None:
        return _measure(read, n_cells, color, seen, low=low)
    palette = colours(len(names))
    rgb = np.array([to_rgb(name) for name in [*palette, MISSING]])
    levels = np.rint(255 * rgb)  # whole numbers, whose sums are exact
    pixels = count_pixels(read, n_cells, seen, lambda codes: levels[codes.astype(np.int64)])
    made, ax = empty_map()
    _show(ax, seen, pixels, pixels.sums / np.maximum(pixels.counts, 1)[..., None] / 255)
    ax.set_title(title_of_categories(color, len(names), n_cells))
    codes = pixels.values.astype(np.int64)
    legend(ax, codes, names, label_clusters(ax, pixels.xy, codes, names), no_value)
    return made


def _measure(read: Read, n_cells: int, color: str, seen: Survey, *, low: bool) -> Figure:
    def known(values: NDArray[np.generic]) -> NDArray[np.float64]:
        numbers = values.astype(np.float64)
        is_known = np.isfinite(numbers)
        return np.stack([np.where(is_known, numbers, 0), is_known], axis=1)

    pixels = count_pixels(read, n_cells, seen, known)
    n_known, sample = pixels.sums[..., 1], pixels.values.astype(np.float64)
    scale = colour_scale(sample[np.isfinite(sample)], low)
    rgb = scale.to_rgba(pixels.sums[..., 0] / np.maximum(n_known, 1))[..., :3]
    rgb[n_known == 0] = to_rgb(MISSING)
    made, ax = empty_map()
    _show(ax, seen, pixels, rgb, faintest=1)  # else colours would not be those of the colour bar
    ax.set_title(f"{color}, mean of each pixel, {n_cells:,} cells")
    add_colour_bar(ax, scale)
    return made


def survey(read: Read, n_cells: int, n_names: int) -> Survey:
    """Box around the cells, and how many are sampled: every n-th; of rare categories more or all,
    so that they get their marks.
    """
    low, high = np.full(2, np.inf), np.full(2, -np.inf)
    sizes = np.zeros(n_names + 1, np.int64)
    for xy, codes in _read_parts(read, n_cells):
        by_axis = np.ascontiguousarray(xy.T)  # a hundred times as fast as over the rows of xy
        low, high = np.minimum(low, by_axis.min(axis=1)), np.maximum(high, by_axis.max(axis=1))
        if n_names:
            sizes += np.bincount(codes.astype(np.int64) + 1, minlength=n_names + 1)
    room = _MARGIN * np.maximum(high - low, 1e-12)
    step = -(-n_cells // _SAMPLED)
    steps = np.clip(np.roll(sizes, -1) // _MIN_SAMPLED, 1, step)
    return Survey(low - room, high + room, steps if n_names else np.array([step]))


def count_pixels(
    read: Read,
    n_cells: int,
    seen: Survey,
    values_of: Callable[[NDArray[np.generic]], NDArray[np.float64]],
) -> Pixels:
    """Count cells by pixel, sum the values of each, float ``[n, k]``, and sample cells."""
    counts = np.zeros(PIXELS**2, np.int64)
    sums = np.zeros((PIXELS**2, values_of(np.zeros(1, np.int64)).shape[1]))
    parts, row = [], 0
    for xy, column in _read_parts(read, n_cells):
        _add_to_pixels(xy, seen.low, seen.high, values_of(column), counts, sums)
        step = seen.steps[column.astype(np.int64)] if seen.steps.size > 1 else seen.steps
        kept = np.arange(row, row + len(xy)) % step == 0
        parts.append((xy[kept], column[kept]))
        row += len(xy)
    return Pixels(
        counts.reshape(PIXELS, PIXELS),
        sums.reshape(PIXELS, PIXELS, -1),
        np.concatenate([xy for xy, _ in parts]),
        np.concatenate([values for _, values in parts]),
    )


@njit(nogil=True, cache=True)
def _add_to_pixels(
    xy: NDArray[np.float32],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    values: NDArray[np.float64],
    counts: NDArray[np.int64],
    sums: NDArray[np.float64],
) -> None:
    """Add cells to their pixels: five times as fast as NumPy's bincount of each value."""
    for i in range(len(xy)):
        column = int((xy[i, 0] - low[0]) / (high[0] - low[0]) * PIXELS)
        row = int((xy[i, 1] - low[1]) / (high[1] - low[1]) * PIXELS)
        pixel = min(max(row, 0), PIXELS - 1) * PIXELS + min(max(column, 0), PIXELS - 1)
        counts[pixel] += 1
        for k in range(values.shape[1]):
            sums[pixel, k] += values[i, k]


def _show(
    ax: Axes,
    seen: Survey,
    pixels: Pixels,
    rgb: NDArray[np.float64],
    *,
    faintest: float = _FAINTEST,
) -> None:
    dense = np.log(np.maximum(np.percentile(pixels.counts[pixels.counts > 0], 99), 2))
    opacity = faintest + (1 - faintest) * np.log(np.maximum(pixels.counts, 1)) / dense
    alpha = np.where(pixels.counts > 0, opacity.clip(0, 1), 0)
    image = _spread(np.concatenate([rgb.clip(0, 1), alpha[..., None]], axis=2))
    (left, bottom), (right, top) = seen.low.tolist(), seen.high.tolist()
    box = (left, right, bottom, top)
    ax.imshow(image, origin="lower", extent=box, aspect="auto", interpolation="nearest")


def _spread(image: NDArray[np.float64]) -> NDArray[np.float64]:
    """Give empty pixels the mean of their neighbours with cells: one pixel alone is not seen."""
    filled = image[..., 3] > 0
    padded = np.pad(image * filled[..., None], ((1, 1), (1, 1), (0, 0)))
    beside = np.pad(filled.astype(np.float64), 1)
    side = len(image)
    shifts = [(i, j) for i in range(3) for j in range(3)]
    total = sum(padded[i : i + side, j : j + side] for i, j in shifts)
    n_filled = sum(beside[i : i + side, j : j + side] for i, j in shifts)
    return np.where(filled[..., None], image, total / np.maximum(n_filled, 1)[..., None])


def _read_parts(
    read: Read, n_cells: int
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.generic]]]:
    for start in range(0, n_cells, _CELLS_AT_ONCE):
        yield read(start, min(start + _CELLS_AT_ONCE, n_cells))
