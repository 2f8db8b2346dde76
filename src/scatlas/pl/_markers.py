"""Marker genes of groups of cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.lines import Line2D

from scatlas.errors import InputError
from scatlas.pl._style import GREY, INK, figure, short, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_GENES = 80  # of a figure; then each group has fewer
_LARGEST_DOT = 9.0  # points
_SHARES = (0.25, 0.5, 0.75, 1.0)


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
    # Flat, because a row of three numbers would be read as one colour.
    values = mean.loc[groups, genes].to_numpy(np.float64).ravel()
    made, ax = _canvas(groups, genes)
    top = float(values.max()) or 1.0
    x, y = np.meshgrid(np.arange(len(genes)), np.arange(len(groups)))
    shares = share.loc[groups, genes].to_numpy(np.float64).ravel()
    colours = Normalize(0, top)
    ax.scatter(
        x.ravel(), y.ravel(), s=shares * _LARGEST_DOT**2, c=values, cmap="Blues", norm=colours,
        edgecolors=GREY, linewidths=0.3,
    )  # fmt: skip
    ax.set_ylim(len(groups) - 0.5, -0.5)
    ax.set_title("markers: mean (colour) and share of cells with a count (area)")
    made.colorbar(ScalarMappable(colours, "Blues"), ax=ax, shrink=0.6, label="mean of log(1 + x)")
    dots = [
        Line2D([], [], marker="o", linestyle="", color=GREY, markersize=_LARGEST_DOT * part**0.5)
        for part in _SHARES
    ]
    names = [f"{part:.0%}" for part in _SHARES]
    made.legend(dots, names, loc="outside lower center", ncols=len(dots))
    return made


@styled
def marker_heat_map(mean: pd.DataFrame, markers: pd.DataFrame, *, n_genes: int = 10) -> Figure:
    """Means of the first markers in each group, from 0 to 1 for each gene.

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
    values = mean.loc[groups, genes].to_numpy(np.float64)
    low, high = values.min(axis=0), values.max(axis=0)
    scaled = (values - low) / np.where(high > low, high - low, 1.0)
    made, ax = _canvas(groups, genes)
    image = ax.imshow(scaled, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    ax.grid(visible=False)
    ax.set_title("means of the markers, from the lowest to the highest group of each gene")
    made.colorbar(image, ax=ax, shrink=0.6, label="scaled mean")
    return made


def _chosen(
    mean: pd.DataFrame, share: pd.DataFrame, markers: pd.DataFrame, n_genes: int
) -> tuple[list[str], list[str]]:
    """Groups and genes of the picture: each gene at the first group that it marks."""
    names = set(markers["group"])
    groups = [group for group in mean.index if group in names]
    if not groups:
        msg = "there is no marker gene to draw: give the markers of at least one group"
        raise InputError(msg)
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
    ax.set_xticks(range(len(genes)), [short(gene, 16) for gene in genes], rotation=90, size=7)
    ax.set_yticks(range(len(groups)), [short(group, 32) for group in groups])
    ax.set_xlim(-0.5, len(genes) - 0.5)
    ax.tick_params(length=0, colors=INK)
    ax.grid(visible=False)
    return made, ax
