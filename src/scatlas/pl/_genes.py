"""Which genes are highly variable, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator

from scatlas.errors import InputError
from scatlas.pl._style import BLUE, GREY, INK, figure, plate_ticks, short, styled

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@styled
def hvg_overlap(hvg: Mapping[str, Collection[str]], *, min_plates: int | None = None) -> Figure:
    """Highly variable genes that plates share, pair by pair, and on how many plates each is.

    Parameters
    ----------
    hvg
        Highly variable genes of each plate.
    min_plates
        Plates a gene must be highly variable on to enter the consensus; those genes are blue.

    Raises
    ------
    InputError
        When there is no plate.
    """
    if not hvg:
        msg = "there is no plate to draw: give the highly variable genes of at least one"
        raise InputError(msg)
    names = list(hvg)
    sets = [set(genes) for genes in hvg.values()]
    shared = np.array([[len(a & b) for b in sets] for a in sets], np.int64)
    side = 1.6 + max(2.4, 0.46 * len(names))
    made = figure(side + 4.2, max(3.6, side))
    heat, bars = made.subplots(1, 2, width_ratios=[side, 3.8])
    _heat_map(heat, names, shared)
    _on_plates(bars, sets, min_plates)
    return made


def _heat_map(ax: Axes, names: list[str], shared: np.ndarray) -> None:
    between = ~np.eye(len(names), dtype=bool)
    # A plate shares all genes with itself: left out of the colours, or they would show only that.
    coloured = np.ma.masked_array(shared, ~between)
    low = shared[between].min() if between.any() else 0
    high = shared[between].max() if between.any() else 1
    # Far enough below the least that differences of a few genes do not look like much.
    bottom = max(0, 1.75 * low - high)
    top = max(1, 1.05 * high)
    ax.set_facecolor("#efefef")
    ax.imshow(coloured, cmap="Blues", vmin=bottom, vmax=top)
    size = 8 if len(names) <= 10 else 6.5 if len(names) <= 16 else 5
    dark = bottom + 0.55 * (top - bottom)
    for (i, j), n in np.ndenumerate(shared):
        colour = "white" if i != j and n > dark else INK
        ax.text(j, i, f"{n}", ha="center", va="center", fontsize=size, color=colour)
    plate_ticks(ax, names)
    if len(names) > 5:
        for label in ax.get_xticklabels():
            label.set(rotation=40, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(names)), [short(name, 32) for name in names])
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    ax.set_title("highly variable genes that two plates share")


def _on_plates(ax: Axes, sets: list[set[str]], min_plates: int | None) -> None:
    times: dict[str, int] = {}
    for genes in sets:
        for gene in genes:
            times[gene] = times.get(gene, 0) + 1
    plates = np.arange(1, len(sets) + 1)
    n_genes = np.bincount(list(times.values()) or [0], minlength=len(sets) + 1)[1:]
    taken = plates >= (min_plates or 1)
    ax.bar(plates, n_genes, color=np.where(taken, BLUE, GREY), width=0.74)
    for k, n in zip(plates, n_genes, strict=True):
        ax.annotate(f"{n:,}", (k, n), (0, 2), textcoords="offset points", ha="center", fontsize=7)
    ax.set_ylim(0, max(1, n_genes.max()) * 1.12)
    if len(sets) <= 20:
        ax.set_xticks(plates)
    else:
        ax.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}"))
    ax.set_xlabel("plates on which a gene is highly variable")
    ax.set_ylabel("genes")
    if min_plates is None:
        ax.set_title("genes by number of plates")
    else:
        word = "plate" if min_plates == 1 else "plates"
        ax.set_title(f"{n_genes[taken].sum():,} genes on at least {min_plates} {word}")
