"""report.html and its tables: the right numbers, complete in itself, readable in a browser."""

from __future__ import annotations

import base64
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from jinja2 import Environment
from markupsafe import Markup

from scatlas._version import __version__
from scatlas.compute.threads import use_threads
from scatlas.errors import InputError
from scatlas.io.files.checksums import write_json
from scatlas.workflow.report import Results, _tables
from scatlas.workflow.report._build import _milestones
from scatlas.workflow.report._page import ReportWriter, caption, cell_texts, write_page
from scatlas.workflow.report._results import AtlasMap
from tests.helpers.report_files import CAPTIONS, CONFIG, make_report, make_results

FIGURES = ["cells_kept", "qc_violins", "hvg_overlap", "genes_by_plates", "pca_scree"]
MANY = ["cluster_shares"]
JINJA = Environment(autoescape=True, trim_blocks=True)  # as in Snakemake's report
MAPS = ["cell_line", "plate", "leiden"]
OPTIONAL = ["left_out", "bounds", "doublets", "doublet_rates", "integration", "mixing"]
MARKERS = ["markers", "markers_wilcoxon", "markers_dots", "markers_heat_map"]
TABLES = ["odd_plates", "cells", "thresholds", "consensus", "pca", "clusters", "runs"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results, dict[str, int]]:
    folder = tmp_path_factory.mktemp("run")
    results = make_results(folder)
    return folder, results, make_report(folder, results)


def test_everything_is_written(run) -> None:
    folder, _, facts = run
    assert facts == {"n_figures": 8, "n_tables": 9}
    figures = sorted(
        str(p.relative_to(folder / "figures")) for p in folder.rglob("figures/**/*.png")
    )
    assert figures == sorted([f"{f}.png" for f in FIGURES] + [f"umap/{m}.png" for m in MAPS])
    tables = {path.stem for path in (folder / "tables").iterdir()}
    assert tables == {*TABLES, "settings", "versions"}
    assert not list(folder.rglob(".*")), "no half-written file stays"


def test_page_is_complete_in_itself(run) -> None:
    folder, _, _ = run
    page = (folder / "report.html").read_text()
    sources = re.findall(r"""(?:src|href)=["']?([^"'\s>]+)""", page)
    # A link to the explorer beside it is all that leaves the page.
    away = {s.partition("#")[0] for s in sources if not s.startswith(("data:", "#"))}
    assert away == {"explore.html"}
    assert "url(" not in page
    assert "@import" not in page
    assert page.count("<script") == 1
    images = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    names = [f"{f}.png" for f in FIGURES] + [f"umap/{m}.png" for m in MAPS]
    on_disk = {(folder / "figures" / name).read_bytes() for name in names}
    assert {base64.b64decode(image) for image in images} == on_disk


@pytest.mark.parametrize("n", [1, 2, 5])
def test_pictures_do_not_depend_on_how_many_are_drawn_side_by_side(
    run, tmp_path: Path, n: int
) -> None:
    folder, results, facts = run
    with use_threads(n):
        assert make_report(tmp_path, results) == facts
    for path in folder.rglob("figures/**/*.png"):
        assert (tmp_path / path.relative_to(folder)).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("n", [1, 2])
