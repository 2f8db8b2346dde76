"""The two reports of a finished atlas in a browser."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from markupsafe import Markup

from scatlas.workflow.report._page import caption
from tests.helpers import bidi
from tests.helpers.bidi import Tab
from tests.workflow.conftest import CONFIG
from tests.workflow.runs import ROOT, Project

pytestmark = [pytest.mark.workflow, pytest.mark.browser]
tab = bidi.tab

COLORS = ("cell_line", "drug", "leiden", "plate")
FIGURES = {
    "Cells": {"Cells kept": "cells_kept", "Quality of the cells": "qc_violins"},
    "Genes": {
        "Overlap of the variable genes": "hvg_overlap",
        "Variable genes by number of plates": "genes_by_plates",
    },
    "Components": {"Variance explained": "pca_scree"},
    "Map": {
        f"UMAP by {color}": f"umap/{color}" for color in (*COLORS, "leiden_share", "map_distance")
    },
    "Markers": {
        "Markers by leiden: dots": "markers_dots/leiden",
        "Markers by leiden: heat map": "markers_heat_map/leiden",
    },
    "Run": {},
}
TABLES = {
    "Cells": {
        "Plates compared (table)": "odd_plates",
        "Cells (table)": "cells",
        "Bounds (table)": "thresholds",
    },
    "Genes": {"Consensus (table)": "consensus"},
    "Components": {"Variance explained (table)": "pca"},
    "Map": {"Clusters (table)": "clusters", "Clusters by plate (table)": "clusters_by_plate"},
    "Markers": {"Marker genes (table)": "markers"},
    "Run": {
        "Time and memory (table)": "runs",
        "Config (table)": "settings",
        "Software (table)": "versions",
    },
}
RULES = {
    *("load", "qc_filter", "normalize", "hvg", "consensus", "select_genes"),
    *("concat_on_disk", "pca", "atlas", "subset", "neighbors"),
    *("umap", "leiden", "embedding", "base", "map", "report"),
    *("cell_groups", "group_sums", "markers", "by_gene"),
}


class Pages:
    """Snakemake's report, operated by its links."""

    def __init__(self, tab: Tab, path: Path) -> None:
        self._tab = tab
        tab.open(path.resolve().as_uri())
        self.wait("document.querySelector('#app nav')")

    def wait(self, condition: str) -> None:
        self._tab.wait(condition)

    def get(self, expression: str) -> Any:
        return self._tab.run(f"return {expression}")

    def follow(self, text: str) -> None:
        """Click the link with this text."""
        find = f"[...document.querySelectorAll('#app nav a')].find(a => a.innerText == {text!r})"
        self.wait(find)
        self._tab.run(f"{find}.click()")

    def open(self, category: str) -> dict[str, int]:
        """Open a category; return its results with their rows."""
        self.follow(category)
        self.wait("document.querySelector('#app nav table tbody tr')")
        names = "[...document.querySelectorAll('#app nav tbody tr')].map(r => r.cells[0].innerText)"
        return {name: row for row, name in enumerate(self.get(names))}

    def click(self, row: int, icon: str) -> None:
        self._tab.run(f"{self.link(row, icon)}.click()")

    def link(self, row: int, icon: str) -> str:
        return (
            f"document.querySelectorAll('#app nav tbody tr')[{row}]"
            f".querySelector('a[iconname=\"{icon}\"]')"
        )

    def caption(self, row: int, category: str) -> str:
        """Text of the page of a result; then return to its category."""
        self.click(row, "information-circle")
        self.wait("document.querySelector('#app nav').innerText.includes('DESCRIPTION')")
        text = self.get("document.querySelector('#app nav').innerText")
        self.follow(category)
        self.wait("document.querySelector('#app nav table tbody tr')")
        return words(text)


def words(text: str) -> str:
    return " ".join(text.split())


def content(data_uri: str) -> bytes:
    return base64.b64decode(data_uri.partition(";base64,")[2])


@pytest.fixture(scope="module")
def page(built: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    done = built.run("--report", str(path))
    assert done.returncode == 0, done.stdout
    return path


@pytest.fixture
def report(page: Path, tab: Tab) -> Pages:
    return Pages(tab, page)


@pytest.mark.parametrize("category", FIGURES)
def test_snakemakes_report_has_every_figure_and_table_with_its_caption(
    report: Pages, built: Project, category: str
):
    rows = report.open(category)
    assert set(rows) == {*FIGURES[category], *TABLES[category]}
    for name, file in FIGURES[category].items():
        report.click(rows[name], "eye")
        png = (built.results / f"figures/{file}.png").read_bytes()
        start = f"data:image/png;charset=utf8;filename={Path(file).name}.png;"
        shown = f"[...document.querySelectorAll('#app img')].find(i => i.src.startsWith('{start}'))"
        report.wait(f"{shown} && {shown}.naturalWidth > 300")
        assert content(report.get(f"{shown}.src")) == png
    for name, file in TABLES[category].items():
        table = report.get(f"{report.link(rows[name], 'eye')}.href")
        assert content(table) == (built.results / f"tables/{file}.tsv").read_bytes()
    for name, file in (FIGURES[category] | TABLES[category]).items():
        rst, _, color = file.partition("/")
        wanted = caption(ROOT / "workflow/report", rst, color=color)
        assert words(Markup(wanted).striptags()) in report.caption(rows[name], category)


def test_snakemakes_report_has_categories_workflow_and_run_times(report: Pages):
    links = report.get("[...document.querySelectorAll('#app nav a')].map(a => a.innerText)")
    assert [link for link in links if link] == [
        *("Workflow", "Statistics", "About"),
        *sorted(FIGURES),
    ]
    opening = words(Markup(caption(ROOT / "workflow/report", "workflow")).striptags())
    assert opening in words(report.get("document.querySelector('#app').innerText"))
    report.wait("document.querySelector('#rulegraph canvas')?.height > 300")

    report.follow("Statistics")

    plots = "[...document.querySelectorAll('#app canvas')].map(c => c.height)"
    report.wait(f"{plots}.length == 2 && {plots}.every(height => height > 200)")
    times = report.get("runtimes_spec.data.values")
    assert {time["rule"] for time in times} == RULES
    assert all(0 < time["runtime"] < 3600 for time in times)


def test_snakemakes_report_asks_nobody_for_anything(report: Pages, tab: Tab):
    assert bidi.look(tab).fetched == tab.errors == []


def test_the_page_of_the_atlas(built: Project, tab: Tab):
    tab.open((built.results / "report.html").as_uri())
    page = bidi.look(tab)
    wanted = [file.replace("/", "-") for files in FIGURES.values() for file in files.values()]
    assert set(page.figures) == {f"figure-{name}" for name in wanted}
    assert set(page.tables) == {
        f"table-{name}" for tables in TABLES.values() for name in tables.values()
    }
    assert page.tables["table-cells"] == 4, "three plates and their sum"
    ran = pd.read_csv(built.results / "tables/runs.tsv", sep="\t")["rule"]
    assert page.tables["table-runs"] == len(ran)
    # The report does not need by_gene, which may run after it.
    assert set(ran) - {"by_gene"} == RULES - {"report", "by_gene"}, "all that ran before the report"
    assert page.broken == page.untitled == page.fetched == tab.errors == []
    text = tab.run("return document.body.innerText")
    assert re.search(r"consensus\.min_plates\s+2\b", text)
    assert re.search(rf"pca\.n_comps\s+{CONFIG['pca']['n_comps']}\b", text)
