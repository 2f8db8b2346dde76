"""How much of the variance the components hold, of the atlas and of new plates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from scatlas.errors import InputError
from scatlas.pl._style import BLUE, GREY, INK, ORANGE, figure, plate_ticks, styled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike


@styled
def pca_scree(variance_ratio: ArrayLike) -> Figure:
    """Share of the variance of each component (log scale), and their running sum.

    Parameters
    ----------
    variance_ratio
        Float [components], each between 0 and 1, in descending order.

    Raises
    ------
    InputError
        When there is no component.
    """
    ratio = np.asarray(variance_ratio, np.float64)
    if ratio.size == 0:
        raise InputError("there is no component to draw: variance_ratio is empty")
    made = figure(8.4, 3.4)
    scree, running = made.subplots(1, 2)
    components = np.arange(1, ratio.size + 1)
    marker = "o" if ratio.size <= 60 else None
    look = {"color": BLUE, "linewidth": 1.3, "marker": marker, "markersize": 3}

    positive = ratio > 0  # a log scale cannot show a component without variance
    scree.plot(components[positive], 100 * ratio[positive], **look)
    scree.set_yscale("log")
    narrow = ratio[positive].size and np.ptp(np.log10(ratio[positive])) < 2.5
    scree.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if narrow else (1,)))
    scree.yaxis.set_major_formatter("{x:g}%")
    scree.yaxis.set_minor_formatter(NullFormatter())
    scree.set_title("variance of each component")

    total = 100 * np.cumsum(ratio)
    running.plot(components, total, **look)
    running.set_ylim(0, min(100, 1.12 * total[-1]) or 1)
    running.yaxis.set_major_formatter("{x:g}%")
    running.set_title(f"{ratio.size} components hold {total[-1]:.1f}% of the variance")
    half = int(np.searchsorted(total, total[-1] / 2))
    running.plot([half + 1] * 2, [0, total[half]], color=ORANGE, linewidth=1, linestyle=(0, (4, 2)))
    running.annotate(
        f"at least half of this in the first {half + 1}" if half else "at least half in the first",
        (half + 1, total[half]),
        (7, -3),
        textcoords="offset points",
        color=ORANGE,
        fontsize=8,
        va="top",
    )
    for ax in (scree, running):
        ax.set_xlabel("component")
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.set_xlim(0, ratio.size + 1)
    return made


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
    at_old = np.linspace(-0.25, 0.25, known.size) if known.size > 1 else np.zeros(known.size)
    ax.plot(at_old, 100 * known, "o", color=GREY, markersize=4, label="plate of the atlas")
    shares = np.array([*plates.values()], np.float64)
    at_new = np.arange(1, shares.size + 1)
    low = shares < smallest
    ax.plot(at_new[~low], 100 * shares[~low], "o", color=BLUE, label="new plate")
    if low.any():
        label = "new plate, below the line"
        ax.plot(at_new[low], 100 * shares[low], "o", color=ORANGE, label=label)
    if np.isfinite(smallest):
        ax.axhline(100 * smallest, color=INK, linewidth=1, linestyle=(0, (4, 2)))
    plate_ticks(ax, [f"atlas ({known.size:,})", *plates])
    ax.set_xlim(-0.6, shares.size + 0.6)
    top = np.nanmax([*known, *shares, 0.01])
    ax.set_ylim(0, 112 * top)
    ax.yaxis.set_major_formatter("{x:g}%")
    ax.set_title("variance that the atlas's components hold")
    made.legend(loc="outside lower left", ncols=3, handletextpad=0.1)
    return made
