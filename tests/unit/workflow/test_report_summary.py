"""The first words of the report, and its links."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import numpy as np
import pandas as pd
import pytest

from scatlas.workflow.labels import Labels
from scatlas.workflow.report import Results
from scatlas.workflow.report._links import Anchors, Explorer, Link, cluster_links, marker_links
from scatlas.workflow.report._odd_plates import FACTS, PlateComparison
from scatlas.workflow.report._summary import Summary, clusters_of_one_plate, summarize
from tests.helpers.report_files import CONFIG, make_results

EVERYTHING = Explorer(frozenset({"leiden", "plate"}), frozenset({"gene1"}))
THERE = {
    *("figure-cells_kept", "figure-qc_violins", "figure-hvg_overlap", "figure-umap-leiden"),
    *("table-clusters", "table-odd_plates"),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return make_results(tmp_path_factory.mktemp("run"), n_plates=14, n_cells=40)


def facts_of(results: Results) -> pd.DataFrame:
    """Plates that hardly differ."""
    rng = np.random.default_rng(0)
    names = [fact.name for fact in FACTS]
    facts = pd.DataFrame(rng.normal(50, 1, (len(results.qc), len(names))), columns=names)
    return facts.set_axis(pd.Index(results.qc, name="plate"))


def summary_of(
    results: Results,
    facts: pd.DataFrame,
    explorer: Explorer = EVERYTHING,
    there: set[str] = THERE,
    **config: object,
) -> Summary:
    clusters = results.clusters_by_plate
    anchors = Anchors.number(results, list(clusters.index))
    comparison = PlateComparison(facts)
    return summarize(results, CONFIG | config, comparison, clusters, anchors, explorer, there)


def words(links: list[Link]) -> str:
    return "".join(link.text for link in links)


def test_facts_are_in_plain_words(results: Results):
    found = summary_of(results, facts_of(results))
    kept = sum(plate["n_kept"] for plate in results.qc_summaries.values())
    held = f"{100 * results.variance['variance_ratio'].sum():.0f}% of their variance."
    n, components = len(results.consensus), f"12 components hold {held}"
    assert [words(sentence) for sentence in found.facts] == [
        f"14 plates with 560 cells: {kept} ({kept / 5.6:.1f}%) passed the quality bounds.",
        f"Of 60 genes the atlas has {n} whose counts vary most between cells; {components}",
        "The map has 560 cells in 4 clusters.",
    ]
    left = replace(results, left_out={"p9": "broken"})
    said = summary_of(left, facts_of(results)).facts[1]
    assert words(said) == "1 plate was left out as unusable."
    assert said[0].href == "#table-left_out"


def test_the_next_steps_are_those_that_were_not_done(results: Results):
    steps = summary_of(results, facts_of(results)).following
    assert [words(step)[:4] for step in steps] == ["Name", "Corr", "Comp"]
    assert [link.text for step in steps for link in step if link.is_code] == [
        *("scatlas label", "integrate: {key: [plate]}", "effects")
    ]
    mixed = summary_of(results, facts_of(results), integrate={"key": ["plate"]}).following
    assert mixed == [steps[0], steps[2]]
    named = replace(results, labels_store=None)
    named.__dict__["labels"] = Labels(names={"0": "T cells"})
    assert summary_of(named, facts_of(named), effects={"condition": "x"}).following == [steps[1]]


def test_nothing_odd_is_stated(results: Results):
    found = summary_of(results, facts_of(results))
    assert words(found.verdict).startswith("None of the 14 plates is odd")
    assert found.odd == []
    assert found.more_odd == 0


def test_one_plate_is_compared_with_none(tmp_path: Path):
    one = make_results(tmp_path, n_plates=1, n_cells=40)
    found = summary_of(one, facts_of(one), there={*THERE, "figure-umap-plate"})
    assert words(found.verdict) == "There is 1 plate, and no other to compare it with."
    assert [words(step)[:4] for step in found.following] == ["Name"]
    assert not any("plates" in words(line) for line in found.look)


@pytest.mark.parametrize("n", [2, 4])
def test_few_plates_are_not_judged(results: Results, n: int):
    facts = facts_of(results).iloc[:n].copy()
    facts.iloc[0] *= 100
    said = words(summary_of(results, facts).verdict)
    assert said.startswith(f"There are {n} plates: too few")
    assert "at least 5" in said


def test_odd_plates_have_reasons_with_links(results: Results):
    facts = facts_of(results)
    facts.loc["plate3", ["median counts", "shared genes %"]] = [2, 1]
    facts.loc["plate9", "cluster distance"] = 900
    found = summary_of(results, facts)
    assert words(found.verdict) == "2 of 14 plates are odd (see the table of plates):"
    assert [odd.plate for odd in found.odd] == [
        Link("plate9", "#plate-8"),
        Link("plate3", "#plate-2"),
    ]
    assert found.odd[0].reasons[0][1] == Link("table", "#table-clusters")
    assert {reason[1].href for reason in found.odd[1].reasons} == {
        "#figure-qc_violins",
        "#figure-hvg_overlap",
    }
    said = [words(reason) for reason in found.odd[1].reasons]
    assert "Only 2 counts in its median cell; on other plates about 50 (figure)." in said
    assert found.odd[0].view.href.startswith("explore.html#")
    none = summary_of(results, facts, Explorer(frozenset(), frozenset()))
    assert none.odd[0].view is None
    assert not any("explorer" in words(sentence) for sentence in none.look)


def test_the_facts_of_a_run_are_those_of_its_files(results: Results, tmp_path: Path):
    """A plate whose summary has a tenth of the counts is odd by them."""
    plate = "plate5"
    summary = json.loads(results.summaries[plate].read_text())
    (tmp_path / "qc_summary.json").write_text(
        json.dumps(summary | {"median_counts": summary["median_counts"] / 50})
    )
    changed = replace(results, summaries={**results.summaries, plate: tmp_path / "qc_summary.json"})
    before, after = results.comparison, changed.comparison
    assert not before.is_odd["median counts"].any()
    assert after.is_odd.index[after.is_odd["median counts"]].tolist() == [plate]
    table = pd.read_parquet(results.qc[plate])
    median = table.loc[table["keep"], "pct_counts_mt"].median()
    assert after.facts.loc[plate, "median mt %"] == median


def test_at_most_ten_plates_are_listed(tmp_path: Path):
    results = make_results(tmp_path, n_plates=40, n_cells=4)
    facts = facts_of(results)
    facts.iloc[:12, 2] = 4
    found = summary_of(results, facts)
    assert len(found.odd) == 10
    assert found.more_odd == 2


def test_clusters_of_one_plate():
    table = pd.DataFrame(
        {"a": [900, 40, 0, 5], "b": [10, 100, 95, 95], "c": [10, 100, 5, 0]},
        index=["0", "2", "10", "1"],
    )
    assert clusters_of_one_plate(table) == {"b": ["1", "10"]}, "most cells are of plate a"
    assert clusters_of_one_plate(table[["a"]]) == {}
    assert clusters_of_one_plate(table * 0) == {}


HOSTILE = ["a b", "<script>alert(1)</script>", "\"'&=#%+", "🧬 日本", "\\u003c"]


@pytest.mark.parametrize("name", HOSTILE)
def test_addresses_of_the_explorer_hold_any_name(name: str):
    """As URLSearchParams reads them."""
    explorer = Explorer(frozenset({name}), frozenset({name}))
    hash_ = urlparse(explorer.level(name, name)).fragment
    found = parse_qs(hash_, strict_parsing=True)
    assert found["color"] == [f"column:{name}"]
    assert [json.loads(text) for text in found["only"]] == [[name, name]]
    assert parse_qs(urlparse(explorer.gene(name)).fragment)["color"] == [f"gene:{name}"]
    assert explorer.level("other", name) is None
    assert explorer.gene("other") is None


def test_the_explorer_of_a_config(results: Results):
    wanted = CONFIG["explore"] | {"columns": ["drug"], "n_genes": 2}
    explorer = Explorer.of_config(results, {**CONFIG, "explore": wanted})
    assert explorer.columns == {"drug"}
    assert len(explorer.genes) == 2
    usual = Explorer.of_config(results, {**CONFIG, "explore": wanted | {"columns": []}})
    assert {"leiden", "plate"} <= usual.columns
    none = Explorer.of_config(results, {**CONFIG, "explore": wanted | {"page": False}})
    assert none.columns == none.genes == frozenset()


def test_links_of_clusters_and_markers(results: Results, tmp_path: Path):
    markers = pd.DataFrame(
        {"by": ["leiden", "leiden", "line"], "group": ["0", "0", "0"], "names": ["gene1", "x", "x"]}
    )
    markers.to_csv(tmp_path / "markers.tsv", sep="\t", index=False)
    anchors = Anchors.number(replace(results, markers=tmp_path / "markers.tsv"), ["0", "1"])
    links = cluster_links(
        pd.DataFrame({"leiden": ["0", "1"]}), anchors=anchors, explorer=EVERYTHING
    )
    assert links.ids == ["cluster-0", "cluster-1"]
    assert [[link.text for link in more] for more in links.more] == [
        ["markers", "explore"],
        ["explore"],
    ]
    found = marker_links(markers, anchors=anchors, explorer=EVERYTHING)
    assert found.ids == ["markers-0", "", "markers-1"]
    assert found.of["group"] == ["#cluster-0", "#cluster-0", None]
    assert found.of["names"] == ["explore.html#color=gene%3Agene1", None, None]
