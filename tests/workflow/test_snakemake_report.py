"""The two reports of a finished atlas in a browser."""

from __future__ import annotations

import base64
import re
from pathlib import Path

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

FIGURES = {
    "Cells": {"Cells kept": "cells_kept", "Quality of the cells": "qc_violins"},
    "Genes": {
        "Overlap of the variable genes": "hvg_overlap",
        "Variable genes by number of plates": "genes_by_plates",
    },
    "Components": {"Variance explained": "pca_scree"},
    "Map": {
        f"UMAP by {color}": f"umap/{color}" for color in ("leiden", "leiden_share", "map_distance")
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
    *("umap", "leiden", "embedding", "map", "report"),
    *("cell_groups", "group_sums", "markers", "by_gene", "merge_by_gene"),
}


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


def test_snakemakes_report_has_each_result_with_its_caption(built: Project, page: Path, tab: Tab):
    """Read from what its page holds; it shows them, the run times and the opening."""
    tab.open(page.as_uri())
    tab.wait("document.querySelector('#app nav')")
    shown, categories = tab.run("return [results, categories]")
    assert set(categories) == set(FIGURES)
    by_file = {Path(path).relative_to("results").as_posix(): one for path, one in shown.items()}
    for category in FIGURES:
        files = {name: f"figures/{file}.png" for name, file in FIGURES[category].items()}
        files |= {name: f"tables/{file}.tsv" for name, file in TABLES[category].items()}
        listed = {path for paths in categories[category].values() for path in paths}
        assert listed == {f"results/{file}" for file in files.values()}
        for name, file in files.items():
            found = by_file.pop(file)
            assert found["labels"] == {"result": name}
            assert content(found["data_uri"]) == (built.results / file).read_bytes()
            rst, _, color = file.partition("/")[2].rpartition(".")[0].partition("/")
            ours = caption(ROOT / "workflow/report", rst, color=color, n_plates=3)
            wanted = words(Markup(ours).striptags())
            assert wanted in words(Markup(found["caption"]).striptags())
    assert by_file == {}
    opening = words(Markup(caption(ROOT / "workflow/report", "workflow")).striptags())
    assert opening in words(tab.run("return document.querySelector('#app').innerText"))
    tab.wait("document.querySelector('#rulegraph canvas')?.height > 300")
    times = tab.run("return runtimes_spec.data.values")
    assert {time["rule"] for time in times} == RULES
    assert all(0 < time["runtime"] < 3600 for time in times)
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
    # The report does not need these, which may run after it.
    others = {"by_gene", "merge_by_gene"}
    assert set(ran) - others == RULES - {"report", *others}, "all that ran before the report"
    assert page.broken == page.untitled == page.fetched == tab.errors == []
    text = tab.run("return document.body.innerText")
    assert re.search(r"consensus\.min_plates\s+2\b", text)
    assert re.search(rf"pca\.n_comps\s+{CONFIG['pca']['n_comps']}\b", text)
