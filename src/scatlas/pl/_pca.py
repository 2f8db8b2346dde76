"""How much of the variance the components hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from scatlas.errors import InputError
from scatlas.pl._style import BLUE, ORANGE, figure, styled

if TYPE_CHECKING:
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
        msg = "there is no component to draw: variance_ratio is empty"
        raise InputError(msg)
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
    scree.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}%"))
    scree.yaxis.set_minor_formatter(NullFormatter())
    scree.set_title("variance of each component")

    total = 100 * np.cumsum(ratio)
    running.plot(components, total, **look)
    running.set_ylim(0, min(100, 1.12 * total[-1]) or 1)
    running.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}%"))
    running.set_title(f"{ratio.size} components hold {total[-1]:.1f}%")
    half = int(np.searchsorted(total, total[-1] / 2))
    running.plot([half + 1] * 2, [0, total[half]], color=ORANGE, linewidth=1, linestyle=(0, (4, 2)))
    running.annotate(
        f"half of it in {half + 1}",
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
