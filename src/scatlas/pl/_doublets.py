"""Doublet scores of cells and of simulated doublets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.errors import InputError
from scatlas.pl._style import (
    BLUE,
    GREY,
    INK,
    MAX_LETTERS,
    ORANGE,
    OUTLINE,
    figure,
    short_names,
    styled,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS, _MAX_CAPTURES = 4, 24


@styled
def doublet_scores(captures: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Histograms of the scores of each capture's cells and simulated doublets.

    With more than 24 captures those with the most cells are drawn, in their order.

    Parameters
    ----------
    captures
        By name: ``n_cells``, ``n_doublets``, ``threshold`` (None: none was found) and
        ``histogram`` with the counts ``observed`` and ``simulated`` of bins of equal width from
        0 to 1.

    Raises
    ------
    InputError
        When there is no capture.
    """
    if not captures:
        raise InputError("there is no capture to draw: give the scores of at least one")
    largest = sorted(captures, key=lambda name: -captures[name]["n_cells"])[:_MAX_CAPTURES]
    shown = [name for name in captures if name in largest]
    columns = min(_COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    made = figure(0.6 + 2.7 * columns, 0.8 + 2.1 * rows)
    axes = made.subplots(rows, columns, sharex=True, squeeze=False)
    for ax in axes.flat[len(shown) :]:
        ax.set_axis_off()
    titles = short_names(shown, MAX_LETTERS)
    for ax, name, title in zip(axes.flat, shown, titles, strict=False):
        _histograms(ax, captures[name])
        ax.set_title(title, fontsize=8)  # up to the next panel
    for ax in axes[-1]:
        ax.set_xlabel("doublet score")
    for ax in axes[:, 0]:
        ax.set_ylabel("share of cells")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside upper left", ncols=3)
    return made


def _histograms(ax: Axes, capture: Mapping[str, Any]) -> None:
    last = 0
    for kind, label, colour in (
        ("observed", "cells", GREY),
        ("simulated", "simulated doublets", BLUE),
    ):
        counts = np.asarray(capture["histogram"][kind], np.float64)
        edges = np.linspace(0, 1, counts.size + 1)
        last = max(last, int(np.flatnonzero(counts).max(initial=0)) + 1)
        share = np.sqrt(counts / max(counts.sum(), 1))
        ax.stairs(share, edges, color=colour, label=label, fill=kind == "observed")
    threshold = capture["threshold"]
    # The same line in each panel, so that the first has it for the legend.
    ax.axvline(
        np.nan if threshold is None else threshold,
        color=ORANGE,
        linestyle="--",
        linewidth=1,
        label="threshold",
    )
    n_bins = len(capture["histogram"]["observed"])
    ax.set_xlim(0, min(1, max(0.2, 1.1 * last / n_bins)))
    ticks = np.array([0.001, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8])
    top = 1.07 * ax.get_ylim()[1]  # room for the words
    ax.set_ylim(top=top)
    ticks = ticks[np.sqrt(ticks) <= top]
    ax.set_yticks(np.sqrt(ticks), [f"{tick:g}" for tick in ticks])
    share = 100 * capture["n_doublets"] / max(1, capture["n_cells"])
    words = "no threshold" if threshold is None else f"{share:.1f}% doublets"
    ax.text(
        0.97,
        0.97,
        words,
        transform=ax.transAxes,
        ha="right",
        va="top",
        color=INK,
        fontsize=8,
        path_effects=OUTLINE,
    )
