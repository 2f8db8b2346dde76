"""Maps of the cells: all, before and after their plates were mixed, and of new plates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgba_array
from matplotlib.lines import Line2D

from scatlas._util.numbers import whole_number
from scatlas.columns import MAX_NUMBERS, are_measures, as_names
from scatlas.errors import InputError
from scatlas.pl._cell_values import CellValues, categories
from scatlas.pl._points import draw_points
from scatlas.pl._style import (
    BLUE,
    GREY,
    INK,
    MAX_LETTERS,
    ORANGE,
    OUTLINE,
    colours,
    figure,
    short_names,
    styled,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from anndata import AnnData
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from scatlas.pl._cell_values import Source

SIDE = 6.0  # inches
_HALF_SIDE = 4.5  # of each of two maps
SHARE = 0.9  # of the figure's side that the map takes
_ROWS = 26  # of the legend
_FEW = 7  # categories that colours alone tell apart
_BINS = 40
_MAX_LETTERS_ON_DATA = 400  # more run into each other on a map of 6 inches
MISSING = "#d9d9d9"
_PLATE_COLUMNS = 3  # of maps of new plates
_MAX_PLATES = 12
_PLATE_SIDE = 2.9  # inches per map
_GRID_WIDTH, _GRID_HEIGHT = 4.6, 3.8  # inches per map and its legend, of several columns


@styled
def umap(
    adata: Source,
    color: str | Collection[str],
    *,
    basis: str = "X_umap",
    layer: str | None = None,
    lowest_on_top: bool = False,
    legend_loc: Literal["right margin", "on data", "none"] = "right margin",
    ncols: int = 4,
    ax: Axes | None = None,
) -> Figure:
    """Cells on the map, coloured by columns of ``obs`` and by genes.

    With 8 to 76 categories, each that gathers in a place carries its number there, and the legend
    gives number and name; colours alone would not do. With more the legend names the 76 largest.
    Points are drawn in a fixed random order, so that no category lies on top; of numbers the
    highest lie on top. Cells without a value are grey and the last of the legend: ``unknown`` in a
    column of types (:func:`scatlas.tl.annotate`), else ``no value``.

    Parameters
    ----------
    adata
        Annotated data with ``obsm[basis]`` [cells x 2], or path or address of a file, such as
        ``"results/atlas.zarr"``: then only the map, the columns and the genes are read.
    color
        Column of ``obs`` or gene (:func:`scatlas.get.gene`), or a list of these, each on a map.
        Columns hold categories, text, booleans, or numbers. Real numbers, and integers of more than
        76 values, get a colour scale, which ends where one per cent of the cells lie above.
    basis
        Key of ``obsm``.
    layer
        Key of the layer from which genes are read, in place of X.
    lowest_on_top
        Of numbers, show the lowest values brightest and above others, in place of the highest.
    legend_loc
        Where the names of categories stand: beside the map, on it where their cells gather, or
        nowhere. Names too long or too many for the map are beside it, too.
    ncols
        Maps in a row.
    ax
        Axes to draw one map into, of a figure of your own, which is returned.

    Raises
    ------
    InputError
        No such column, gene or coordinates.

    Examples
    --------
    >>> sa.pl.umap("results/atlas.zarr", ["leiden", "EPCAM", "CD3D"])
    """
    if legend_loc not in ("right margin", "on data", "none"):
        msg = f"legend_loc is {legend_loc!r}: use 'right margin', 'on data' or 'none'"
        raise InputError(msg)
    cells, names = CellValues(adata, layer), as_names(color, "color")
    xy = cells.positions(basis)
    made, axes = _axes(len(names), ncols, ax)
    alone = ax is None and len(names) == 1
    for name, one in zip(names, axes, strict=True):
        column = cells.values(name, "color")
        title = f"{name}, {len(xy):,} cells" if alone else str(name)
        if _is_measure(column):
            _draw_measure(one, xy, column.to_numpy(np.float64, na_value=np.nan), lowest_on_top)
        else:
            codes, values = categories(column)
            gaps = cells.name_of_gaps(str(name), values) if (codes < 0).any() else ""
            _draw_categories(one, xy, codes, values, legend_loc, gaps)
            title = title_of_categories(name, len(values), len(xy)) if alone else title
        one.set_title(title)
    return made


@styled
def before_after(
    adata: AnnData, color: str, *, before: str | None = None, after: str | None = None
) -> Figure:
    """Cells on two maps, coloured by a column of ``obs`` with the same colours.

    Parameters
    ----------
    adata
        Annotated data with both maps in ``obsm`` [cells x 2].
    color
        Column of ``obs``, whose values are taken for categories.
    before, after
        Keys of ``obsm``. By default those of ``integrated.h5ad``: ``X_umap_uncorrected`` and
        ``X_umap``, or, of an atlas that stays uncorrected, ``X_umap`` and ``X_umap_harmony``.

    Raises
    ------
    InputError
        No such column or coordinates.
    """
    cells = CellValues(adata)
    corrected = "X_umap_uncorrected" in adata.obsm
    before = before or ("X_umap_uncorrected" if corrected else "X_umap")
    after = after or ("X_umap" if corrected else "X_umap_harmony")
    codes, names = categories(cells.column(color, "color"))
    palette = colours(len(names))
    made = figure(2 * _HALF_SIDE, _HALF_SIDE, layout=None)
    order = np.random.default_rng(0).permutation(codes.size)
    marks: dict[int, str] = {}
    for column, (basis, title) in enumerate([(before, "before"), (after, "after")]):
        ax = made.add_axes((0.03 + 0.49 * column, 0.05, 0.46, 0.88))
        xy = cells.positions(basis)
        scatter(ax, xy, codes, palette, order)
        ax.set_title(f"{color}, {title}")
        # Each value keeps one mark on both maps.
        marks |= label_clusters(ax, xy, codes, names)
    legend(ax, codes, names, marks, cells.name_of_gaps(color, names))
    return made


@styled
def new_cells(
    atlas: NDArray[np.floating],
    plates: Mapping[str, tuple[NDArray[np.floating], NDArray[np.bool_]]],
) -> Figure:
    """Cells of new plates over the map of the atlas, one map per plate.

    Of more than 12 plates, those with the largest share of cells unlike the atlas are drawn.

    Parameters
    ----------
    atlas
        Float [cells x 2]: map of the atlas, drawn in grey.
    plates
        By plate, the same of its cells, and which of them are unlike the atlas, bool [cells].

    Raises
    ------
    InputError
        There is no plate.
    """
    if not plates:
        raise InputError("there is no plate to draw: give at least one")
    names = sorted(plates, key=lambda name: -plates[name][1].mean())[:_MAX_PLATES]
    names = [name for name in plates if name in names]
    n_columns = min(_PLATE_COLUMNS, len(names))
    n_rows = -(-len(names) // n_columns)
    made = figure(_PLATE_SIDE * n_columns, (_PLATE_SIDE + 0.3) * n_rows + 0.3)
    grid = made.subplots(n_rows, n_columns, squeeze=False, sharex=True, sharey=True).flat
    order = np.random.default_rng(0)
    for ax, name, short in zip(grid, names, short_names(names, 24), strict=False):
        xy, unlike = plates[name]
        _points(ax, atlas, GREY)
        shuffled = order.permutation(len(xy))
        _points(ax, xy[shuffled], to_rgba_array([BLUE, ORANGE])[unlike[shuffled].astype(int)])
        ax.set(xticks=[], yticks=[])
        ax.set_box_aspect(1)
        ax.grid(visible=False)
        ax.set_title(f"{short}: {len(xy):,} cells,\n{100 * unlike.mean():.1f}% unlike")
    for ax in list(grid)[len(names) :]:
        ax.set_axis_off()
    labels = {"atlas": GREY, "new, like the atlas": BLUE, "new, unlike the atlas": ORANGE}
    handles = [
        Line2D([], [], marker="o", linestyle="", markersize=4, color=colour, label=label)
        for label, colour in labels.items()
    ]
    made.legend(handles=handles, loc="outside lower left", ncols=3, handletextpad=0.1)
    return made


def _points(ax: Axes, xy: NDArray[np.floating], colour: str | NDArray[np.float64]) -> None:
    area = float(np.clip(20_000 / max(1, len(xy)), 0.2, 6))
    draw_points(ax, np.asarray(xy)[:, :2], area, facecolors=colour)


def empty_map() -> tuple[Figure, Axes]:
    """Figure with axes for a square map; the legend goes beside it, whatever its width."""
    made = figure(SIDE, SIDE, layout=None)
    ax = made.add_axes((0.06, 0.05, SHARE, SHARE))
    _style_map(ax)
    return made, ax


def _axes(n: int, ncols: int, ax: Axes | None) -> tuple[Figure, list[Axes]]:
    """Axes of ``n`` maps: those given, or of a new figure, ``ncols`` in a row."""
    if not n:
        raise InputError("color is empty: name at least one gene or column of obs")
    if ax and n > 1:
        raise InputError(
            f"color names {n} columns or genes: name one for each axes, or leave ax out"
        )
    if ax:
        whole = ax.get_figure(root=True)
        assert whole is not None
        return whole, [ax]
    if n == 1:
        made, ax = empty_map()
        return made, [ax]
    n_columns = min(whole_number(ncols, "ncols", least=1), n)
    n_rows = -(-n // n_columns)
    made = figure(_GRID_WIDTH * n_columns, _GRID_HEIGHT * n_rows)
    axes = made.subplots(n_rows, n_columns, squeeze=False).ravel()
    for spare in axes[n:]:
        spare.remove()
    return made, list(axes[:n])


def title_of_categories(color: str, n_names: int, n_cells: int) -> str:
    """Title of a map that is coloured by categories."""
    return f"{color}: {n_names:,} {'category' if n_names == 1 else 'categories'}, {n_cells:,} cells"


def scatter(
    ax: Axes, xy: np.ndarray, codes: np.ndarray, palette: list[str], order: np.ndarray
) -> None:
    """Draw cells in an order, each in its category's colour (code -1: missing)."""
    colour = to_rgba_array([*palette, MISSING])
    _scatter(ax, xy[order], facecolors=colour[codes[order]])


