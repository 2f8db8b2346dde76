"""Quality of the cells, plate by plate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from scatlas.errors import InputError
from scatlas.pl._style import (
    BLUE,
    GREY,
    INK,
    MANY_PLATES,
    ORANGE,
    SLANTED,
    colours,
    figure,
    name_plate,
    plate_ticks,
    short_names,
    styled,
    unusual_plates,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# column, axis label, lower and upper bound in the config, logarithmic
_METRICS = (
    ("total_counts", "counts per cell", "min_counts", "max_counts", True),
    ("n_genes_by_counts", "genes per cell", "min_genes", "max_genes", True),
    ("pct_counts_mt", "mitochondrial counts, %", None, "max_pct_mt", False),
)
_BINS = 160
_COUNTABLE = 2**22  # whole numbers below are counted, not sorted
_STEP = 1 / 1024  # of the mitochondrial share: no picture tells less apart
_HALF_WIDTH = 0.42
_MAX_LETTERS = 24  # of a plate's name
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@styled
def qc_violins(
    tables: Mapping[str, pd.DataFrame],
    thresholds: Mapping[str, float | None],
    *,
    by_plate: pd.DataFrame | None = None,
) -> Figure:
    """Counts, genes and mitochondrial share of each plate's cells, with the bounds drawn.

    The left half of a violin is all cells, the right half those kept; a dot marks the median of
    the cells kept, a bar their middle half. Counts and genes are on a log scale; of the
    mitochondrial share, the highest hundredth of a plate's cells may lie beyond the axis.

    With more than 30 plates, each metric sorts them by the median of the cells kept and draws bands
    of these cells' quantiles; plates whose median is unusual are named.

    Parameters
    ----------
    tables
        For each plate, a table with one row per cell: ``total_counts``, ``n_genes_by_counts``,
        ``pct_counts_mt`` (per cent) and ``keep`` (bool).
    thresholds
        ``min_counts``, ``max_counts``, ``min_genes``, ``max_genes``, ``max_pct_mt``; those that are
        missing or None are not drawn.
    by_plate
        The same bounds of single plates in columns, with plates as the index: a dash across the
        violin. A plate may have several rows, for groups of its cells; NaN is not drawn.

    Raises
    ------
    InputError
        When there is no plate.
    """
    _check_plates(tables)
    # One table in memory at a time: the plates of a large atlas hold millions of cells each.
    seen = {name: _overview(table) for name, table in tables.items()}
    many = len(tables) > MANY_PLATES
    made = figure(9.0 if many else min(15.0, max(6.0, 2.0 + 0.62 * len(tables))), 8.0)
    axes = made.subplots(len(_METRICS), 1, sharex=True)
    for ax, (column, label, low, high, log) in zip(axes, _METRICS, strict=True):
        bounds = {"min": thresholds.get(low) if low else None, "max": thresholds.get(high)}
        drawn = {word: float(_as_drawn(b, log)) for word, b in bounds.items() if b is not None}
        kept = [plate[column].kept.quantiles(QUANTILES) for plate in seen.values()]
        most = (0, 1) if log else (0, 0.99)  # all values on a log scale
        shown = kept if many else [plate[column].cells.quantiles(most) for plate in seen.values()]
        own = _own_bounds(by_plate, (low, high), log)
        bottom, top = _limits(shown, [*drawn.values(), *(bound for _, bound in own)], log)
        centres = {name: i for i, name in enumerate(seen)}
        if many:
            centres = _bands(ax, list(seen), kept)
        else:
            for i, quantiles in enumerate(kept):
                draw_middle(ax, i, quantiles)
        for word, at in drawn.items():
            _bound(ax, at, bottom if word == "min" else top, f"{word} {bounds[word]:,g}")
        for i, plate in enumerate([] if many else seen.values()):
            half_violin(ax, i, plate[column].cells, bottom, top, -1, GREY)
            half_violin(ax, i, plate[column].kept, bottom, top, 1, BLUE)
        half = 0.5 if many else _HALF_WIDTH
        for name, bound in own:
            if name in centres:
                ends = [centres[name] - half, centres[name] + half]
                ax.plot(ends, [bound, bound], color=ORANGE, linewidth=1.2, solid_capstyle="butt")
        ax.set_ylim(bottom, top)
        ax.set_ylabel(label)
        if log:
            _powers_of_ten(ax, bottom, top)
    made.align_ylabels(axes)
    if many:
        axes[-1].set_xlabel(f"{len(tables)} plates, sorted by each metric's median of cells kept")
        axes[-1].set_xlim(0, len(tables) + 1)
        made.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
        return made
    axes[-1].set_xlim(-0.6, len(tables) - 0.4)
    plate_ticks(axes[-1], list(tables))
    halves = [Patch(color=GREY, label="all cells"), Patch(color=BLUE, label="cells kept")]
    made.legend(handles=halves, loc="outside upper left", ncols=2)
    return made


def _check_plates(plates: Mapping[str, Any]) -> None:
    if not plates:
        raise InputError("there is no plate to draw: give a table for at least one")


def _own_bounds(
    by_plate: pd.DataFrame | None, names: tuple[str | None, str], log: bool
) -> list[tuple[str, float]]:
    """Plate and height of each dash."""
    if by_plate is None:
        return []
    values = [by_plate[name].dropna() for name in names if name in by_plate]
    return [(plate, float(_as_drawn(v, log))) for row in values for plate, v in row.items()]


def _as_drawn(values: Any, log: bool) -> np.ndarray:
    """Values in the units of the axis; the log scale shows an empty cell's zero as one."""
    values = np.asarray(values, np.float64)
    return np.log10(np.maximum(values, 1)) if log else values


