"""Which genes are highly variable, and where; and which genes mark groups of cells."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from scatlas.errors import InputError
from scatlas.pl._style import (
    BLUE,
    GREY,
    INK,
    MANY_PLATES,
    MAX_LETTERS,
    figure,
    plate_ticks,
    short_names,
    styled,
    unusual_plates,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

# Figures of markers.
_MAX_GENES = 80  # of a figure; then each group has fewer
_LARGEST_DOT = 9.0  # points
_SHARES = (0.25, 0.5, 0.75, 1.0)


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
    dark = 0.55 * _heat_map(ax, shared).get_clim()[1]
    size = 8 if len(names) <= 10 else 6.5 if len(names) <= 16 else 5
    for (i, j), n in np.ndenumerate(shared):
        colour = "white" if i != j and n > dark else INK
        ax.text(j, i, f"{n}", ha="center", va="center", fontsize=size, color=colour)
    plate_ticks(ax, names, slanted=len(names) > 5)
    ax.set_yticks(range(len(names)), short_names(names, MAX_LETTERS))
    return made


@styled
def genes_by_plates(
    hvg: Mapping[str, Collection[str]],
    chosen: Collection[str] | None = None,
    *,
    n_also: int = 0,
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
        Genes of the atlas by their ranks; all by default.
    n_also
        Further genes of the atlas, which ``consensus.also`` names; in the title alone.

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
    ax.yaxis.set_major_formatter("{x:,.0f}")
    ax.set_xlim(0.4, n_plates + 0.6)
    ax.set_xlabel("plates on which a gene is highly variable")
    ax.set_ylabel("genes")
    also = f"; {n_also:,} more by name" if n_also else ""
    ax.set_title(_title(n_genes, n_chosen) + also)
    made.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return made


def _title(n_genes: np.ndarray, n_chosen: np.ndarray) -> str:
    """Title: the number of genes of the atlas, and on how many plates they are variable."""
    if not n_chosen.any():
        return "no gene in the atlas"
    lowest = int(np.flatnonzero(n_chosen)[0])
    text = f"{n_chosen.sum():,} {'gene' if n_chosen.sum() == 1 else 'genes'} in the atlas"
    plates, is_last = _count_plates(lowest + 1), n_chosen.size == lowest + 1
    if n_chosen[lowest] < n_genes[lowest]:
        some = f"{n_chosen[lowest]:,} of the {n_genes[lowest]:,} variable on {plates}"
        return f"{text}: {some}{'' if is_last else ', and all on more'}"
    return f"{text}, variable on {plates}{'' if is_last else ' or more'}"


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


def _heat_map(ax: Axes, shared: np.ndarray) -> AxesImage:
    # A plate shares all genes with itself, which would take up the range of the colours.
    coloured = np.ma.masked_array(shared, np.eye(len(shared), dtype=bool))
    # From none to all genes of a plate, so that plates that agree look alike.
    top = max(1, shared.max())
    ax.set_facecolor("#efefef")
    image = ax.imshow(coloured, cmap="Blues", vmin=0, vmax=top, interpolation="nearest")
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
    image = _heat_map(ax, shared[np.ix_(order, order)])
    made.colorbar(image, ax=ax, shrink=0.6, label="genes")
    mean = (shared.sum(axis=1) - own) / (len(names) - 1)
    rank, short = np.argsort(order), short_names(names, MAX_LETTERS)
    odd = sorted(unusual_plates(mean, low_only=True), key=lambda i: rank[i])
    ax.set_yticks(rank[odd], [short[i] for i in odd])
    ax.set_xticks([])
    ax.set_xlabel(f"{len(names)} plates, similar ones side by side")
    return made


@styled
def marker_dots(
    mean: pd.DataFrame, share: pd.DataFrame, markers: pd.DataFrame, *, n_genes: int = 3
) -> Figure:
    """Mean and share of cells of the first markers, in each group.

    The colour of a dot is the mean of the gene in the group, its area the share of its cells with
    a count.

    Parameters
    ----------
    mean, share
        Tables [groups x genes] of numbers; shares from 0 to 1. The picture has their order, without
        groups that have no markers.
    markers
        ``group`` and ``names`` (the gene) of the markers, the best of a group first.
    n_genes
        Number of markers per group; fewer where they would be more than 80 genes.

    Raises
    ------
    InputError
        There is no marker, or the tables lack a group or gene.
    """
    groups, genes = _chosen(mean, share, markers, n_genes)
    made, ax = draw_dots(mean.loc[groups, genes], share.loc[groups, genes])
    ax.set_title("markers: mean (colour) and share of cells with a count (area)")
    return made


def draw_dots(
    mean: pd.DataFrame, share: pd.DataFrame, label: str = "mean of log(1 + x)"
) -> tuple[Figure, Axes]:
    """Dot plot of tables [groups x genes]: the mean as colour, the share as area."""
    made, ax = _canvas(list(mean.index), list(mean.columns))
    # Flat, because a row of three numbers would be read as one colour.
    values, shares = (table.to_numpy(np.float64).ravel() for table in (mean, share))
    x, y = np.meshgrid(np.arange(mean.shape[1]), np.arange(mean.shape[0]))
    scale = Normalize(0, float(values.max()) or 1.0)
    ax.scatter(
        x.ravel(), y.ravel(), s=shares * _LARGEST_DOT**2, c=values, cmap="Blues", norm=scale,
        edgecolors=GREY, linewidths=0.3,
    )  # fmt: skip
    ax.set_ylim(mean.shape[0] - 0.5, -0.5)
    made.colorbar(ScalarMappable(scale, "Blues"), ax=ax, shrink=0.6, label=label)
    dots = [
        Line2D([], [], marker="o", linestyle="", color=GREY, markersize=_LARGEST_DOT * part**0.5)
        for part in _SHARES
    ]
    names = [f"{part:.0%}" for part in _SHARES]
    made.legend(dots, names, loc="outside lower center", ncols=len(dots))
    return made, ax


@styled
def marker_heat_map(mean: pd.DataFrame, markers: pd.DataFrame, *, n_genes: int = 10) -> Figure:
    """Means of the first markers in each group, beside the group with the highest.

    The colour is the ratio to the highest group of the gene, of means turned back from the
    logarithm, as in the fold changes of the table: a group at half the colour has half the mean,
    also where there are two groups.

    Parameters
    ----------
    mean, markers, n_genes
        As for :func:`marker_dots`.

    Raises
    ------
    InputError
        As :func:`marker_dots`.
    """
    groups, genes = _chosen(mean, mean, markers, n_genes)
    values = np.expm1(mean.loc[groups, genes].to_numpy(np.float64))
    high = values.max(axis=0)
    scaled = values / np.where(high > 0, high, 1.0)
    made, ax = _canvas(groups, genes)
    image = ax.imshow(scaled, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    ax.grid(visible=False)
    ax.set_title("means of the markers, as shares of the highest group of each gene")
    made.colorbar(image, ax=ax, shrink=0.6, label="share of the highest group's mean")
    return made


def _chosen(
    mean: pd.DataFrame, share: pd.DataFrame, markers: pd.DataFrame, n_genes: int
) -> tuple[list[str], list[str]]:
    """Groups and genes of the picture: each gene at the first group that it marks."""
    names = set(markers["group"])
    groups = [group for group in mean.index if group in names]
    if not groups:
        raise InputError("there is no marker gene to draw: give the markers of at least one group")
    per_group = max(1, min(n_genes, _MAX_GENES // len(groups)))
    best = markers.groupby("group", sort=False).head(per_group)
    by_group = best.groupby("group", sort=False)["names"]
    genes = list(dict.fromkeys(gene for group in groups for gene in by_group.get_group(group)))
    for table in (mean, share):
        if missing := [*set(genes).difference(table.columns)]:
            msg = f"the means lack the marker gene {min(missing)!r}: give those of all markers"
            raise InputError(msg)
    return groups, genes


def _canvas(groups: list[str], genes: list[str]) -> tuple[Figure, Axes]:
    """Figure with a row for each group and a column for each gene."""
    made = figure(2.6 + max(2.0, 0.15 * len(genes)), 1.9 + 0.21 * len(groups))
    ax = made.subplots()
    ax.set_xticks(range(len(genes)), short_names(genes, 18), rotation=90, size=7)
    ax.set_yticks(range(len(groups)), short_names(groups, MAX_LETTERS))
    ax.set_xlim(-0.5, len(genes) - 0.5)
    ax.tick_params(length=0, colors=INK)
    ax.grid(visible=False)
    return made, ax
