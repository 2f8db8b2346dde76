"""Effects of conditions: how many genes each one changes, and which."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import PowerNorm

from scatlas.errors import InputError
from scatlas.pl._style import (
    BLUE,
    GREY,
    MAX_LETTERS,
    ORANGE,
    OUTLINE,
    figure,
    plate_ticks,
    short_names,
    styled,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

_MAX_ROWS = 60  # of conditions
_MAX_BESIDE = 12  # groups of two heat maps beside each other; of more, one is below the other
_N_NAMED = 10  # genes of a volcano
_FDR = 0.05
_MAX_COMPOUNDS = 12


@styled
def effect_strength(n_genes: pd.DataFrame, distances: pd.DataFrame | None = None) -> Figure:
    """Number of genes that each condition changes, strongest conditions first.

    Parameters
    ----------
    n_genes
        Table [conditions x groups] of numbers of genes, NaN where there is no comparison. The 60
        strongest conditions are drawn, by the sum of their groups.
    distances
        The same of E-distances from the control (:func:`scatlas.tl.edistance`), for a second heat
        map. Those below 0, where cells are no farther than by chance, are drawn as 0.

    Raises
    ------
    InputError
        There is no condition.
    """
    if not n_genes.size:
        raise InputError("there is no condition to draw: give effects of at least one")
    order = np.argsort(-n_genes.sum(axis=1).to_numpy(), kind="stable")[:_MAX_ROWS]
    n_genes = n_genes.iloc[order]
    maps = [("genes changed", "genes (FDR below 5%)", 10.0, n_genes)]
    if distances is not None and distances.notna().any(axis=None):
        distances = distances.reindex_like(n_genes).clip(lower=0)
        maps.append(("distance from the control", "E-distance", 1e-9, distances))
    rows, columns = (short_names(map(str, names), MAX_LETTERS) for names in n_genes.axes)
    wide = 0.07 * max(map(len, rows))
    one = 1.6 + max(1.6, 0.3 * len(columns))
    high = 1.6 + 0.17 * len(rows)
    shape = (1, len(maps)) if len(columns) <= _MAX_BESIDE else (len(maps), 1)
    made = figure(wide + shape[1] * one, shape[0] * high)
    axes = made.subplots(*shape, sharey=True, squeeze=False).ravel()
    for ax, (title, label, least, table) in zip(axes, maps, strict=True):
        _heat_map(made, ax, table.to_numpy(np.float64), least, label)
        plate_ticks(ax, list(map(str, n_genes.columns)), slanted=len(columns) > 1)
        ax.set_title(title)
    axes[0].set_yticks(range(len(rows)), rows)
    return made


def _heat_map(made: Figure, ax: Axes, values: NDArray[np.float64], least: float, bar: str) -> None:
    ax.set_facecolor("#efefef")
    top = max(least, float(np.nanmax(values, initial=0)))
    image = ax.imshow(
        values, cmap="Blues", norm=PowerNorm(0.5, 0, top), aspect="auto", interpolation="nearest"
    )  # fmt: skip
    if values.size <= 300:
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                text = f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"
                colour = "white" if value > 0.35 * top else "#333333"
                ax.text(column, row, text, ha="center", va="center", size=7, color=colour)
    ax.tick_params(length=0)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    made.colorbar(image, ax=ax, shrink=0.6, label=bar)


@styled
def volcano(table: pd.DataFrame, title: str = "") -> Figure:
    """Fold change of each gene beside its p-value; the genes with the lowest are named.

    Parameters
    ----------
    table
        Rows of :func:`scatlas.get.effects` for one condition.
    title
        What is compared.

    Raises
    ------
    InputError
        There is no gene.
    """
    if table.empty:
        raise InputError("there is no gene to draw: give the effects of one condition")
    change = table["log2_fold_change"].to_numpy(np.float64)
    p = np.maximum(table["p_value"].to_numpy(np.float64), np.finfo(np.float64).tiny)
    significant = table["fdr"].to_numpy(np.float64) < _FDR
    made = figure(5.2, 4.4)
    ax = made.subplots()
    ax.axvline(0, color=GREY, linewidth=0.8)
    colours = np.where(significant, np.where(change > 0, ORANGE, BLUE), GREY)
    ax.scatter(change, -np.log10(p), s=7, c=colours, linewidths=0, rasterized=True)
    first = np.argsort(p, kind="stable")[:_N_NAMED]
    limit, height = 1.3 * np.abs(change).max(), -np.log10(p.min())
    named: list[tuple[float, float]] = []
    for at in first[significant[first]]:
        side = 1 if change[at] > 0 else -1
        x, y = change[at] / limit, -np.log10(p[at]) / height
        if any(abs(x - a) < 0.25 and abs(y - b) < 0.03 for a, b in named):
            continue  # it would lie on another name
        named.append((x, y))
        ax.annotate(
            str(table["gene"].iloc[at]), (change[at], -np.log10(p[at])), (4 * side, 0),
            textcoords="offset points", ha="left" if side > 0 else "right", va="center",
            size=7, path_effects=OUTLINE,
        )  # fmt: skip
    ax.set_xlim(-limit, limit)
    ax.set_xlabel("log2 fold change to the control")
    ax.set_ylabel("-log10 p")
    up, down = int((significant & (change > 0)).sum()), int((significant & (change < 0)).sum())
    ax.set_title(f"{title}: {up} up, {down} down" if title else f"{up} up, {down} down")
    return made


@styled
def dose_response(table: pd.DataFrame, title: str = "") -> Figure:
    """Strips of the genes that each compound changes most, by dose.

    Parameters
    ----------
    table
        A row for each compound, dose and gene: ``compound``, ``dose`` (text, in its order),
        ``n_significant`` (genes that the dose changes), ``gene``, ``log2_fold_change``. The first
        12 compounds are drawn.
    title
        Cells that are compared, such as a cell line.

    Raises
    ------
    InputError
        There is no compound.
    """
    if table.empty:
        raise InputError("there is no dose to draw: give the effects of one compound or more")
    compounds = list(table["compound"].drop_duplicates()[:_MAX_COMPOUNDS])
    columns = min(3, len(compounds))
    rows = -(-len(compounds) // columns)
    made = figure(max(3.4, 2.7 * columns) + 0.8, 0.9 + 1.9 * rows)
    axes = made.subplots(rows, columns, squeeze=False)
    known = table["log2_fold_change"].abs()
    top = max(1.0, float(np.nanquantile(known, 0.98)) if known.notna().any() else 1.0)
    names = short_names(map(str, compounds), MAX_LETTERS)
    for ax, compound, name in zip(axes.flat, compounds, names, strict=False):
        own = table[table["compound"] == compound]
        wide = own.pivot_table(
            index="gene", columns="dose", values="log2_fold_change", sort=False, dropna=False
        )
        numbers = own.drop_duplicates("dose").set_index("dose")["n_significant"]
        ax.set_facecolor("#efefef")
        image = ax.imshow(
            wide.to_numpy(np.float64), cmap="RdBu_r", vmin=-top, vmax=top, aspect="auto",
            interpolation="nearest",
        )  # fmt: skip
        ticks = [f"{dose}\n{numbers[dose]:,} genes" for dose in wide]
        ax.set_xticks(range(wide.shape[1]), ticks, size=6 if wide.shape[1] < 5 else 4)
        ax.set_yticks(range(len(wide)), short_names(map(str, wide.index), 14), size=6)
        ax.tick_params(length=0)
        ax.grid(visible=False)
        ax.spines[:].set_visible(False)
        ax.set_title(name, fontsize=8)
    for ax in axes.flat[len(compounds) :]:
        ax.set_axis_off()
    made.colorbar(image, ax=axes, shrink=0.6, label="log2 fold change to the control")
    if title:
        made.suptitle(title, fontsize=10)
    return made