class Counted(NamedTuple):
    """Numbers as distinct values, ascending, and how many there are of each."""

    values: np.ndarray  # float64
    counts: np.ndarray  # int64

    @classmethod
    def tally(cls, numbers: np.ndarray) -> Counted:
        """Count numbers; those that are not finite are left out."""
        is_whole = numbers.dtype.kind in "iu" and numbers.size
        if is_whole and numbers.min() >= 0 and numbers.max() < _COUNTABLE:
            counts = np.bincount(numbers.astype(np.int64, copy=False))
            values = np.flatnonzero(counts)
            return cls(values.astype(np.float64), counts[values])
        values, counts = np.unique(numbers[np.isfinite(numbers)], return_counts=True)
        return cls(values.astype(np.float64), counts)

    def quantiles(self, wanted: Sequence[float]) -> tuple[float, ...]:
        """As :func:`numpy.quantile` of all numbers; empty without any."""
        last = np.cumsum(self.counts)
        if not last.size:
            return ()
        found = []
        for share in wanted:
            at = share * (last[-1] - 1)
            beside = np.searchsorted(last, [np.floor(at), np.ceil(at)], side="right")
            found.append(float(np.quantile(self.values[beside], at - np.floor(at))))
        return tuple(found)


class _Metric(NamedTuple):
    """A metric on a plate, in the units of the axis."""

    cells: Counted
    kept: Counted


def _overview(table: pd.DataFrame) -> dict[str, _Metric]:
    keep = table["keep"].to_numpy(bool)
    metrics = {}
    for column, *_, log in _METRICS:
        numbers = table[column].to_numpy()
        numbers = numbers if numbers.dtype.kind in "iu" else numbers.astype(np.float64, copy=False)
        counted = [_counted(part, log) for part in (numbers, numbers[keep])]
        metrics[column] = _Metric(*counted)
    return metrics


def _counted(numbers: np.ndarray, log: bool) -> Counted:
    if log:
        counted = Counted.tally(numbers)
        return counted._replace(values=_as_drawn(counted.values, log))
    known = numbers[np.isfinite(numbers)]
    counted = Counted.tally(np.rint(known / _STEP).astype(np.int64))
    return counted._replace(values=counted.values * _STEP)


def _limits(
    plates: Iterable[tuple[float, ...]], bounds: Iterable[float], log: bool
) -> tuple[float, float]:
    ends = [*bounds, *(end for plate in plates for end in plate)]
    top = max(ends, default=1.0)
    if not log:
        return 0.0, 1.25 * max(top, 0.1)
    bottom = min(ends, default=0.0)
    room = 0.06 * max(top - bottom, 0.5)
    return bottom - room, top + room


def half_violin(
    ax: Axes, at: int, numbers: Counted, bottom: float, top: float, side: int, colour: str
) -> None:
    """Smoothed histogram: like a kernel density, but in one pass over any number of cells."""
    values, counts = numbers
    if not values.size:
        return
    heights, edges = np.histogram(values, _BINS, (bottom, top), weights=counts)
    # Silverman's rule on the quartiles, so that a few far cells do not blur the rest,
    # and on the deviation where these are equal: a gene that most cells lack.
    low, high = numbers.quantiles((0.25, 0.75))
    spread = (high - low) / 1.349 or np.sqrt(np.cov(values, fweights=counts, ddof=0))
    step = edges[1] - edges[0]
    sigma = np.clip(0.9 * spread * counts.sum() ** -0.2 / step, 1.0, _BINS / 12)
    reach = np.arange(-int(4 * sigma), int(4 * sigma) + 1)
    kernel = np.exp(-0.5 * (reach / sigma) ** 2)
    density = np.convolve(heights, kernel / kernel.sum(), mode="same")[:_BINS]
    density = density / density.max()
    centres = (edges[:-1] + edges[1:]) / 2
    # No hairline where there is no cell, and nothing that the smoothing put beyond a bound.
    there = (density > 0.003) & (centres >= values[0] - step) & (centres <= values[-1] + step)
    width = np.where(there, density * _HALF_WIDTH, np.nan)
    ax.fill_betweenx(centres, at, at + side * width, color=colour, linewidth=0)