def test_a_picture_that_cannot_be_drawn_is_one_sentence(
    tmp_path: Path, n: int, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise InputError("there is no plate to draw: give at least one")

    with use_threads(n), pytest.raises(InputError, match="there is no plate to draw"):
        _ = ReportWriter(CAPTIONS, tmp_path, tmp_path).picture("pca_scree", fail, "a curve").data
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("drawn", [True, False])
def test_mixed_cells_have_a_section_of_their_own(run, tmp_path: Path, drawn: bool) -> None:
    _, results, facts = run
    adata = ad.read_h5ad(results.umap)
    if drawn:
        adata.obsm["X_umap_harmony"] = adata.obsm["X_umap"][::-1].copy()
    rows = [["mixed", 0.25, 0.75], ["apart", 0.9, 0.5]]
    names = ["should be", "score before", "score after"]
    scores = pd.DataFrame(rows, index=["plate", "line"], columns=names)
    adata.uns["integrate"] = {"scores": scores.rename_axis("column")}
    adata.write_h5ad(tmp_path / "integrated.h5ad")
    config = CONFIG | {"integrate": {"key": ["plate"], "label": "no such column"}}
    more = make_report(tmp_path, replace(results, integrated=tmp_path / "integrated.h5ad"), config)
    n_figures = facts["n_figures"] + drawn
    assert more == {"n_figures": n_figures, "n_tables": facts["n_tables"] + 1}
    assert (tmp_path / "figures/integration/plate.png").is_file() == drawn
    table = pd.read_csv(tmp_path / "tables/mixing.tsv", sep="\t", index_col="column")
    assert table.loc["plate", "score after"] == 0.75
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "plate mixes better (0.25 before, 0.75 after; 1 is best); line is blurred, so" in page


@pytest.mark.parametrize("by", ["leiden", None])
def test_markers_have_figures_and_their_first_rows(run, tmp_path: Path, by: str | None) -> None:
    """Without groups to compare there is an empty table, and no picture."""
    _, results, facts = run
    groups, genes = ["0", "1"] if by else ["0"], [f"gene{i}" for i in range(5)]
    table = pd.DataFrame(
        {"by": by, "group": group, "rank": rank, "names": gene, "scores": 3.25 - rank}
        for group in (groups if by else [])
        for rank, gene in enumerate(genes, start=1)
    )
    table = table if by else pd.DataFrame(columns=["by", "group", "rank", "names", "scores"])
    table.to_csv(tmp_path / "markers.tsv", sep="\t", index=False)
    obs = pd.DataFrame({"by": "leiden", "group": groups, "n_cells": 5}, index=groups)
    genes = genes if by else []
    numbers = np.random.default_rng(0).random((len(groups), len(genes)), np.float32)
    means = ad.AnnData(layers={"mean": numbers, "share": numbers}, obs=obs)
    means.var_names = genes
    means.write_h5ad(tmp_path / "markers.h5ad")
    files = {"markers": tmp_path / "markers.tsv", "means": tmp_path / "markers.h5ad"}
    more = make_report(tmp_path, replace(results, **files))
    n_figures = facts["n_figures"] + (2 if by else 0)
    assert more == {"n_figures": n_figures, "n_tables": facts["n_tables"] + 1}
    page = (tmp_path / "report.html").read_text()
    # In the explorer, which has the best markers of each group.
    assert page.count(">gene2</a></td>") == page.count(">gene0</a></td>") == (2 if by else 0)
    assert ">gene3</a></td>" not in page
    for name in ("markers_dots", "markers_heat_map"):
        pictures = [path.name for path in (tmp_path / "figures" / name).iterdir()]
        assert pictures == (["leiden.png"] if by else [])
    assert not (tmp_path / "tables/markers.tsv").exists(), "the step `markers` writes it"


def test_doublets_have_their_histograms_and_rates(run, tmp_path: Path) -> None:
    _, results, facts = run
    histogram = {"observed": [90, 10, 0], "simulated": [60, 20, 20]}
    lane = {"n_cells": 100, "threshold": 0.5, "n_doublets": 8, "detectable": 0.4}
    none = {
        "doubt": "40 cells are too few",
        "n_cells": 40,
        "threshold": None,
        "n_doublets": 0,
        "detectable": None,
    }
    files = {}
    for plate, captures in {"plate1": {"a": lane, "b": none}, "plate2": {"": lane}}.items():
        captures = {name: {**found, "histogram": histogram} for name, found in captures.items()}
        files[plate] = tmp_path / f"{plate}.json"
        write_json(files[plate], {"captures": captures})
    more = make_report(tmp_path, replace(results, doublets=files))
    assert more == {name: n + 1 for name, n in facts.items()}
    assert (tmp_path / "figures/doublets.png").is_file()
    table = pd.read_csv(tmp_path / "tables/doublet_rates.tsv", sep="\t", index_col="capture")
    assert list(table.index) == ["plate1, a", "plate1, b", "plate2"]
    assert table.loc["plate1, a"].tolist()[:6] == [100, 0.5, 8, 8.0, 40.0, 20.0]
    assert table.loc["plate1, b"].isna().tolist() == [False, True, False, False, True, True, False]
    assert table["doubt"].fillna("").tolist() == ["", "40 cells are too few", ""]
    said = "Doublets are in doubt in 1 of 3 captures: "
    assert said in (tmp_path / "report.html").read_text()


def test_plates_left_out_are_listed_with_their_reasons(run, tmp_path: Path) -> None:
    _, results, facts = run
    more = make_report(tmp_path, replace(results, left_out={"p9": "p9.h5ad: obs is empty"}))
    assert more == {**facts, "n_tables": facts["n_tables"] + 1}
    page = (tmp_path / "report.html").read_text()
    assert 'id="table-left_out"' in page
    assert (
        tmp_path / "tables/left_out.tsv"
    ).read_text() == "plate\treason\np9\tp9.h5ad: obs is empty\n"
    assert ">1 plate was left out</a>" in page
    alone = CONFIG | {"explore": CONFIG["explore"] | {"page": False}}
    assert make_report(tmp_path, replace(results, left_out={}), alone) == facts
    assert "explore.html" not in (tmp_path / "report.html").read_text()
    assert (tmp_path / "tables/left_out.tsv").read_text() == "plate\treason\n"


def test_page_is_the_same_again(run, tmp_path: Path) -> None:
    folder, results, _ = run
    make_report(tmp_path, results)
    assert (tmp_path / "report.html").read_bytes() == (folder / "report.html").read_bytes()


def test_headline_and_tables_hold_the_numbers(run) -> None:
    folder, results, _ = run
    page = (folder / "report.html").read_text()
    kept = sum(plate["n_kept"] for plate in results.qc_summaries.values())
    assert 400 < kept < 600
    headline = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page))
    assert headline == {
        "cells": str(kept),
        "plates": "3",
        "clusters": "4",
    }
    cells = pd.read_csv(folder / "tables" / "cells.tsv", sep="\t", index_col="plate")
    assert cells.loc["all plates", "kept"] == kept == cells["kept"].iloc[:-1].sum()
    columns = ["removed by min_genes", "removed by max_pct_mt"]  # in their turn, not by name
    assert [column for column in cells if column.startswith("removed by")] == columns
    removed = cells[columns].sum(axis=1)
    pd.testing.assert_series_equal(cells["cells"], cells["kept"] + removed, check_names=False)


