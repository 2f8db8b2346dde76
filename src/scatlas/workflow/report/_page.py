"""One page of figures and tables, complete in itself: its parts, and the file."""

from __future__ import annotations

import base64
import gc
import html
import io
import multiprocessing
import re
import struct
import sys
import warnings
from dataclasses import dataclass, field
from functools import cache, cached_property
from multiprocessing.connection import wait
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from scatlas import pl
from scatlas._util.names import short_names
from scatlas.compute.threads import n_cores, use_threads
from scatlas.errors import InputError, ScatlasError
from scatlas.io.files.atomic import atomic_path
from scatlas.workflow.inline_page import content_policy, joined_scripts
from scatlas.workflow.report._links import RowLinks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from multiprocessing.process import BaseProcess

    from matplotlib.figure import Figure

    from scatlas.workflow.report._links import Link
    from scatlas.workflow.report._summary import Summary

_PAGE = Path(__file__).parent / "page"
# A module follows those that it imports.
SCRIPTS = ("sorting", "tables", "figures", "main")
_MAX_ROWS = 1000  # of a table on the page; the TSV beside it has all
_MAX_LETTERS = 32  # of a name in a table


class TableCell(NamedTuple):
    text: str
    whole: str  # the text, if a name was cut
    href: str | None
    more: Sequence[Link]
    is_marked: bool


class TableRow(NamedTuple):
    id: str
    cells: list[TableCell]


class SideBySide:
    """Calls that run beside this process, each in a fork of it, which has all that was read."""

    def __init__(self) -> None:
        # macOS kills forks of processes that have used its frameworks.
        self._n = n_cores() if sys.platform == "linux" else 1
        self._running: list[BaseProcess] = []

    def start(self, call: Callable[[], None]) -> Callable[[], None]:
        """Begin a call when a core is free, or with one core make it; what is returned waits for
        its end. A call whose process fails is made again there, where it raises its error.
        """
        if self._n == 1:
            call()
            return lambda: None
        _import_all()
        while len(self._running) >= self._n:
            wait([process.sentinel for process in self._running])
            self._running = [process for process in self._running if process.is_alive()]
        process = multiprocessing.get_context("fork").Process(target=_run_quietly, args=[call])
        with warnings.catch_warnings():
            # Python 3.12 warns of locks that other threads hold: those of BLAS, which has none.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        self._running.append(process)

        def finish() -> None:
            process.join()
            if process.exitcode:
                call()

        return finish


@cache
def _import_all() -> None:
    """Import what figures need, which each process would import for itself."""
    for name in pl.__all__:
        getattr(pl, name)
    from matplotlib.figure import Figure

    Figure((1, 1)).savefig(io.BytesIO(), format="png")  # fonts, and the encoder


def _run_quietly(call: Callable[[], None]) -> None:
    """Make a call in a forked process, with one thread; its failure is its exit code."""
    gc.disable()  # a collection would touch, and so copy, all memory of the parent
    try:
        with use_threads(1):
            call()
    except ScatlasError:
        sys.exit(1)


@dataclass(frozen=True)
class Picture:
    name: str
    alt: str
    caption: Markup
    path: Path
    finish: Callable[[], None]  # the file is complete after it

    @property
    def id(self) -> str:
        return f"figure-{self.name}"

    @cached_property
    def data(self) -> str:
        """The PNG in base 64."""
        self.finish()
        return base64.b64encode(self.path.read_bytes()).decode()

    @property
    def is_wide(self) -> bool:
        """Whether it needs the width of the page, as a map with a long legend."""
        width, height = struct.unpack(">II", base64.b64decode(self.data[:32])[16:24])
        return bool(width > 1.4 * height)


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    caption: Markup
    head: list[tuple[str, str]]  # as shown, and whole
    rows: list[TableRow]
    numeric: list[bool]
    n_rows: int
    columns_left_out: int
    last_is_total: bool

    @property
    def id(self) -> str:
        return f"table-{self.name}"


def write_page(
    page: Path,
    *,
    title: str,
    about: str = "",
    opening: Markup,
    headline: Mapping[str, str],
    sections: Mapping[str, Sequence[Picture | Table]],
    links: Mapping[str, str] | None = None,
    summary: Summary | None = None,
    first: Picture | None = None,
) -> dict[str, int]:
    """Write a page of sections, complete in itself, with the picture that it shows ``first``;
    ``links`` has the titles and names of other pages in its folder. Return ``n_figures`` and
    ``n_tables``.
    """
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(
        (_PAGE / "report.html").read_text("utf-8")
    )
    script = joined_scripts(_PAGE, SCRIPTS)
    style = (_PAGE / "report.css").read_text("utf-8")
    text = template.render(
        title=title,
        about=about,
        first=first,
        opening=opening,
        headline=headline,
        summary=summary,
        links=links or {},
        sections={name: items for name, items in sections.items() if items},
        style=style,
        script=script,
        policy=content_policy(script, style, "data:"),
    )
    with atomic_path(page) as path:
        path.write_text(text, "utf-8")
    items = [item for section in [*sections.values(), [first] if first else []] for item in section]
    n_figures = sum(isinstance(item, Picture) for item in items)
    return {"n_figures": n_figures, "n_tables": len(items) - n_figures}


