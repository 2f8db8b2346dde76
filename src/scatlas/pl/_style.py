"""What all figures share: fonts and lines, colours, and files whose bytes do not change."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar

import numpy as np
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from scatlas.io.files.atomic import atomic_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

P = ParamSpec("P")
T = TypeVar("T")

_DPI = 150
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
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same on each machine
    "font.size": 9,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "text.color": "#222222",
    "xtick.color": "#555555",
    "xtick.labelcolor": "#333333",
    "xtick.labelsize": 8,
    "ytick.color": "#555555",
    "ytick.labelcolor": "#333333",
    "ytick.labelsize": 8,
}

INK = "#222222"
BLUE = "#0072b2"
ORANGE = "#d55e00"
GREY = "#bdbdbd"
# With more plates than this, figures sort them and name the unusual ones only.
MANY_PLATES = 30
_MAX_NAMED = 8
# Okabe, Ito (2008), without the yellow that vanishes on white; black last.
_OKABE_ITO = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#222222")


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
    """Empty figure of this size in inches, laid out so that nothing overlaps.

    Without a layout axes keep their positions, and :func:`save` makes room for what is beside them.
    """
    made = Figure(figsize=(width, height), dpi=_DPI, layout=layout)
    FigureCanvasAgg(made)
    return made


@styled
def save(made: Figure, path: Path) -> None:
    """Write a figure as PNG: complete or not at all, the same bytes for the same figure.

    Parameters
    ----------
    made
        The figure.
    path
        File to write; its folder is made when missing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as partial:
        made.savefig(
            partial,
            format="png",
            dpi=_DPI,
            bbox_inches="tight",
            pad_inches=0.12,
            # By default the file names the version of matplotlib.
            metadata={"Software": None},
        )


def colours(n: int) -> list[str]:
    """``n`` colours for categories, as hex strings, the same for the same ``n``.

    Up to 7 they are those of Okabe and Ito, which all kinds of colour vision tell apart. No set of
    more is: beyond, neighbours differ in lightness as well as in hue (three levels in turn, hues of
    a level a golden angle apart, in OKLCH), and figures add numbers or names to the colours.
    """
    if n <= len(_OKABE_ITO):
        return list(_OKABE_ITO[:n])
    levels = ((0.58, 0.15), (0.76, 0.12), (0.42, 0.12))
    golden = math.pi * (3 - math.sqrt(5))
    return [_oklch(*levels[i % 3], 0.5 + i // 3 * golden + i % 3 * math.tau / 3) for i in range(n)]


def _oklch(lightness: float, chroma: float, hue: float) -> str:
    """Hex colour of OKLCH coordinates (Ottosson 2020), clipped to what screens show."""
    a, b = chroma * math.cos(hue), chroma * math.sin(hue)
    to_lms = np.array([[0.3963377774, 0.2158037573], [-0.1055613458, -0.0638541728]])
    first, second = lightness + to_lms @ (a, b)
    third = lightness - 0.0894841775 * a - 1.2914855480 * b
    lms = np.array([first, second, third]) ** 3
    linear = (
        np.array(
            [
                [4.0767416621, -3.3077115913, 0.2309699292],
                [-1.2684380046, 2.6097574011, -0.3413193965],
                [-0.0041960863, -0.7034186147, 1.7076147010],
            ]
        )
        @ lms
    ).clip(0, 1)
    srgb = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{round(255 * value):02x}" for value in srgb)


def short(name: str, longest: int = 24) -> str:
    """A name cut in its middle, where names differ least, to fit a legend."""
    if len(name) <= longest:
        return name
    tail = longest // 3
    return f"{name[: longest - tail - 1]}…{name[-tail:]}"


def plate_ticks(ax: Axes, names: Sequence[str]) -> None:
    """Name the plates under the axis, slanted where they would run into each other."""
    labels = [short(name, 32) for name in names]
    ax.set_xticks(range(len(names)), labels)
    whole = ax.get_figure(root=True)
    assert whole is not None
    room = whole.get_figwidth() * 9 / max(1, len(names))  # characters under each plate
    if max(map(len, labels), default=0) > room:
        for label in ax.get_xticklabels():
            label.set(rotation=40, ha="right", rotation_mode="anchor")


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
        path_effects=[withStroke(linewidth=2.5, foreground="white")],
        arrowprops={"arrowstyle": "-", "linewidth": 0.5, "color": INK},
        zorder=4,
    )


def unusual_plates(values: np.ndarray, *, low_only: bool = False) -> list[int]:
    """Plates whose value is far from the median of all, at most eight, the farthest first.

    Far is more than 3.5 robust standard deviations (Iglewicz, Hoaglin 1993).
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