def test_the_page_has_title_day_and_version(run, tmp_path: Path) -> None:
    """The day is that of the map, so that a report that is made again has the same bytes."""
    folder, results, _ = run
    page = (folder / "report.html").read_text()
    assert "<h1>demo</h1>" in page
    manifests = shutil.copytree(results.manifests, tmp_path / "manifests")
    write_json(manifests / "runs/embedding.json", {"finished": "2026-05-04T23:59:59+0200"})
    make_report(
        tmp_path, replace(results, manifests=manifests), CONFIG | {"title": "Blood & <more>"}
    )
    page = (tmp_path / "report.html").read_text()
    assert "<h1>Blood &amp; &lt;more&gt;</h1>" in page
    assert f"4 May 2026, scatlas {__version__}<" in page
    make_report(tmp_path, results, CONFIG | {"outdir": "results"})
    assert "<h1>Atlas of single cells</h1>" in (tmp_path / "report.html").read_text()


def test_long_names_stay_different(tmp_path: Path) -> None:
    """Heads of rows and columns are cut where they are alike, and keep the whole name."""
    writer = ReportWriter(CAPTIONS, tmp_path, tmp_path)
    names = [f"{'a long name of a sample ' * 5}{i} of the first visit" for i in range(60)]
    frame = pd.DataFrame(np.zeros((60, 60), int), names, names)
    table = writer.table("clusters", "Clusters", frame)
    rows = [row.cells[0] for row in table.rows]
    assert [cell.whole for cell in rows] == [whole for _, whole in table.head[1:]] == names
    for short in ([cell.text for cell in rows], [text for text, _ in table.head[1:]]):
        assert len(set(short)) == 60
        assert max(map(len, short)) <= 32
        assert all(str(i) in text for i, text in enumerate(short))
    page = tmp_path / "report.html"
    write_page(page, title="60", opening=Markup(), headline={}, sections={"Map": [table]})
    assert page.read_text().count(f'title="{names[7]}"') == 2
    assert f'data-key="{names[7]}"' in page.read_text()


