"""New plates on an atlas: where their cells lie, and what the atlas's components hold of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from scatlas.errors import InputError
from scatlas.pl._style import BLUE, GREY, INK, ORANGE, figure, plate_ticks, short, styled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

_COLUMNS = 3
_MAX_PLATES = 12
_SIDE = 2.9  # inches per map


@styled
def new_cells(
    atlas: NDArray[np.floating],
    plates: Mapping[str, tuple[NDArray[np.floating], NDArray[np.bool_]]],
) -> Figure:
    """Cells of new plates over the map of the atlas, one map per plate.

    Of more than 12 plates, those with the largest share of cells unlike the atlas are drawn.

    Parameters
    ----------
    atlas
        Float [cells x 2]: map of the atlas, drawn in grey.
    plates
        By plate, the same of its cells, and which of them are unlike the atlas, bool [cells].

    Raises
    ------
    InputError
        There is no plate.
    """
    if not plates:
        raise InputError("there is no plate to draw: give at least one")
    names = sorted(plates, key=lambda name: -plates[name][1].mean())[:_MAX_PLATES]
    names = [name for name in plates if name in names]
    n_columns = min(_COLUMNS, len(names))
    n_rows = -(-len(names) // n_columns)
    made = figure(_SIDE * n_columns, (_SIDE + 0.3) * n_rows + 0.3)
    grid = made.subplots(n_rows, n_columns, squeeze=False, sharex=True, sharey=True).flat
    order = np.random.default_rng(0)
    for ax, name in zip(grid, names, strict=False):
        xy, unlike = plates[name]
        _points(ax, atlas, GREY)
        shuffled = order.permutation(len(xy))
        colour = np.where(unlike, ORANGE, BLUE)[shuffled]
        _points(ax, xy[shuffled], colour)
        ax.set(xticks=[], yticks=[])
        ax.set_box_aspect(1)
        ax.grid(visible=False)
        ax.set_title(f"{short(name)}: {len(xy):,} cells,\n{100 * unlike.mean():.1f}% unlike")
    for ax in list(grid)[len(names) :]:
        ax.set_axis_off()
    colours = {"atlas": GREY, "new, like the atlas": BLUE, "new, unlike the atlas": ORANGE}
    handles = [
        Line2D([], [], marker="o", linestyle="", markersize=4, color=colour, label=label)
        for label, colour in colours.items()
    ]
    made.legend(handles=handles, loc="outside lower left", ncols=3, handletextpad=0.1)
    return made


def _points(ax: Axes, xy: NDArray[np.floating], colour: str | NDArray[np.str_]) -> None:
    area = float(np.clip(20_000 / max(1, len(xy)), 0.2, 6))
    x, y = np.asarray(xy)[:, :2].T
    ax.scatter(x, y, s=area, c=colour, linewidths=0, rasterized=True)


@styled
def held_variance(
    atlas: Mapping[str, float], plates: Mapping[str, float], smallest: float
) -> Figure:
    """Share of the variance of each plate that the atlas's components hold.

    Parameters
    ----------
    atlas
        Share, 0 to 1, by plate of the atlas; NaN where there is none.
    plates
        The same of the new plates.
    smallest
        Share below which a plate asks for new components.

    Raises
    ------
    InputError
        There is no new plate.
    """
    if not plates:
        raise InputError("there is no plate to draw: give at least one")
    made = figure(max(4.4, min(10, 2.6 + 0.5 * len(plates))), 3.4)
    ax = made.subplots()
    known = np.array([*atlas.values()], np.float64)
    # Plates of the atlas side by side in the first column, in their order.
    at = np.linspace(-0.25, 0.25, known.size) if known.size > 1 else np.zeros(known.size)
    ax.plot(at, 100 * known, "o", color=GREY, markersize=4, label="plate of the atlas")
    shares = np.array([*plates.values()], np.float64)
    places = np.arange(1, shares.size + 1)
    low = shares < smallest
    ax.plot(places[~low], 100 * shares[~low], "o", color=BLUE, label="new plate")
    if low.any():
        label = "new plate, below the line"
        ax.plot(places[low], 100 * shares[low], "o", color=ORANGE, label=label)
    if np.isfinite(smallest):
        ax.axhline(100 * smallest, color=INK, linewidth=1, linestyle=(0, (4, 2)))
    plate_ticks(ax, [f"atlas ({known.size:,})", *plates])
    ax.set_xlim(-0.6, shares.size + 0.6)
    top = np.nanmax([*known, *shares, 0.01])
    ax.set_ylim(0, 112 * top)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}%"))
    ax.set_title("variance that the atlas's components hold")
    made.legend(loc="outside lower left", ncols=3, handletextpad=0.1)
    return made