@dataclass(frozen=True)
class ReportWriter:
    """Writes figures and tables and keeps what the page shows of them."""

    captions: Path
    figures: Path
    tables: Path
    formats: Sequence[str] = ()  # of figures, beside PNG
    n_plates: int = 0
    explained: set[str] = field(default_factory=set)  # pictures whose kind the page has had
    drawing: SideBySide = field(default_factory=SideBySide)

    def picture(
        self,
        name: str,
        draw: Callable[[], Figure],
        alt: str,
        *,
        color: str | None = None,
        **known: Any,
    ) -> Picture:
        """Begin to draw ``{name}.png``, or ``{name}/{color}.png``, and in other formats; ``known``
        is for the caption.
        """
        known |= {"n_plates": self.n_plates, "again": name in self.explained}
        self.explained.add(name)
        if color is None:
            file, title, words = f"{name}.png", name, caption(self.captions, name, **known)
        else:
            title = re.sub(r"[^\w.-]+", "_", color)  # a column may be called anything
            file, words = f"{name}/{title}.png", caption(self.captions, name, color=color, **known)
        path = self.figures / file

        def write() -> None:
            drawn = draw()
            for ending in dict.fromkeys(["png", *self.formats]):
                pl.save(drawn, path.with_suffix(f".{ending}"))

        finish = self.drawing.start(write)
        return Picture(name if color is None else f"{name}-{title}", alt, words, path, finish)

    def table(
        self,
        name: str,
        title: str,
        table: pd.DataFrame,
        *,
        shown: Callable[[pd.DataFrame], pd.DataFrame] | None = None,
        most: int | None = _MAX_ROWS,
        names: Collection[str] = (),
        total: bool = False,
        written: bool = False,
        links: Callable[[pd.DataFrame], RowLinks] | None = None,
    ) -> Table:
        """Write ``{name}.tsv``, unless it is ``written`` already, and show ``most`` rows of those
        that ``shown`` chooses. With ``total`` the last row is a sum, and stays the last. Long names
        are cut at the heads of rows and columns, and in the columns ``names``.
        """
        if not written:
            with atomic_path(self.tables / f"{name}.tsv") as path:
                table.to_csv(path, sep="\t", lineterminator="\n")
        seen = table if shown is None else shown(table)
        seen = seen if most is None or len(seen) <= most else seen.iloc[:most]
        flat = seen.reset_index()
        heads = [str(column) for column in flat]
        return Table(
            name,
            title,
            caption(self.captions, name, n_plates=self.n_plates),
            list(zip(short_names(heads, _MAX_LETTERS), heads, strict=True)),
            _rows(flat, RowLinks() if links is None else links(flat), {heads[0], *names}),
            [pd.api.types.is_numeric_dtype(flat[column]) for column in flat],
            len(table),
            table.shape[1] - seen.shape[1],
            total,
        )


def caption(folder: Path, name: str, *, color: str = "", n_plates: int = 0, **known: Any) -> Markup:
    """HTML of ``{folder}/{name}.rst``: one source for Snakemake's report, which gives it
    ``snakemake.wildcards.color`` and ``snakemake.params.n_plates``, and for this page, which has
    ``known`` besides.
    """
    path = folder / f"{name}.rst"
    if not path.is_file():
        raise InputError(f"no caption {path}: write what the {name} shows there")
    environment = Environment(
        autoescape=False,  # noqa: S701 - the text is not HTML
        undefined=StrictUndefined,
        trim_blocks=True,  # as in Snakemake's report
        lstrip_blocks=True,
    )
    rule = SimpleNamespace(
        wildcards=SimpleNamespace(color=color), params=SimpleNamespace(n_plates=n_plates)
    )
    template = environment.from_string(path.read_text("utf-8"))
    text = template.render(snakemake=rule, **known)
    return _as_html(text)


def _as_html(text: str) -> Markup:
    """HTML of captions, which have paragraphs, **strong** words and ``literals`` alone, as docutils
    makes it, whose modules take 0.2 s to import.
    """

    def marked(found: re.Match[str]) -> str:
        if found[2]:
            return f"<strong>{found[2]}</strong>"
        unbroken = r"\S+[^\w\s]{2}\S+|\S*[-?]\S+"
        words = re.sub(unbroken, r'<span class="pre">\g<0></span>', found[1])
        return f'<span class="docutils literal">{words}</span>'

    text = html.escape(text.strip(), quote=False).replace('"', "&quot;")
    text = re.sub(r"``(.+?)``|\*\*(.+?)\*\*", marked, text, flags=re.DOTALL)
    paragraphs = (f"<p>{paragraph}</p>\n" for paragraph in re.split(r"\n\s*\n", text))
    return Markup("".join(paragraphs))  # noqa: S704 - escaped


def _rows(flat: pd.DataFrame, links: RowLinks, names: Collection[str]) -> list[TableRow]:
    whole = [cell_texts(flat[column]) for column in flat]
    texts = [
        short_names(column, _MAX_LETTERS) if name in names else column
        for name, column in zip(map(str, flat), whole, strict=True)
    ]
    hrefs = [links.of.get(column) for column in flat]
    marks = [links.marked.get(column) for column in flat]
    rows = []
    for i in range(len(flat)):
        cells = []
        for j, column in enumerate(texts):
            href, mark = hrefs[j], marks[j]
            more = links.more[i] if links.more and j == 0 else ()
            is_marked = bool(mark[i]) if mark else False
            link = href[i] if href else None
            cells.append(TableCell(column[i], whole[j][i], link, more, is_marked))
        rows.append(TableRow(links.ids[i] if links.ids else "", cells))
    return rows


def cell_texts(column: pd.Series) -> list[str]:
    """A column as text: thousands separated, as few decimals as all its numbers need."""
    if not pd.api.types.is_numeric_dtype(column):
        return [str(value) for value in column]
    numbers = column[np.isfinite(column.astype(float))]
    for decimals in (0, 1, 2):
        if np.allclose(numbers, numbers.round(decimals), rtol=0, atol=1e-9):
            return [_number(value, f",.{decimals}f") for value in column]
    return [_number(v, ",.1f" if abs(v) >= 1000 else ".4g") for v in column]


def _number(value: float, form: str) -> str:
    if np.isnan(value):
        return ""
    if np.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:{form}}"
