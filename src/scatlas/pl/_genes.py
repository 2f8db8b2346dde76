"""Which genes are highly variable, and where."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator

from scatlas.errors import InputError
from scatlas.pl._style import (
    BLUE,
    GREY,
    INK,
    MANY_PLATES,
    figure,
    plate_ticks,
    short,
    styled,
    unusual_plates,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


@styled
def hvg_overlap(hvg: Mapping[str, Collection[str]]) -> Figure:
    """Highly variable genes that plates share, pair by pair.

    With more than 30 plates similar ones stand side by side, colours take the place of numbers, and
    only plates that share unusually few genes with the others are named.

    Parameters
    ----------
    hvg
        Highly variable genes of each plate.

    Raises
    ------
    InputError
        When there is no plate.
    """
    _check_plates(hvg)
    names = list(hvg)
    shared = _shared_genes(list(hvg.values()))
    if len(names) > MANY_PLATES:
        return _clustered_heat_map(names, shared)
    side = 1.6 + max(2.4, 0.42 * len(names))
    made = figure(side, side)
    ax = made.subplots()
    colours = _colour_range(shared)
    _heat_map(ax, shared, colours)
    dark = colours @ (0.45, 0.55)
    size = 8 if len(names) <= 10 else 6.5 if len(names) <= 16 else 5
    for (i, j), n in np.ndenumerate(shared):
        colour = "white" if i != j and n > dark else INK
        ax.text(j, i, f"{n}", ha="center", va="center", fontsize=size, color=colour)
    plate_ticks(ax, names)
    if len(names) > 5:
        for label in ax.get_xticklabels():
            label.set(rotation=40, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(names)), [short(name, 32) for name in names])
    return made


@styled
def genes_by_plates(
    hvg: Mapping[str, Collection[str]], chosen: Collection[str] | None = None
) -> Figure:
    """On how many plates genes are highly variable.

    A bar counts the genes that are highly variable on exactly this number of plates, in blue those
    of the atlas. The line counts those of at least this number. With more than 30 plates there are
    no bars, and the area below the line is blue from where genes of the atlas begin.

    Parameters
    ----------
    hvg
        Highly variable genes of each plate.
    chosen
        Genes of the atlas; all by default.

    Raises
    ------
    InputError
        When there is no plate.
    """
    _check_plates(hvg)
    times = Counter(chain.from_iterable(map(set, hvg.values())))
    n_plates = len(hvg)
    plates = np.arange(1, n_plates + 1)
    n_genes = np.bincount([*times.values()], minlength=n_plates + 1)[1:]
    n_times = [times[gene] for gene in (times if chosen is None else chosen)]
    n_chosen = np.bincount(n_times, minlength=n_plates + 1)[1:]
    made = figure(7.2, 4.0)
    ax = made.subplots()
    at_least = np.cumsum(n_genes[::-1])[::-1]
    if n_plates > MANY_PLATES:
        lowest = np.flatnonzero(n_chosen)[0] if n_chosen.any() else n_plates
        ax.fill_between(plates, at_least, color=GREY, linewidth=0)
        ax.fill_between(
            plates[lowest:], at_least[lowest:], color=BLUE, linewidth=0, label="in the atlas"
        )
    else:
        ax.bar(plates, n_genes, color=GREY, width=0.74, label="on this number of plates")
        ax.bar(plates, n_chosen, color=BLUE, width=0.74, label="of these in the atlas")
    ax.plot(plates, at_least, color=INK, linewidth=1.2, label="on at least this number")
    if n_plates <= 20:
        ax.set_xticks(plates)
        for k, n in zip(plates, n_genes, strict=True):
            ax.annotate(f"{n:,}", (k, n), (0, 2), textcoords="offset points", ha="center", size=7)
        ax.plot(plates, at_least, "o", color=INK, markersize=3)
    ax.set_ylim(0, max(1, at_least.max()) * 1.12)
    if n_plates > 20:
        ax.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10], integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}"))
    ax.set_xlim(0.4, n_plates + 0.6)
    ax.set_xlabel("plates on which a gene is highly variable")
    ax.set_ylabel("genes")
    ax.set_title(_title(n_genes, n_chosen))
    made.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return made


def _title(n_genes: np.ndarray, n_chosen: np.ndarray) -> str:
    """Title: the number of genes of the atlas, and on how many plates they are variable."""
    if not n_chosen.any():
        return "no gene in the atlas"
    lowest = int(np.flatnonzero(n_chosen)[0])
    text = f"{n_chosen.sum():,} {'gene' if n_chosen.sum() == 1 else 'genes'} in the atlas"
    if n_chosen[lowest] < n_genes[lowest]:
        return (
            f"{text}: {n_chosen[lowest]:,} of {n_genes[lowest]:,} on {_count_plates(lowest + 1)}"
            + (", all on more" if n_chosen.size > lowest + 1 else "")
        )
    return f"{text}: all on at least {_count_plates(lowest + 1)}"


def _count_plates(n: int) -> str:
    return f"{n} plate" if n == 1 else f"{n} plates"


def _check_plates(hvg: Mapping[str, Collection[str]]) -> None:
    if not hvg:
        msg = "there is no plate to draw: give the highly variable genes of at least one"
        raise InputError(msg)


def _shared_genes(sets: list[Collection[str]]) -> np.ndarray:
    """Genes that each two plates share, int64 ``[n_plates, n_plates]``."""
    number = {gene: i for i, gene in enumerate(dict.fromkeys(chain.from_iterable(sets)))}
    member = np.zeros((len(sets), len(number)), np.float32)  # counts up to 2^24 are exact
    for row, genes in zip(member, sets, strict=True):
        row[[number[gene] for gene in genes]] = 1
    return (member @ member.T).astype(np.int64)


def _colour_range(shared: np.ndarray) -> np.ndarray:
    """Numbers of genes of the lightest and of the darkest colour."""
    between = shared[~np.eye(len(shared), dtype=bool)]
    low, high = (between.min(), between.max()) if between.size else (0, 1)
    # Far enough below the minimum that differences of a few genes look small.
    return np.array([max(0, 1.75 * low - high), max(1, 1.05 * high)])


def _heat_map(ax: Axes, shared: np.ndarray, colours: np.ndarray) -> AxesImage:
    # A plate shares all genes with itself, which would take up the range of the colours.
    coloured = np.ma.masked_array(shared, np.eye(len(shared), dtype=bool))
    bottom, top = colours
    ax.set_facecolor("#efefef")
    image = ax.imshow(coloured, cmap="Blues", vmin=bottom, vmax=top, interpolation="nearest")
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    ax.set_title("highly variable genes that two plates share")
    return image


def _clustered_heat_map(names: list[str], shared: np.ndarray) -> Figure:
    """Heat map of many plates, similar plates side by side."""
    from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering
    from scipy.spatial.distance import squareform

    own = np.diag(shared)
    union = own[:, None] + own - shared
    distance = squareform(1 - shared / np.maximum(union, 1), checks=False)
    order = leaves_list(optimal_leaf_ordering(linkage(distance, "average"), distance))
    made = figure(9.0, 7.4)
    ax = made.subplots()
    # Quantiles, so that a few unusual plates do not use up the colours.
    colours = np.quantile(shared[~np.eye(len(names), dtype=bool)], (0.1, 0.98))
    image = _heat_map(ax, shared[np.ix_(order, order)], colours)
    made.colorbar(image, ax=ax, shrink=0.6, label="genes", extend="both")
    mean = (shared.sum(axis=1) - own) / (len(names) - 1)
    rank = np.argsort(order)
    odd = sorted(unusual_plates(mean, low_only=True), key=lambda i: rank[i])
    ax.set_yticks(rank[odd], [short(names[i], 32) for i in odd])
    ax.set_xticks([])
    ax.set_xlabel(f"{len(names)} plates, similar ones side by side")
    return made