def test_plates_must_agree(run) -> None:
    _, results, _ = run
    fewer = {plate: path for plate, path in results.hvg.items() if plate != "plate2"}
    with pytest.raises(InputError, match="the plates of hvg"):
        replace(results, hvg=fewer)


def test_qc_tables_are_read_one_at_a_time(run, monkeypatch: pytest.MonkeyPatch) -> None:
    _, results, _ = run
    tables = results.qc_tables
    assert list(tables) == ["plate1", "plate2", "plate3"]
    assert len(tables) == 3
    assert list(tables["plate1"].columns) == [
        *("total_counts", "n_genes_by_counts", "pct_counts_mt", "keep")
    ]
    assert tables["plate1"] is not tables["plate1"]


def test_genes_named_like_missing_values_stay(run, tmp_path: Path) -> None:
    _, results, _ = run
    path = tmp_path / "genes.tsv"
    path.write_text("gene\nNA\nnull\n7SK\n")
    assert list(replace(results, genes=path).consensus) == ["NA", "null", "7SK"]


def test_thresholds_table() -> None:
    bounds = {"min_genes": 5, "filter": None}
    plates = {
        "a": {"n_cells": 80, "removed": {"min_genes": 8}, "thresholds": bounds},
        "b": {"n_cells": 20, "removed": {"min_genes": 1}, "thresholds": bounds},
    }
    table = _tables.thresholds(plates)
    assert table.to_dict("index") == {
        "min_genes": {"bound": 5, "cells removed": 9, "% of all cells": 9.0}
    }
    plates["a"]["thresholds"] = {"min_genes": None}
    assert list(_tables.thresholds(plates).columns) == list(table.columns)


def test_bounds_have_a_table_and_doubts_are_said(run, tmp_path: Path) -> None:
    _, results, facts = run
    bounds = dict.fromkeys(("min_genes", "min_counts", "max_counts", "max_pct_mt"))
    summaries = {}
    for plate, path in results.summaries.items():
        summary = json.loads(path.read_text())
        rows = [
            {"group": name, "cells": 80, "kept": 60, "max_genes": 95.04} | bounds for name in "ab"
        ]
        summary["bounds"] = rows if plate == "plate1" else rows[:1]
        summary["n_kept"] = 70 if plate == "plate2" else 180
        summaries[plate] = tmp_path / f"{plate}.json"
        write_json(summaries[plate], summary)
    few = replace(results, summaries=summaries, too_few_cells={"plate2": 70})
    more = make_report(tmp_path, few)
    assert more == {**facts, "n_tables": facts["n_tables"] + 1}
    table = pd.read_csv(tmp_path / "tables/bounds.tsv", sep="\t")
    assert table["plate"].tolist() == ["plate1", "plate1", "plate2", "plate3"]
    assert table["group"].fillna("").tolist() == ["a", "b", "", ""]
    assert table["kept %"].tolist() == [75.0] * 4
    assert table["max_genes"].tolist() == [95.0] * 4
    page = (tmp_path / "report.html").read_text()
    assert "plate2 keeps only 35% of its cells: " in page
    assert "Too small to choose genes (consensus.min_cells): plate2." in page
    # Only two plates choose genes, and what a third one shares is not odd.
    assert np.isnan(few.comparison.facts.loc["plate2", "shared genes %"])
    consensus = pd.read_csv(tmp_path / "tables/consensus.tsv", sep="\t", index_col="plates")
    assert list(consensus.index) == [1, 2]


