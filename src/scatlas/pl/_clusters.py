"""Which clusters the cells of each plate are in, and where their types are unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from natsort import natsorted
from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering
from scipy.spatial.distance import pdist

from scatlas.errors import InputError
from scatlas.pl._style import (
    GREY,
    INK,
    MANY_PLATES,
    MAX_LETTERS,
    figure,
    plate_ticks,
    short_names,
    styled,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMED_PLATES = 100
_NAMED_CLUSTERS = 120  # of the shares of unknown cells
_N_HIGHEST = 8  # named ones of more


@styled
def cluster_shares(n_cells: pd.DataFrame) -> Figure:
    """Share of each plate's cells in each cluster, similar plates side by side.

    Up to 100 plates are named. The highest hundredth of the shares has one colour.

    Parameters
    ----------
    n_cells
        Table [clusters x plates] of numbers of cells.

    Raises
    ------
    InputError
        There is no plate or no cluster.
    """
    if not n_cells.size:
        raise InputError("there is no plate or no cluster to draw: give the cells of at least one")
    n_cells = n_cells.loc[natsorted(n_cells.index)]
    counts = n_cells.to_numpy(np.float64).T
    shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    if len(shares) > 1:
        # Hellinger's distance, for which small shares count, too.
        distance = pdist(np.sqrt(shares))
        order = leaves_list(optimal_leaf_ordering(linkage(distance, "average"), distance))
        shares, n_cells = shares[order], n_cells.iloc[:, order]
    n_plates, n_clusters = shares.shape
    named = n_plates <= _NAMED_PLATES
    # Names have 0.11 inches at least, which a line of 7 points takes.
    width = max(2.4, min(9.0, 0.24 * n_clusters), 0.11 * n_clusters)
    clusters = short_names(map(str, n_cells.index), MAX_LETTERS)
    below = 1.2 + 0.06 * max(map(len, clusters))
    made = figure(3.2 + width, below + (0.14 * n_plates if named else 6.0))
    ax = made.subplots()
    top = max(1.0, float(np.percentile(shares, 99)))
    image = ax.imshow(
        shares, cmap="Blues", vmin=0, vmax=top, aspect="auto", interpolation="nearest"
    )
    names = short_names(map(str, n_cells.columns), MAX_LETTERS) if named else []
    ax.set_yticks(range(len(names)), names, fontsize=7)
    ax.set_xticks(range(n_clusters), clusters, rotation=90, fontsize=7)
    ax.set(xlabel="cluster", ylabel="" if named else f"{n_plates} plates")
    ax.tick_params(length=0)
    ax.grid(visible=False)
    ax.set_title("share of each plate's cells in each cluster")
    made.colorbar(image, ax=ax, shrink=0.6, label="% of the plate's cells", extend="max")
    return made


@styled
def unknown_shares(clusters: pd.Series, plates: pd.Series, *, whole: float) -> Figure:
    """Share of the cells whose type is unknown, of each cluster and of each plate.

    More than 120 clusters or 30 plates are sorted, and the eight with the highest shares are named.

    Parameters
    ----------
    clusters, plates
        Shares from 0 to 1, by name, in the order of the picture.
    whole
        The share of all cells, as a dashed line.

    Raises
    ------
    InputError
        There is no plate or no cluster.
    """
    if clusters.empty or plates.empty:
        raise InputError("there is no share of unknown cells to draw: give at least one of each")
    few = (clusters, _NAMED_CLUSTERS), (plates, MANY_PLATES)
    # Names have 0.11 inches at least, which a line of 7 points takes.
    made = figure(1.0 + max(5.4, 0.11 * min(len(clusters), _NAMED_CLUSTERS)), 6.4)
    axes = made.subplots(2, 1)
    for ax, (shares, most), what in zip(axes, few, ("cluster", "plate"), strict=True):
        _draw_shares(ax, 100 * shares, most, what)
        ax.axhline(100 * whole, color=INK, linewidth=1, linestyle="--")
        ax.set_title(f"cells of unknown type by {what} (dashed: {100 * whole:.1f}% of all cells)")
        ax.set_ylabel(f"% of the {what}'s cells")
    made.align_ylabels(axes)
    return made


def _draw_shares(ax: Axes, shares: pd.Series, most: int, what: str) -> None:
    """Bars of shares in per cent, with their names or those of the highest."""
    many = len(shares) > most
    shares = shares.sort_values(ascending=False, kind="stable") if many else shares
    names = short_names(map(str, shares.index), MAX_LETTERS)
    first = int(many)  # sorted ones have numbers from 1 in place of names
    ax.bar(range(first, len(names) + first), shares, 1.0 if many else 0.74, color=GREY)
    ax.set_xlim(first - 0.6, len(names) + first - 0.4)
    ax.set_ylim(0, max(1.0, 1.08 * float(shares.max())))
    if not many:
        plate_ticks(ax, names)
        return
    ax.set_xlabel(f"{len(names):,} {what}s, sorted by this share")
    highest = zip(names[:_N_HIGHEST], shares, strict=False)
    text = "\n".join(f"{name}  {share:.0f}%" for name, share in highest if share > 0)
    ground = {"facecolor": "white", "alpha": 0.8, "linewidth": 0}
    at = ax.transAxes
    ax.text(0.995, 0.98, text, ha="right", va="top", fontsize=7, bbox=ground, transform=at)