def _bands(ax: Axes, names: list[str], quantiles: list[tuple[float, ...]]) -> dict[str, int]:
    """Quantiles of the cells kept of each plate, plates sorted by their median; their x."""
    filled = [i for i, plate in enumerate(quantiles) if plate]
    if not filled:
        return {}
    values = np.array([quantiles[i] for i in filled])
    order = np.argsort(values[:, 2], kind="stable")
    low, lower, middle, upper, high = values[order].T
    at = np.arange(1, len(filled) + 1)
    look: dict[str, Any] = {"step": "mid", "linewidth": 0, "color": BLUE}
    ax.fill_between(at, low, high, alpha=0.2, label="5% to 95% of the cells kept", **look)
    ax.fill_between(at, lower, upper, alpha=0.45, label="their middle half", **look)
    ax.plot(at, middle, color=INK, linewidth=1.2, drawstyle="steps-mid", label="their median")
    rank, short = np.argsort(order), short_names(names, _MAX_LETTERS)
    named = sorted(unusual_plates(values[:, 2]), key=lambda i: rank[i])
    below = [i for i in named if rank[i] < len(filled) / 2]
    for level, i in [*enumerate(below), *enumerate(reversed([i for i in named if i not in below]))]:
        side = 1 if i in below else -1
        name_plate(ax, short[filled[i]], (rank[i] + 1, values[i, 2]), side, level)
    return {names[filled[i]]: int(rank[i]) + 1 for i in range(len(filled))}


def draw_middle(ax: Axes, at: int, quantiles: tuple[float, ...]) -> None:
    """Median and middle half."""
    if quantiles:
        _, low, middle, high, _ = quantiles
        ax.plot([at, at], [low, high], color=INK, linewidth=2.4, solid_capstyle="butt")
        ax.plot(at, middle, "o", color="white", markeredgecolor=INK, markersize=4.5, zorder=3)


