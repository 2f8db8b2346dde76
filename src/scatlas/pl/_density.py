"""The map of very many cells, as the density of its pixels.

NumPy's bincount counts the cells of each pixel as datashader does, without further packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from matplotlib.colors import to_rgb

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


class Pixels(NamedTuple):
    """Cells by pixel."""

    counts: NDArray[np.int64]  # [PIXELS, PIXELS], the first row at the bottom
    sums: NDArray[np.float64]  # [PIXELS, PIXELS, n]: sums of n values per cell
    box: tuple[float, float, float, float]  # left, right, bottom and top of the picture


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
        Number of cells. They are read up to four times, 262,144 at a time.
    color
        Name of the column, for the title.
    names
        Names of the categories; None: the column has numbers.
    low
        Of numbers, give the brightest colours to the lowest.
    no_value
        Name of the cells without a category, which are grey.
    """
    xy, values = _sample(read, n_cells, 0 if names is None else len(names))
    if names is None:
        return _measure(read, n_cells, color, values.astype(np.float64), low=low)
    palette = colours(len(names))
    rgb = np.array([to_rgb(name) for name in [*palette, MISSING]])
    levels = np.rint(255 * rgb)  # whole numbers, whose sums are exact
    pixels = count_pixels(read, n_cells, lambda codes: levels[codes.astype(np.int64)])
    made, ax = empty_map()
    _show(ax, pixels, pixels.sums / np.maximum(pixels.counts, 1)[..., None] / 255)
    ax.set_title(title_of_categories(color, len(names), n_cells))
    codes = values.astype(np.int64)
    legend(ax, codes, names, label_clusters(ax, xy, codes, names), no_value)
    return made


def _measure(
    read: Read, n_cells: int, color: str, sample: NDArray[np.float64], *, low: bool
) -> Figure:
    def known(values: NDArray[np.generic]) -> NDArray[np.float64]:
        numbers = values.astype(np.float64)
        is_known = np.isfinite(numbers)
        return np.stack([np.where(is_known, numbers, 0), is_known], axis=1)

    pixels = count_pixels(read, n_cells, known)
    n_known = pixels.sums[..., 1]
    scale = colour_scale(sample[np.isfinite(sample)], low)
    rgb = scale.to_rgba(pixels.sums[..., 0] / np.maximum(n_known, 1))[..., :3]
    rgb[n_known == 0] = to_rgb(MISSING)
    made, ax = empty_map()
    _show(ax, pixels, rgb, faintest=1)  # else colours would not be those of the colour bar
    ax.set_title(f"{color}, mean of each pixel, {n_cells:,} cells")
    add_colour_bar(ax, scale)
    return made


def count_pixels(
    read: Read, n_cells: int, values_of: Callable[[NDArray[np.generic]], NDArray[np.float64]]
) -> Pixels:
    """Count cells by pixel, and sum the values of each, float ``[n, k]``."""
    low, high = np.full(2, np.inf), np.full(2, -np.inf)
    for xy, _ in _read_parts(read, n_cells):
        low, high = np.minimum(low, xy.min(axis=0)), np.maximum(high, xy.max(axis=0))
    side = np.maximum(high - low, 1e-12)
    low, high = low - _MARGIN * side, high + _MARGIN * side
    counts = np.zeros(PIXELS**2, np.int64)
    sums: NDArray[np.float64] | None = None
    for xy, column in _read_parts(read, n_cells):
        at = ((xy - low) / (high - low) * PIXELS).astype(np.int64).clip(0, PIXELS - 1)
        pixel = at[:, 1] * PIXELS + at[:, 0]
        counts += np.bincount(pixel, minlength=PIXELS**2)
        values = values_of(column)
        if sums is None:
            sums = np.zeros((PIXELS**2, values.shape[1]))
        for k in range(values.shape[1]):
            sums[:, k] += np.bincount(pixel, values[:, k], minlength=PIXELS**2)
    assert sums is not None
    return Pixels(
        counts.reshape(PIXELS, PIXELS),
        sums.reshape(PIXELS, PIXELS, -1),
        (float(low[0]), float(high[0]), float(low[1]), float(high[1])),
    )


def _show(
    ax: Axes, pixels: Pixels, rgb: NDArray[np.float64], *, faintest: float = _FAINTEST
) -> None:
    dense = np.log(np.maximum(np.percentile(pixels.counts[pixels.counts > 0], 99), 2))
    opacity = faintest + (1 - faintest) * np.log(np.maximum(pixels.counts, 1)) / dense
    alpha = np.where(pixels.counts > 0, opacity.clip(0, 1), 0)
    image = _spread(np.concatenate([rgb.clip(0, 1), alpha[..., None]], axis=2))
    ax.imshow(image, origin="lower", extent=pixels.box, aspect="auto", interpolation="nearest")


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


def _sample(
    read: Read, n_cells: int, n_names: int
) -> tuple[NDArray[np.float32], NDArray[np.generic]]:
    """Every n-th cell; of rare categories, more or all cells, so that they get their marks."""
    sizes = np.zeros(n_names + 1, np.int64)  # the last: no value
    for _, codes in _read_parts(read, n_cells) if n_names else ():
        sizes += np.bincount(codes.astype(np.int64) % (n_names + 1), minlength=n_names + 1)
    step = -(-n_cells // _SAMPLED)
    steps = np.clip(sizes // _MIN_SAMPLED, 1, step)
    parts, start = [], 0
    for xy, values in _read_parts(read, n_cells):
        rows = np.arange(start, start + len(xy))
        kept = rows % (steps[values.astype(np.int64)] if n_names else step) == 0
        parts.append((xy[kept], values[kept]))
        start += len(xy)
    return np.concatenate([xy for xy, _ in parts]), np.concatenate([v for _, v in parts])