def test_consensus_table() -> None:
    table = _tables.consensus({"a": ["x", "y"], "b": ["y", "z"], "c": ["y", "z"]}, ["y", "z"])
    assert table["genes"].to_dict() == {1: 1, 2: 1, 3: 1}
    assert table["in the atlas"].to_dict() == {1: 0, 2: 1, 3: 1}


def test_clusters_table() -> None:
    obs = pd.DataFrame(
        {"leiden": ["10", "9", "9", "9"], "plate": ["p", "p", "q", "q"], "cell_line": list("abbc")}
    )
    table = _tables.clusters(_tables.crosstab(obs, "cell_line"), "cell_line", {})
    assert list(table.index) == ["9", "10"]
    row = {"cells": 3, "most common cell_line": "b", "its %": 66.7, "a": 0, "b": 2, "c": 1}
    assert table.loc["9"].to_dict() == row
    by_plate = _tables.clusters(_tables.crosstab(obs, "plate"), "plate", {"9": "B cells"})
    assert list(by_plate.columns[-2:]) == ["p", "q"]
    assert list(by_plate["name"]) == ["B cells", ""]


@pytest.fixture(scope="module")
def with_atlas(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results]:
    """Results with an atlas whose cells are all mapped: those of the sample, and more."""
    folder = tmp_path_factory.mktemp("atlas")
    results = make_results(folder)
    sample = ad.read_h5ad(results.umap)
    cells = ad.concat([sample, sample, sample[:7]], index_unique="-")
    cells.obs["leiden_share"] = np.linspace(0, 1, cells.n_obs, dtype=np.float32)
    cells.obs["map_distance"] = np.linspace(1, 2, cells.n_obs, dtype=np.float32)
    cells.obs.loc[cells.obs_names[:5], "cell_line"] = None
    cells.obs["note"] = [f"cell {i}" for i in range(cells.n_obs)]
    cells.uns["map"] = {"n_sample": sample.n_obs}
    with ad.settings.override(zarr_write_format=3, auto_shard_zarr_v3=False):
        cells.write_zarr(folder / "atlas.zarr")
    return folder, replace(results, atlas=folder / "atlas.zarr", umap=None)


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("most_points", [200_000, 10])
def test_the_map_shows_all_cells_of_the_atlas(
    with_atlas: tuple[Path, Results],
    most_points: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As points and as density, with the same clusters by plate."""
    monkeypatch.setattr("scatlas.workflow.report._results.MAX_POINTS", most_points)
    monkeypatch.setattr("scatlas.workflow.report._results._MAX_TEXTS", 30)
    folder, results = with_atlas
    colors = [*CONFIG["report"]["colors"], "note"]
    config = CONFIG | {"report": {"colors": colors, "formats": ["png", "pdf"]}}
    make_report(folder, results, config)
    drawn = sorted(path.relative_to(folder) for path in (folder / "figures").rglob("*.png"))
    papers = sorted(path.relative_to(folder) for path in (folder / "figures").rglob("*.pdf"))
    assert papers == [path.with_suffix(".pdf") for path in drawn]
    assert "obs['note'] has more than 30 values: no picture shows it" in caplog.text
    cells = ad.read_zarr(folder / "atlas.zarr")
    pictures = {path.stem for path in (folder / "figures/umap").iterdir()}
    assert pictures == {*MAPS, "leiden_share", "map_distance"}
    page = (folder / "report.html").read_text()
    projected = f"{cells.n_obs // 2 + 4:,} were projected on the sample"
    assert f"Map of {cells.n_obs:,} cells, of which {projected}, coloured by leiden" in page
    table = pd.read_csv(
        folder / "tables/clusters_by_plate.tsv", sep="\t", index_col=0, dtype={"leiden": str}
    )
    expected = pd.crosstab(cells.obs["leiden"], cells.obs["plate"])
    assert table.pop("all plates").to_dict() == expected.sum(axis=1).to_dict()
    assert table.to_dict() == expected.to_dict()
    clusters = pd.read_csv(folder / "tables/clusters.tsv", sep="\t", index_col=0)
    assert clusters["cells"].sum() == cells.n_obs
    assert clusters["no value"].sum() == 5


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_a_density_has_the_categories_of_the_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only those that cells have, and plate10 after plate9."""
    plates = pd.Categorical(["plate10", "plate9", None], ["plate10", "plate11", "plate9"])
    cells = ad.AnnData(obs=pd.DataFrame({"plate": plates}, index=list("abc")))
    cells.obsm["X_umap"] = np.eye(3, 2, dtype=np.float32)
    with ad.settings.override(zarr_write_format=3, auto_shard_zarr_v3=False):
        cells.write_zarr(tmp_path / "atlas.zarr")
    for most_points in (3, 2):
        monkeypatch.setattr("scatlas.workflow.report._results.MAX_POINTS", most_points)
        ax = AtlasMap(tmp_path / "atlas.zarr").picture("plate").axes[0]
        assert [text.get_text() for text in ax.get_legend().get_texts()] == [
            *("plate9", "plate10", "no value")
        ]
        assert ax.get_title(loc="left") == "plate: 2 categories, 3 cells"


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_columns_that_the_page_leaves_out_are_counted(
    with_atlas: tuple[Path, Results], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scatlas.workflow.report._build._MAX_COLUMNS", 2)
    make_report(tmp_path, with_atlas[1])
    page = (tmp_path / "report.html").read_text()
    assert "and 5 more columns in tables/clusters.tsv" in page  # cell lines, and none
    assert "table-clusters_by_plate" not in page
    assert "clusters_by_plate.tsv" in page
    assert (tmp_path / "figures/cluster_shares.png").is_file()
    assert 'id="figure-cluster_shares"' in page
    table = pd.read_csv(tmp_path / "tables/clusters_by_plate.tsv", sep="\t", index_col=0)
    assert table.shape[1] == 4


def test_runs_table(run) -> None:
    _, results, _ = run
    table = _tables.runs(results.manifests)
    assert list(table.index) == ["load", "umap", "own_rule"]  # as the steps follow, then others
    assert table.loc["load"].to_dict() == {
        "jobs": 3,
        "seconds, all jobs": 7.5,
        "seconds, longest job": 3.5,
        "CPU seconds": 9.0,
        "peak memory, MiB": 102.0,  # of 102.5: to even
    }
    assert np.isnan(table.loc["own_rule", "peak memory, MiB"])
    assert np.isnan(table.loc["own_rule", "CPU seconds"])
    assert _tables.runs(results.manifests / "nothing here").empty


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff{", b'{"seconds": "x"}'])
def test_a_damaged_record_is_left_out(run, tmp_path, content) -> None:
    _, results, _ = run
    manifests = shutil.copytree(results.manifests, tmp_path / "manifests")
    whole = _tables.runs(manifests)
    (manifests / "damaged/runs").mkdir(parents=True)
    (manifests / "damaged/runs/p1.json").write_bytes(content)
    table = _tables.runs(manifests)
    assert set(table.index) - set(whole.index) <= {"damaged"}
    assert table.loc[whole.index].equals(whole)


def test_settings_table() -> None:
    table = _tables.settings({"a": {"b": None, "c": [1, "x"]}, "d": True, "e": 1.5})
    assert table["value"].to_dict() == {"a.b": "null", "a.c": "1, x", "d": "true", "e": "1.5"}


@pytest.mark.parametrize(
    ("values", "written"),
    [
        ([1234567, 5], ["1,234,567", "5"]),
        ([2.0, np.nan, 1000.0], ["2", "", "1,000"]),
        ([97.5, 100.0], ["97.5", "100.0"]),
        ([0.123456, 12345.678], ["0.1235", "12,345.7"]),
        ([2.5, np.inf, -np.inf], ["2.5", "∞", "-∞"]),
        (["x", 5, True], ["x", "5", "True"]),
    ],
)
def test_columns_are_readable(values: list, written: list[str]) -> None:
    assert cell_texts(pd.Series(values)) == written


def test_milestones() -> None:
    table = pd.DataFrame({"variance": range(33)}, index=pd.RangeIndex(1, 34))
    assert list(_milestones(table).index) == [1, 2, 5, 10, 20, 33]


@pytest.mark.parametrize("path", sorted(CAPTIONS.glob("*.rst")), ids=lambda path: path.stem)
def test_captions_are_sound_for_snakemake_too(path: Path) -> None:
    """Every caption is shown somewhere, and Snakemake's way of rendering takes it: without what
    only the page knows.
    """
    from docutils.core import publish_parts
    from docutils.writers import html4css1, html5_polyglot

    text = caption(CAPTIONS, path.stem, color="drug")
    assert text.startswith("<")
    assert "{{" not in text
    shown = {"workflow", "umap", "clusters_by_plate", "settings", "versions"}
    shown |= {*FIGURES, *MANY, *TABLES, *OPTIONAL, *MARKERS}
    shown |= {"annotation", "annotation_agreement", "annotation_by_plate", "annotation_genes"}
    shown |= {"unknown_shares", "type_genes", "effect_strength", "volcano"}
    shown |= {"effects", "effects_left_out", "strongest_effects", "composition", "share_changes"}
    shown |= {"dose_response"}
    assert path.stem in shown
    strict = {"halt_level": 2, "report_level": 5}
    for n_plates in (1, 31):
        rule = {"wildcards": {"color": "drug"}, "params": {"n_plates": n_plates}}
        rendered = JINJA.from_string(path.read_text()).render(snakemake=rule)
        publish_parts(rendered, writer=html4css1.Writer(), settings_overrides=strict)
        parts = publish_parts(rendered, writer=html5_polyglot.Writer(), settings_overrides=strict)
        assert caption(CAPTIONS, path.stem, color="drug", n_plates=n_plates) == parts["body"]


def test_captions_say_what_applies(run) -> None:
    """Nothing of many plates or values where there are few, and no paragraph twice."""
    page = " ".join((run[0] / "report.html").read_text().split())
    for absent in ("more than", "More than", "In the order of", "Similar plates", "A number marks"):
        assert absent not in page, absent
    assert page.count("similar expression") == 1
    assert "fewer than five plates nothing is marked" in page
    many = caption(CAPTIONS, "cells_kept", n_plates=31)
    assert "in the order of the share" in many
    assert "Bars:" not in many


def test_captions_of_any_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no caption .*pca\.rst"):
        caption(tmp_path, "pca")
    named = caption(CAPTIONS, "volcano", title="drug_ *|<b>")
    assert "drug_ *|&lt;b&gt;." in named  # which docutils would take for its marks


def test_names_of_the_data_are_escaped(tmp_path: Path) -> None:
    results = make_results(tmp_path, n_plates=2, n_cells=40)
    file = ad.read_h5ad(results.umap)
    file.obs["a b <i>"] = pd.Categorical(["<script>alert(1)</script>"] * file.n_obs)
    file.obs["cell_line"] = file.obs["a b <i>"]
    file.write_h5ad(results.umap)
    make_report(tmp_path, results, {**CONFIG, "report": {"colors": ["a b <i>"]}})
    page = (tmp_path / "report.html").read_text()
    assert page.count("<script") == page.count("</script") == 1, "the page's own"
    assert "&lt;script&gt;" in page
    pictures = {path.name for path in (tmp_path / "figures" / "umap").iterdir()}
    assert pictures == {"leiden.png", "a_b_i_.png"}