def label_clusters(ax: Axes, xy: np.ndarray, codes: np.ndarray, names: list[str]) -> dict[int, str]:
    """Label categories that are too many for colours on the map; return the mark of each."""
    if not _FEW < len(names) <= MAX_NUMBERS:
        return {}
    positions = _label_positions(xy, codes, len(names))
    # Clusters are called by number already.
    brief = max(map(len, names)) <= 3
    marks = {i: names[i] if brief else str(i + 1) for i in positions}
    _mark(ax, xy, {marks[i]: position for i, position in positions.items()})
    return marks


def _scatter(ax: Axes, xy: np.ndarray, **colour: Any) -> None:
    area = float(np.clip(60_000 / max(1, len(xy)), 0.25, 18)) * _relative_side(ax) ** 2
    draw_points(ax, xy, area, **colour)
    _style_map(ax)


def _relative_side(ax: Axes) -> float:
    """Width of axes beside that of a map alone in its figure, at most 1."""
    whole = ax.get_figure(root=True)
    assert whole is not None
    return min(1.0, float(ax.bbox.width) / whole.dpi / (SHARE * SIDE))


def _style_map(ax: Axes) -> None:
    ax.set(xlabel="UMAP 1", ylabel="UMAP 2", xticks=[], yticks=[])
    ax.set_box_aspect(1)
    ax.grid(visible=False)