def _bound(ax: Axes, at: float, outside: float, label: str) -> None:
    ax.axhspan(min(at, outside), max(at, outside), color=ORANGE, alpha=0.08, linewidth=0)
    ax.axhline(at, color=ORANGE, linewidth=1.2, linestyle=(0, (4, 2)))
    ax.annotate(
        label,
        (1, at),
        (4, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        color=ORANGE,
        fontsize=8,
        va="center",
        annotation_clip=False,
    )


def _powers_of_ten(ax: Axes, bottom: float, top: float) -> None:
    """Ticks of a log axis whose data are logarithms already."""
    steps = (1, 2, 5) if top - bottom < 2.5 else (1, 3) if top - bottom < 4 else (1,)
    marks = [
        np.log10(step) + power
        for power in range(int(np.floor(bottom)), int(np.ceil(top)) + 1)
        for step in steps
    ]
    seen = [mark for mark in marks if bottom <= mark <= top]
    if len(seen) < 2:  # a narrow axis
        values = np.asarray(MaxNLocator(5).tick_values(10**bottom, 10**top))
        marks = np.log10(values.clip(min=1e-3)).tolist()
        seen = [mark for mark in marks if bottom <= mark <= top]
    ax.set_yticks(seen)
    ax.yaxis.set_major_formatter(lambda y, _: f"{10**y:,.0f}")


_RULES = {
    "filter": "filter column",
    "min_counts": "too few counts",
    "max_counts": "too many counts",
    "min_genes": "too few genes",
    "max_genes": "too many genes",
    "max_pct_mt": "too mitochondrial",
    "mads_genes": "unusual genes",
    "mads_counts": "unusual counts",
    "mads_pct_mt": "unusual mitochondrial",
    "doublets": "doublets",
}


@styled
def cells_kept(summaries: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Cells kept of each plate, and cells removed by each rule.

    Rules apply in turn: a cell counts for the first rule that it fails. More than 30 plates are
    sorted by the share of cells kept, without their numbers of cells; those that keep unusually few
    are named.

    Parameters
    ----------
    summaries
        For each plate ``n_cells``, ``n_kept`` and ``removed`` (cells, by rule).

    Raises
    ------
    InputError
        When there is no plate.
    """
    _check_plates(summaries)
    plates = list(summaries)
    total = np.array([summaries[name]["n_cells"] for name in plates], np.int64)
    kept = np.array([summaries[name]["n_kept"] for name in plates], np.int64)
    removed = {name: summaries[name].get("removed", {}) for name in plates}
    rules = list(dict.fromkeys(rule for name in plates for rule in removed[name]))
    if len(plates) > MANY_PLATES:
        return _shares_kept(plates, total, kept, [removed[name] for name in plates], rules)
    made = figure(6.2 + (1.2 + 0.8 * len(rules) if rules else 0), 1.7 + 0.34 * len(plates))
    axes = made.subplots(
        1,
        2 if rules else 1,
        squeeze=False,
        width_ratios=[4.2, 0.6 + 0.8 * len(rules)] if rules else None,
    )[0]

    bars = axes[0]
    rows = np.arange(len(plates))
    bars.barh(rows, kept, color=BLUE, height=0.68, label="kept")
    bars.barh(rows, total - kept, left=kept, color=GREY, height=0.68, label="removed")
    for row, n_kept, n_total in zip(rows, kept, total, strict=True):
        share = f"{100 * n_kept / n_total:.1f}%" if n_total else "no cell"
        bars.annotate(
            f"{n_kept:,} ({share})",
            (n_total, row),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    bars.set_yticks(rows, short_names(plates, _MAX_LETTERS))
    bars.set_ylim(len(plates) - 0.5, -0.5)  # row by row beside the rules
    bars.grid(axis="x")
    bars.grid(visible=False, axis="y")
    bars.set_xlim(0, max(1, total.max()) * 1.34)
    bars.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    bars.xaxis.set_major_formatter("{x:,.0f}")
    bars.set_xlabel("cells")
    if rules:
        _removed(axes[1], rules, [removed[name] for name in plates], total)
    made.legend(*bars.get_legend_handles_labels(), loc="outside upper left", ncols=2)
    return made


def _shares_kept(
    plates: list[str],
    total: np.ndarray,
    kept: np.ndarray,
    removed: list[Mapping[str, int]],
    rules: list[str],
) -> Figure:
    """Share of each plate's cells kept and removed by each rule, sorted by the share kept."""
    share = kept / np.maximum(total, 1)
    order = np.argsort(share, kind="stable")
    at = np.arange(1, len(plates) + 1)
    made = figure(9.0, 4.4)
    ax = made.subplots()
    below = np.zeros(len(plates))
    used = [rule for rule in rules if any(row.get(rule, 0) for row in removed)]
    for rule, colour in zip([None, *used], [BLUE, *colours(len(used) + 1)[1:]], strict=True):
        taken = kept if rule is None else np.array([row.get(rule, 0) for row in removed])
        height = 100 * (taken / np.maximum(total, 1))[order]
        label = "kept" if rule is None else _RULES.get(rule, rule)
        ax.bar(at, height, 1.0, bottom=below, color=colour, linewidth=0, label=label)
        below += height
    rank, short = np.argsort(order), short_names(plates, _MAX_LETTERS)
    named = sorted(unusual_plates(share, low_only=True), key=lambda i: rank[i])
    high = [i for i in named if share[i] > 0.6]  # without room above
    low = [i for i in named if i not in high]
    for level, i in [*enumerate(low), *enumerate(high, -1 - len(high))]:
        text = f"{short[i]} {100 * share[i]:.0f}%"
        name_plate(ax, text, (rank[i] + 1, 100 * share[i]), 1, level)
    ax.set_xlim(0.5, len(plates) + 0.5)
    ax.set_ylim(0, 100)
    ax.set_xlabel(f"{len(plates)} plates, sorted by the share of cells kept")
    ax.set_ylabel("cells, %")
    made.legend(*ax.get_legend_handles_labels(), loc="outside upper left", ncols=5)
    return made


def _per_cent(share: float) -> str:
    if share == 0:
        return "–"
    return f"{100 * share:.1f}%" if share >= 0.0005 else "<0.1%"


def _removed(
    ax: Axes, rules: list[str], removed: list[Mapping[str, int]], total: np.ndarray
) -> None:
    """Share of the cells that each rule removed."""
    failed = np.array([[row.get(rule, 0) for rule in rules] for row in removed], np.float64)
    share = failed / np.maximum(total, 1)[:, None]
    ax.imshow(share, aspect="auto", cmap="Oranges", vmin=0, vmax=max(0.02, 1.2 * share.max()))
    dark = 0.65 * max(0.02, 1.2 * share.max())
    for (row, column), value in np.ndenumerate(share):
        ax.text(
            column,
            row,
            _per_cent(value),
            ha="center",
            va="center",
            fontsize=8,
            color="white" if value > dark else INK,
        )
    ax.set_xticks(range(len(rules)), [_RULES.get(rule, rule) for rule in rules], **SLANTED)
    ax.set_yticks([])
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.set_title("removed by each rule, in turn", fontsize=9, fontweight="normal")
