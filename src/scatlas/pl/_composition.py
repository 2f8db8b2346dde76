"""How conditions change the shares of clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from natsort import natsorted

from scatlas.errors import InputError
from scatlas.pl._style import BLUE, GREY, INK, MAX_LETTERS, ORANGE, figure, short_names, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Panels beside each other and in all; dots below each other, in all panels.
_COLUMNS, _MAX_CONDITIONS, _MAX_DOTS = 4, 12, 80
_MAX_RATIO = 6.0  # log2
_FDR = 0.05
_KINDS = (
    (ORANGE, f"more cells than the control, FDR < {_FDR:g}"),
    (BLUE, "fewer cells"),
    (GREY, "no difference shown"),
)


@styled
def composition(table: pd.DataFrame) -> Figure:
    """Ratios of the shares of clusters to those in the control, with 95% intervals.

    A panel per condition, a row per cluster. Of more than 12 conditions, or 80 clusters (26 with
    more than 8 conditions), those with the smallest p-values are drawn. Ratios beyond 64 are drawn
    at the edge.

    Parameters
    ----------
    table
        Result of :func:`scatlas.tl.composition`, whose first two columns name the condition and the
        cluster.

    Raises
    ------
    InputError
        No row has an interval.
    """
    condition, cluster = table.columns[:2]
    known = table[table["p_value"].notna()]
    if not len(known):
        raise InputError(
            "no row of the table has an interval, for the reasons in its column 'reason': name "
            "replicates with more cells, or another control"
        )
    conditions = _strongest(known, condition, _MAX_CONDITIONS)
    columns = min(_COLUMNS, len(conditions))
    rows = -(-len(conditions) // columns)
    clusters = natsorted(_strongest(known, cluster, _MAX_DOTS // rows), key=str)
    drawn = known[known[condition].isin(conditions) & known[cluster].isin(clusters)]
    reach = float(np.clip(1.15 * drawn["log2_ratio"].abs().max(), 1.0, _MAX_RATIO))
    names = short_names(map(str, clusters), MAX_LETTERS)
    height = 0.9 + rows * (0.6 + 0.15 * max(4, len(clusters)))
    made = figure(1.4 + 0.06 * max(map(len, names)) + 2.1 * columns, height)
    axes = made.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for ax in axes.flat[len(conditions) :]:
        ax.set_axis_off()
    titles = short_names(map(str, conditions), MAX_LETTERS)
    for ax, name, title in zip(axes.flat, conditions, titles, strict=False):
        _panel(ax, drawn[drawn[condition] == name].set_index(cluster).reindex(clusters), reach)
        ax.set_title(title, fontsize=8)
        ax.tick_params(labelbottom=True)
    axes[0, 0].set(xlim=(-reach, reach), ylim=(len(clusters) - 0.5, -0.5))
    axes[0, 0].set_yticks(range(len(clusters)), names, fontsize=7)
    label = "log2 ratio of the share to the control's, 95% interval"
    for shown, column in ((conditions, condition), (clusters, cluster)):
        if len(shown) < (n := table[column].nunique()):
            label += f"\n{len(shown)} of {n} values of {column}"
    made.supxlabel(label, fontsize=8)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside upper left", ncols=3 if columns > 1 else 1)
    return made


def _strongest(known: pd.DataFrame, column: str, n: int) -> list[str]:
    """Values of a column with the smallest p-values, in the order of the table."""
    smallest = known.groupby(column, sort=False, observed=True)["p_value"].min()
    best = set(smallest.sort_values(kind="stable").index[:n])
    return [value for value in smallest.index if value in best]


def _panel(ax: Axes, rows: pd.DataFrame, reach: float) -> None:
    y, (low, ratio, high) = (
        np.arange(len(rows)),
        (rows[name].clip(-reach, reach).to_numpy() for name in ("ci_low", "log2_ratio", "ci_high")),
    )
    significant = (rows["fdr"] < _FDR).to_numpy()
    of_kind = significant & (ratio > 0), significant & (ratio < 0), ~significant
    ax.axvline(0, color=INK, linewidth=0.6)
    ax.tick_params(length=0)
    for (colour, label), at in zip(_KINDS, of_kind, strict=True):
        ax.hlines(y[at], low[at], high[at], color=colour, linewidth=1.2)
        ax.plot(ratio[at], y[at], "o", color=colour, markersize=3.5, label=label)