def _is_measure(column: pd.Series) -> bool:
    """Whether a column measures cells (real numbers, counts) rather than naming them."""
    return pd.api.types.is_float_dtype(column) or are_measures(column)


def _draw_categories(
    ax: Axes, xy: np.ndarray, codes: np.ndarray, names: list[str], legend_loc: str, gaps: str
) -> None:
    """Cells coloured by categories, with their names, and what cells without one are called."""
    palette = colours(len(names))
    scatter(ax, xy, codes, palette, np.random.default_rng(0).permutation(codes.size))
    short = short_names(names, 24)
    crowded = sum(map(len, short)) > _MAX_LETTERS_ON_DATA * _relative_side(ax) ** 2
    if legend_loc == "right margin" or (legend_loc == "on data" and crowded):
        legend(ax, codes, names, label_clusters(ax, xy, codes, names), gaps)
    elif legend_loc == "on data":
        gathered = _label_positions(xy, codes, len(names))
        centres = {i: np.median(xy[codes == i], axis=0) for i in range(len(names))}
        _mark(ax, xy, {short[i]: at for i, at in (centres | gathered).items()})
        if gaps:
            legend(ax, codes[codes < 0], [], {}, gaps)


def _draw_measure(ax: Axes, xy: np.ndarray, values: np.ndarray, lowest_on_top: bool) -> None:
    """Cells coloured by a number."""
    known = np.isfinite(values)
    _scatter(ax, xy[~known], facecolors=MISSING)
    # The most remarkable values on top, so that no cell hides them.
    order = np.argsort(-values[known] if lowest_on_top else values[known], kind="stable")
    colour = colour_scale(values[known], lowest_on_top)
    scale = {"cmap": colour.cmap, "norm": colour.norm}
    _scatter(ax, xy[known][order], array=values[known][order], **scale)
    add_colour_bar(ax, colour)


def colour_scale(values: np.ndarray, lowest_on_top: bool) -> ScalarMappable:
    """Colours of numbers; the one per cent at the bright end have one colour."""
    ends = [1, 100] if lowest_on_top else [0, 99]
    low, high = np.percentile(values, ends) if values.size else (0, 1)
    if low == high and values.size:  # a gene of fewer cells than one per cent
        low, high = values.min(), values.max()
    return ScalarMappable(Normalize(low, high), "viridis_r" if lowest_on_top else "viridis")


