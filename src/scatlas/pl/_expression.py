"""Chosen genes by group of cells, as dots and as violins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from scatlas.columns import as_names, check_groups
from scatlas.errors import InputError
from scatlas.pl._cell_values import CellValues, categories
from scatlas.pl._genes import draw_dots
from scatlas.pl._qc import QUANTILES, Counted, draw_middle, half_violin
from scatlas.pl._style import INK, MAX_LETTERS, colours, figure, plate_ticks, short_names, styled

if TYPE_CHECKING:
    from collections.abc import Collection

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from scatlas.pl._cell_values import Source

    Names = str | Collection[str]


@styled
def dotplot(
    adata: Source,
    var_names: Names | Mapping[str, Names],
    groupby: str,
    *,
    standard_scale: Literal["var", "group"] | None = None,
    layer: str | None = None,
) -> Figure:
    """Mean of genes in groups of cells (colour), and share of the cells with a value (area).

    The numbers are those of :func:`scanpy.pl.dotplot`. One gene at a time is in memory.

    Parameters
    ----------
    adata
        Annotated data, or path or address of a file, such as ``"results/atlas.zarr"``.
    var_names
        A gene or a list of genes; or the genes of each name of a mapping, with brackets.
    groupby
        Column of ``obs`` whose values are the groups; cells without a value are left out.
    standard_scale
        Bring the means of each gene (``"var"``) or of each group to the range from 0 to 1.
    layer
        Key of the layer to read in place of X.

    Raises
    ------
    InputError
        No such column or gene, or no name.

    Examples
    --------
    >>> sa.pl.dotplot("results/atlas.zarr", {"T": ["CD3D", "IL7R"], "B": ["MS4A1"]}, "leiden")
    """
    if standard_scale not in ("var", "group", None):
        raise InputError(f"standard_scale is {standard_scale!r}: use 'var', 'group' or None")
    cells = CellValues(adata, layer)
    codes, groups = _groups(cells, groupby)
    lists = var_names if isinstance(var_names, Mapping) else {"": var_names}
    brackets = {name: as_names(genes, "var_names") for name, genes in lists.items()}
    names = [gene for genes in brackets.values() for gene in genes]
    if not names:
        raise InputError("var_names is empty: name at least one gene")
    columns = {
        gene: _mean_and_share(cells, gene, codes, len(groups)) for gene in dict.fromkeys(names)
    }
    mean, share = np.stack([columns[gene] for gene in names], axis=-1)
    if standard_scale:
        axis = 0 if standard_scale == "var" else 1
        mean = mean - mean.min(axis=axis, keepdims=True)
        high = mean.max(axis=axis, keepdims=True)
        mean = mean / np.where(high > 0, high, 1)
    label = "scaled mean in the group" if standard_scale else "mean in the group"
    means, shares = (pd.DataFrame(values, groups, names) for values in (mean, share))
    made, ax = draw_dots(means, shares, label)
    ax.set_ylabel(groupby)
    if isinstance(var_names, Mapping):
        _draw_brackets(ax, brackets)
    return made


@styled
def violin(adata: Source, keys: Names, groupby: str, *, layer: str | None = None) -> Figure:
    """Distribution of genes, or of numbers of ``obs``, in groups of cells.

    A dot marks the median of a group, a bar its middle half. One gene at a time is in memory.

    Parameters
    ----------
    adata, groupby, layer
        As for :func:`dotplot`.
    keys
        Genes or columns of ``obs`` with numbers, each a row of violins.

    Raises
    ------
    InputError
        No such column or gene, a column without numbers, or no name.
    """
    cells = CellValues(adata, layer)
    codes, groups = _groups(cells, groupby)
    names = as_names(keys, "keys")
    if not names:
        raise InputError("keys is empty: name at least one gene or column of obs")
    below = 0.06 * max(map(len, short_names(groups, MAX_LETTERS)))
    width = min(15.0, max(3.6, 1.6 + 0.42 * len(groups)))
    made = figure(width, 0.8 + max(0.0, below - 0.5) + 1.5 * len(names))
    axes = made.subplots(len(names), 1, sharex=True, squeeze=False).ravel()
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], np.arange(len(groups) + 1))
    for ax, name, label in zip(axes, names, short_names(names, 24), strict=True):
        values = cells.numbers(name, "keys")[order]
        known = values[ends[0] :][np.isfinite(values[ends[0] :])]
        low, high = (known.min(), known.max()) if known.size else (0.0, 1.0)
        room = 0.03 * (high - low) or 0.5
        for i, colour in enumerate(colours(len(groups))):
            part = Counted.tally(values[ends[i] : ends[i + 1]])
            for side in (-1, 1):
                half_violin(ax, i, part, low - room, high + room, side, colour)
            draw_middle(ax, i, part.quantiles(QUANTILES))
        ax.set_ylim(low - room, high + room)
        ax.set_ylabel(label)
    axes[-1].set_xlabel(groupby)
    axes[-1].set_xlim(-0.6, len(groups) - 0.4)
    plate_ticks(axes[-1], groups)
    made.align_ylabels(axes)
    return made


def _groups(cells: CellValues, groupby: str) -> tuple[NDArray[np.int64], list[str]]:
    """Group of each cell, -1 without one, and the names of groups with cells."""
    column = cells.column(groupby, "groupby")
    check_groups(column, "groupby")
    codes, names = categories(column)
    if not names:
        msg = f"no cell has a value of obs[{groupby!r}] (groupby): name another column"
        raise InputError(msg)
    return codes, names


def _mean_and_share(
    cells: CellValues, gene: str, codes: NDArray[np.int64], n_groups: int
) -> NDArray[np.float64]:
    """Mean of a gene in each group, and share of the cells above 0, ``[2, n_groups]``."""
    values = cells.numbers(gene, "var_names")
    sums = [
        np.bincount(codes + 1, weights, n_groups + 1)[1:]
        for weights in (values, values > 0, np.ones(codes.size))
    ]
    return np.stack(sums[:2]) / sums[2]


def _draw_brackets(ax: Axes, brackets: Mapping[str, list[str]]) -> None:
    """Name the genes of each list above the dots."""
    whole = ax.get_xaxis_transform()
    width = ax.bbox.width / ax.figure.dpi / sum(map(len, brackets.values()))  # inches per gene
    first = 0
    for name, genes in zip(short_names(brackets, 24), brackets.values(), strict=True):
        left, right = first - 0.3, first + len(genes) - 0.7
        first += len(genes)
        look: dict[str, Any] = {"transform": whole, "clip_on": False}
        ax.plot([left, left, right, right], [1.01, 1.03, 1.03, 1.01], color=INK, lw=0.8, **look)
        slanted = 0.07 * len(name) > width * len(genes)
        ax.text(
            (left + right) / 2, 1.045, name, ha="left" if slanted else "center", va="bottom",
            rotation=40 if slanted else 0, rotation_mode="anchor", fontsize=8, **look,
        )  # fmt: skip
