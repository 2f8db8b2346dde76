"""What all figures share: fonts and lines, colours, and files whose bytes do not change."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar

import numpy as np
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from scatlas._util.colours import colours as colours
from scatlas._util.names import short_names as short_names
from scatlas.errors import InputError
from scatlas.io.files.atomic import atomic_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from matplotlib.axes import Axes

P = ParamSpec("P")
T = TypeVar("T")

_DPI = 150
_VECTOR_DPI = 300
_MARGIN = 0.12  # inches
# By default files name the version of matplotlib, and PDF and SVG the time.
_METADATA: dict[str, dict[str, None]] = {
    "pdf": {"Creator": None, "Producer": None, "CreationDate": None},
    "svg": {"Creator": None, "Date": None, "Format": None, "Type": None},
    "png": {"Software": None},
}
_RC = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#8a8a8a",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": "#333333",
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titley": 1.0,  # else each drawing asks where all names of ticks end
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same on each machine
    "font.size": 9,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # TrueType, so that text can be edited
    "svg.fonttype": "none",  # text, not outlines
    "svg.hashsalt": "scatlas",  # else ids are drawn at random
    "text.color": "#222222",
    "xtick.color": "#555555",
    "xtick.labelcolor": "#333333",
    "xtick.labelsize": 8,
    "ytick.color": "#555555",
    "ytick.labelcolor": "#333333",
    "ytick.labelsize": 8,
}

# Names under an axis that would run into each other; text on a picture.
SLANTED: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
# Slanted lines of text need this much room along an axis.
_SLANTED_POINTS = 12
OUTLINE = [withStroke(linewidth=2.5, foreground="white")]

INK = "#222222"
BLUE = "#0072b2"
ORANGE = "#d55e00"
GREY = "#bdbdbd"
MAX_LETTERS = 32  # of a name
# With more plates than this, figures sort them and name the unusual ones only.
MANY_PLATES = 30
_MAX_NAMED = 8


def styled(function: Callable[P, T]) -> Callable[P, T]:
    """Run a function under the package's style, whatever the user's own settings are."""

    @functools.wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> T:
        with style.context(["default", _RC]):
            return function(*args, **kwargs)

    return inside


def figure(
    width: float, height: float, *, layout: Literal["constrained"] | None = "constrained"
) -> Figure:
    """Empty figure of a size in inches; without a layout axes keep the positions they are given."""
    made = Figure(figsize=(width, height), dpi=_DPI, layout=layout)
    FigureCanvasAgg(made)
    return made


@styled
def save(made: Figure, path: Path | str, *, dpi: int | None = None) -> None:
    """Write a figure as the ending of its name says: PDF, SVG or PNG.

    The file is complete or not there, with the same bytes for the same figure: it names no date and
    no version. Text stays text, which a drawing program can edit, but for outlines behind names on
    a map. The points of a map are pixels in PDF and SVG, too, as a million would open slowly.

    Parameters
    ----------
    made
        The figure.
    path
        File to write, such as ``"umap.pdf"``; its folder is made when missing.
    dpi
        Pixels per inch; by default 150 of a PNG, and 300 of points in PDF and SVG.

    Raises
    ------
    InputError
        The name has another ending.
    """
    path = Path(path)
    ending = path.suffix.lower().removeprefix(".")
    if ending not in _METADATA:
        raise InputError(
            f"{path}: a figure becomes a file that ends in {', '.join(_METADATA)}: "
            "name it so, such as umap.pdf"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    # One renderer for both, which measures each text once. With "tight" in place of the box all of
    # the figure would be drawn once more, to find the same box.
    canvas = made.canvas if isinstance(made.canvas, FigureCanvasAgg) else FigureCanvasAgg(made)
    if layout := made.get_layout_engine():
        layout.execute(made)
        made.set_layout_engine()  # none: each drawing would begin where the one before ended
    renderer = canvas.get_renderer()  # type: ignore[no-untyped-call]
    box = made.get_tightbbox(renderer).padded(_MARGIN)
    with atomic_path(path) as partial:
        made.savefig(
            partial,
            format=ending,
            dpi=dpi or (_DPI if ending == "png" else _VECTOR_DPI),
            bbox_inches=box,
            metadata=_METADATA[ending],
        )


def plate_ticks(ax: Axes, names: Sequence[str], *, slanted: bool = False) -> None:
    """Name the plates under the axis, slanted where they would run into each other, and upright
    where slanted ones would.
    """
    labels = short_names(names, MAX_LETTERS)
    whole = ax.get_figure(root=True)
    assert whole is not None
    room = whole.get_figwidth() * 9 / max(1, len(names))  # characters under each plate
    slanted = slanted or max(map(len, labels), default=0) > room
    points = 8 * room  # between two names
    upright = {"rotation": 90, "fontsize": min(8.0, 0.85 * points)}
    look = upright if points < _SLANTED_POINTS else SLANTED if slanted else {}
    ax.set_xticks(range(len(names)), labels, **look)


def name_plate(ax: Axes, text: str, at: tuple[float, float], side: int, level: int) -> None:
    """Name a point, to its right (1) or left (-1), each level above the one before."""
    ax.plot(*at, "o", color=INK, markersize=3, zorder=3)
    ax.annotate(
        text,
        at,
        (14 * side, 8 + 10 * level),
        textcoords="offset points",
        ha="left" if side > 0 else "right",
        fontsize=7,
        color=INK,
        path_effects=OUTLINE,
        arrowprops={"arrowstyle": "-", "linewidth": 0.5, "color": INK},
        zorder=4,
    )


def unusual_plates(values: np.ndarray, *, low_only: bool = False) -> list[int]:
    """At most eight plates, the farthest first, that are more than 3.5 robust standard deviations
    (Iglewicz, Hoaglin 1993) from the median of all.
    """
    values = np.asarray(values, np.float64)
    known = values[np.isfinite(values)]
    if not known.size:
        return []
    away = values - np.median(known)
    spread = 1.4826 * np.median(np.abs(known - np.median(known)))
    far = -away if low_only else np.abs(away)
    far = np.where(np.isfinite(far) & (far > 3.5 * spread), far, 0)
    return [int(i) for i in np.argsort(-far, kind="stable")[:_MAX_NAMED] if far[i] > 0]