def add_colour_bar(ax: Axes, colour: ScalarMappable) -> None:
    """Explain the colours of numbers beside a map."""
    whole = ax.get_figure(root=True)
    assert whole is not None
    whole.colorbar(colour, cax=ax.inset_axes((1.02, 0, 0.035, 1)))


def _label_positions(xy: np.ndarray, codes: np.ndarray, n: int) -> dict[int, np.ndarray]:
    """Label positions of categories with a dense region; empty if most are spread over the map.

    A region is dense if a window an eighth of the map wide holds a quarter of the category's cells,
    and at least three times the category's share there of all cells.
    """
    low, high = xy.min(axis=0), xy.max(axis=0)
    cells = ((xy - low) / np.maximum(high - low, 1e-12) * _BINS).astype(int).clip(0, _BINS - 1)
    all_windows = _windows(cells)
    positions = {}
    for code in range(n):
        inside = np.flatnonzero(codes == code)
        if not inside.size:
            continue
        windows = _windows(cells[inside])
        at = np.unravel_index(windows.argmax(), windows.shape)
        share = windows[at] / inside.size
        if share >= 0.25 and share >= 3 * all_windows[at] / len(xy):
            near = inside[(np.abs(cells[inside] - np.array(at)) <= 2).all(axis=1)]
            positions[code] = np.median(xy[near], axis=0)
    return positions if 3 * len(positions) >= n else {}


def _windows(cells: np.ndarray) -> np.ndarray:
    """Cells in the 5 x 5 bins around each bin."""
    counts = np.zeros((_BINS + 4, _BINS + 4), np.int64)
    np.add.at(counts, tuple(cells.T + 2), 1)
    return np.lib.stride_tricks.sliding_window_view(counts, (5, 5)).sum(axis=(2, 3))


def _mark(ax: Axes, xy: np.ndarray, positions: dict[str, np.ndarray]) -> None:
    """Write marks at their positions, moved apart where they would overlap."""
    if not positions:
        return
    low, size = xy.min(axis=0), np.maximum(np.ptp(xy, axis=0), 1e-12)
    starts = (np.array(list(positions.values())) - low) / size
    letters = np.array([[0.012 + 0.016 * len(mark), 0.03] for mark in positions])
    moved = _push_apart(starts, letters / _relative_side(ax))
    for mark, at, start in zip(positions, moved * size + low, starts * size + low, strict=True):
        if (np.abs(at - start) > 0.015 * size).any():
            ax.plot(*np.c_[at, start], color=INK, linewidth=0.5)
        look: dict[str, Any] = {"ha": "center", "va": "center", "size": 7, "weight": "bold"}
        # Text that has an outline becomes curves in PDF and SVG: the name itself has none.
        ax.text(at[0], at[1], mark, color="white", path_effects=OUTLINE, **look)
        ax.text(at[0], at[1], mark, color=INK, **look)


def _push_apart(centres: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Move boxes of these sizes until none overlap: each pair along its axis of least overlap."""
    centres = centres.copy()
    for _ in range(60):
        still = True
        for i in range(len(centres)):
            for j in range(i):
                gap = centres[i] - centres[j]
                overlap = (sizes[i] + sizes[j]) / 2 - np.abs(gap)
                if (overlap > 1e-6).all():
                    axis = int(overlap[1] < overlap[0])
                    push = overlap[axis] / 2 * (1 if gap[axis] >= 0 else -1)
                    centres[i, axis] += push
                    centres[j, axis] -= push
                    still = False
        if still:
            break
    return centres


def legend(ax: Axes, codes: np.ndarray, names: list[str], marks: dict[int, str], gaps: str) -> None:
    """Name the categories beside the map, if there are many only the largest; last, as ``gaps``,
    cells without one.
    """
    sizes, palette = np.bincount(codes[codes >= 0], minlength=len(names)), colours(len(names))
    shown = np.sort(np.argsort(-sizes, kind="stable")[:MAX_NUMBERS])
    handles = []
    # Several columns have less room.
    short = short_names([names[i] for i in shown], MAX_LETTERS if len(shown) <= _ROWS else 24)
    for i, name in zip(shown, short, strict=True):
        label = name if marks.get(i, name) == name else f"{marks[i]}  {name}"
        handles.append(Line2D([], [], marker="o", linestyle="", color=palette[i], label=label))
    if len(shown) < len(names):
        more = f"and {len(names) - len(shown):,} smaller"
        handles.append(Line2D([], [], marker="", linestyle="", label=more))
    if (codes < 0).any():
        handles.append(Line2D([], [], marker="o", linestyle="", color=MISSING, label=gaps))
    ax.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        ncols=-(-len(handles) // _ROWS),
        handletextpad=0.1,
        columnspacing=0.8,
        borderaxespad=0,
    )
