"""Figures: what they draw, that bytes repeat, and that nothing is clipped or left global."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from functools import cache
from itertools import pairwise

import anndata as ad
import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.text import Text

import scatlas as sa
from scatlas import pl
from scatlas.errors import InputError
from scatlas.pl._cell_values import categories
from scatlas.pl._points import draw_points
from scatlas.pl._qc import Counted
from scatlas.pl._style import colours, short_names
from scatlas.pl._umap import _label_positions, _push_apart, empty_map
from tests.unit.test_names import LABELS

THRESHOLDS = {"min_genes": 200, "max_genes": None, "max_counts": 40000, "max_pct_mt": 20.0}


def qc_table(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    counts = np.exp(rng.normal(8, 0.7, n)).astype(np.int64)
    genes = (counts**0.85).astype(np.int64)
    mt = rng.gamma(3, 2, n).clip(0, 100)
    counts[0] = genes[0] = 0
    mt[0] = np.nan  # an empty cell
    table = pd.DataFrame({"total_counts": counts, "n_genes_by_counts": genes, "pct_counts_mt": mt})
    return table.assign(keep=(genes >= 200) & (mt <= 20) & (counts <= 40000))


def summary(name: str, n: int, taken: dict[str, int]) -> dict:
    return {"plate": name, "n_cells": n, "n_kept": n - sum(taken.values()), "removed": taken}


def mapped(n: int = 400, k: int = 5) -> ad.AnnData:
    rng = np.random.default_rng(0)
    which = np.arange(n) % k
    centres = rng.normal(size=(k, 2)) * 20
    adata = ad.AnnData(obs=pd.DataFrame(index=[f"c{i}" for i in range(n)]))
    adata.obs["line"] = pd.Categorical([f"line{i}" for i in which])
    adata.obs["score"] = rng.random(n)
    adata.obs["mixed"] = rng.integers(0, k, n)
    adata.obsm["X_umap"] = (centres[which] + rng.normal(size=(n, 2))).astype(np.float32)
    return adata


def mixed(k: int = 5) -> ad.AnnData:
    adata = mapped(k=k)
    adata.obsm["X_umap_harmony"] = adata.obsm["X_umap"][::-1].copy()
    return adata


def scores(n: int) -> dict:
    rng = np.random.default_rng(0)
    found = {}
    for i in range(n):
        histograms = [np.histogram(rng.beta(2, b, 500), 100, (0, 1))[0] for b in (30, 8)]
        found[f"lane{i}"] = {
            "n_cells": 500 + i,
            "n_doublets": 25,
            "threshold": None if i == 1 else 0.3,
            "histogram": dict(zip(("observed", "simulated"), histograms, strict=True)),
        }
    return found


def figures() -> dict:
    plates = [f"plate{i}" for i in range(4)]
    hvg = {plate: {f"g{j}" for j in range(i * 10, 100)} for i, plate in enumerate(plates)}
    return {
        "violins": pl.qc_violins({p: qc_table(300, i) for i, p in enumerate(plates)}, THRESHOLDS),
        "kept": pl.cells_kept({p: summary(p, 300, {"min_genes": 20}) for p in plates}),
        "hvg": pl.hvg_overlap(hvg),
        "hvg_by_plates": pl.genes_by_plates(hvg),
        "scree": pl.pca_scree(1 / np.arange(2, 20)),
        "umap": pl.umap(mapped(), "line"),
        "doublets": pl.doublet_scores(scores(3)),
        "before_after": pl.before_after(mixed(), "line"),
    }


def texts(figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(mpl.text.Text)]


def test_same_input_same_bytes(tmp_path) -> None:
    for name in ("one", "two"):
        for figure, drawn in figures().items():
            pl.save(drawn, tmp_path / name / f"{figure}.png")
            pl.save(drawn, str(tmp_path / name / f"{figure}.PDF"))
            if figure in ("violins", "umap"):  # the slowest format
                pl.save(drawn, tmp_path / name / f"{figure}.svg")
    starts = {".png": b"\x89PNG", ".PDF": b"%PDF-", ".svg": b"<?xml"}
    for path in sorted((tmp_path / "one").iterdir()):
        data = path.read_bytes()
        assert data == (tmp_path / "two" / path.name).read_bytes(), path.name
        assert data.startswith(starts[path.suffix])
        # Date and version would change the bytes.
        assert not re.search(rb"tEXt|CreationDate|<dc:date>|matplotlib v", data), path.name
    assert len(list((tmp_path / "one").iterdir())) == 18


def test_a_figure_that_is_saved_again_has_the_same_bytes(tmp_path) -> None:
    figure = pl.cells_kept({f"p{i}": summary(f"p{i}", 300, {"min_genes": 20}) for i in range(4)})
    for name in ("a.svg", "a.png", "b.svg", "b.png"):
        pl.save(figure, tmp_path / name)
    for ending in ("svg", "png"):
        one, two = ((tmp_path / f"{name}.{ending}").read_bytes() for name in "ab")
        assert one == two


def test_a_figure_is_what_its_name_says(tmp_path) -> None:
    figure = pl.umap(mapped(3000, 9), "line")
    for dpi in (60, 120):
        pl.save(figure, tmp_path / f"{dpi}.png", dpi=dpi)
    small, large = (mpl.image.imread(tmp_path / f"{dpi}.png").shape[0] for dpi in (60, 120))
    assert large == pytest.approx(2 * small, abs=2)
    pl.save(figure, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    written = re.findall(r"<text[^>]*>([^<]*)<", text)
    assert {"UMAP 1", "line: 9 categories, 3,000 cells", "1", "9"} <= set(written)
    # Points are an image, not 3,000 shapes.
    assert text.count("<use") < 100
    assert text.count("<image") == 1
    pl.save(figure, tmp_path / "a.pdf")
    assert b"/FontFile2" in (tmp_path / "a.pdf").read_bytes(), "text with its font, no outlines"
    for name in ("a.jpg", "a"):
        with pytest.raises(InputError, match=r"ends in pdf, svg, png: name it so"):
            pl.save(figure, tmp_path / name)
        assert not (tmp_path / name).exists()


def test_nothing_global_changes() -> None:
    def state() -> tuple[dict, list[int]]:
        open_figures = "matplotlib.pyplot" in sys.modules and mpl.pyplot.get_fignums()
        return dict(mpl.rcParams), open_figures or []

    before = state()
    figures()
    assert state() == before


def test_import_is_quick() -> None:
    code = "import sys, scatlas.pl; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match=r"no attribute 'heatmap': .* scanpy\.pl\.heatmap "):
        pl.heatmap  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'paga': .* scanpy\.tl\.paga "):
        sa.tl.paga  # noqa: B018
    assert not hasattr(pl, "_repr_html_")
    with pytest.raises(AttributeError, match=r"no attribute 'heatmap'$"):
        sa.datasets.heatmap  # noqa: B018
    assert set(dir(pl)) == set(pl.__all__)


@pytest.mark.parametrize("n_plates", [1, 14])
def test_violins_show_bounds_and_all_plates(n_plates: int) -> None:
    tables = {f"plate{i}": qc_table(200, i) for i in range(n_plates)}
    figure = pl.qc_violins(tables, THRESHOLDS)
    written = texts(figure)
    assert {"min 200", "max 40,000", "max 20"} <= set(written)
    assert set(tables) <= set(written)
    counts, genes, mt = figure.axes
    bounds = {
        ax: {line.get_ydata()[0] for line in ax.lines if line.get_linestyle() == "--"}
        for ax in figure.axes
    }
    assert bounds == {counts: {np.log10(40000)}, genes: {np.log10(200)}, mt: {20.0}}
    for ax in figure.axes:
        low, high = ax.get_ylim()
        assert all(low <= bound <= high for bound in bounds[ax])
        # Two halves of each plate.
        assert len(ax.collections) == 2 * n_plates


@pytest.mark.parametrize("n_plates", [2, 31])
def test_bounds_of_single_plates_are_dashes(n_plates: int) -> None:
    tables = {f"plate{i}": qc_table(200, i) for i in range(n_plates)}
    own = pd.DataFrame({"min_genes": [90, 150.0], "max_pct_mt": [np.nan, 12]}, ["plate0", "plate1"])
    _, genes, mt = pl.qc_violins(tables, {"min_genes": 60}, by_plate=own).axes
    dashes = {
        ax: [
            line
            for line in ax.lines
            if line.get_color() == "#d55e00" and line.get_linestyle() == "-"
        ]
        for ax in (genes, mt)
    }
    assert [10 ** line.get_ydata()[0] for line in dashes[genes]] == pytest.approx([90, 150])
    assert [line.get_ydata()[0] for line in dashes[mt]] == [12]
    if n_plates == 2:
        assert [np.mean(line.get_xdata()) for line in dashes[genes]] == [0, 1]
    assert genes.get_ylim()[0] < np.log10(60)


def test_violin_is_as_wide_where_the_cells_are() -> None:
    table = qc_table(4000, 0)
    figure = pl.qc_violins({"a": table}, {})
    (left, _), genes = figure.axes[0].collections, np.log10(table["total_counts"].clip(lower=1))
    vertices = left.get_paths()[0].vertices
    widest = vertices[vertices[:, 0].argmin(), 1]
    assert widest == pytest.approx(genes.median(), abs=0.25)
    assert -0.43 < vertices[:, 0].min() < -0.41


def test_smoothing_puts_no_cell_beyond_a_bound() -> None:
    table = qc_table(3000, 0)
    figure = pl.qc_violins({"a": table}, THRESHOLDS)
    for ax, low, high in zip(
        figure.axes, (0, np.log10(200), 0), (np.log10(40000), 9, 20), strict=True
    ):
        heights = ax.collections[1].get_paths()[0].vertices[:, 1]
        step = np.ptp(ax.get_ylim()) / 160
        assert heights.min() >= low - 2 * step
        assert heights.max() <= high + 2 * step


def test_violins_of_plates_without_a_cell_kept() -> None:
    table = qc_table(50, 0).assign(keep=False)
    empty = table.iloc[:0]
    figure = pl.qc_violins({"none kept": table, "empty": empty}, {"max_pct_mt": 5})
    assert len(figure.axes[0].collections) == 1


def test_cells_kept_numbers() -> None:
    plates = {
        "a": summary("a", 2000, {"filter": 500, "max_pct_mt": 0}),
        "b": summary("b", 10_000_000, {"filter": 1, "max_pct_mt": 3_000_000}),
    }
    written = texts(pl.cells_kept(plates))
    assert {"1,500 (75.0%)", "6,999,999 (70.0%)"} <= set(written)
    assert {"25.0%", "–", "<0.1%", "30.0%"} <= set(written)
    assert {"filter column", "too mitochondrial"} <= set(written)
    without = pl.cells_kept({"a": summary("a", 10, {})})
    assert len(without.axes) == 1
    assert "10 (100.0%)" in texts(without)


def test_hvg_overlap_numbers() -> None:
    hvg = {"a": {"1", "2", "3"}, "b": pd.Index(["2", "3"]), "c": ["3", "9"]}
    (heat,) = pl.hvg_overlap(hvg).axes
    shown = [text.get_text() for text in heat.texts]
    assert shown == ["3", "2", "1", "2", "2", "1", "1", "1", "2"]


@pytest.mark.parametrize(
    ("chosen", "heights", "title"),
    [
        (None, [2, 1, 1], "4 genes in the atlas, variable on 1 plate or more"),
        (["2", "3"], [0, 1, 1], "2 genes in the atlas, variable on 2 plates or more"),
        (["3"], [0, 0, 1], "1 gene in the atlas, variable on 3 plates"),
        (
            ["3", "2", "9"],
            [1, 1, 1],
            "3 genes in the atlas: 1 of the 2 variable on 1 plate, and all on more",
        ),
    ],
)
def test_genes_by_plates(chosen, heights, title) -> None:
    hvg = {"a": {"1", "2", "3"}, "b": pd.Index(["2", "3"]), "c": ["3", "9"]}
    figure = pl.genes_by_plates(hvg, chosen)
    (ax,) = figure.axes
    assert [bar.get_height() for bar in ax.patches] == [2, 1, 1, *heights]
    assert list(ax.lines[0].get_ydata()) == [4, 2, 1]
    assert title in texts(figure)


@cache
def of_plates(n: int) -> dict[str, mpl.figure.Figure]:
    """Figures of ``n`` plates, of which the last two differ from the others."""
    names = [f"the plate of a laboratory, number {i}" for i in range(n)]
    rng = np.random.default_rng(0)
    tables = {name: qc_table(60, i) for i, name in enumerate(names)}
    hvg = {name: set(rng.integers(0, 40, 60)) for name in names}
    summaries = {name: summary(name, 100, {"min_genes": 1 + i % 3}) for i, name in enumerate(names)}
    for i, name in enumerate(names[5:][-2:]):
        tables[name] = tables[name].assign(total_counts=3 + i)
        hvg[name] = {1000 + i}
        summaries[name] = summary(name, 100, {"min_genes": 70 + i})
    return {
        "violins": pl.qc_violins(tables, THRESHOLDS),
        "kept": pl.cells_kept(summaries),
        "hvg": pl.hvg_overlap(hvg),
        "hvg_by_plates": pl.genes_by_plates(hvg),
        "clusters": pl.cluster_shares(pd.DataFrame(rng.integers(0, 90, (12, n)), columns=names)),
        "unknown": pl.unknown_shares(
            pd.Series(rng.random(120)), pd.Series(rng.random(n), names), whole=0.5
        ),
    }


@pytest.mark.parametrize("n_plates", [1, 4, 14, 30, 31, 60, 500])
def test_any_number_of_plates_fits_a_page(n_plates, tmp_path) -> None:
    for name, figure in of_plates(n_plates).items():
        pl.save(figure, tmp_path / f"{name}.png")
        height, width = mpl.image.imread(tmp_path / f"{name}.png").shape[:2]
        assert max(height, width) <= 2400, (name, width, height)


@pytest.mark.parametrize("n_plates", [4, 60, 500])
@pytest.mark.parametrize("name", ["violins", "hvg_by_plates", "kept", "unknown"])
def test_each_axis_has_ticks(n_plates, name) -> None:
    for ax in of_plates(n_plates)[name].axes:
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = axis.get_ticklocs()
            # The rules beside the bars of few plates have names on one axis alone.
            assert ((low <= ticks) & (ticks <= high)).sum() >= 2 or ax.images, axis


def test_ticks_of_plates_that_are_alike() -> None:
    tables = {f"plate{i}": qc_table(60, 0).assign(total_counts=2355) for i in range(60)}
    axes = pl.qc_violins(tables, {}).axes
    for ax in axes:
        low, high = ax.get_ylim()
        assert ((low <= ax.get_yticks()) & (ax.get_yticks() <= high)).sum() >= 2


@pytest.mark.parametrize("n_plates", [31, 60, 500])
def test_unusual_plates_are_named_among_many(n_plates) -> None:
    names = [f"the plate of a laboratory, number {i}" for i in range(n_plates)]
    for figure in ("violins", "kept", "hvg"):
        written = " ".join(texts(of_plates(n_plates)[figure]))
        short = (short_names(names, 24), short_names(names, 32))
        named = {
            name
            for name, *texts in zip(names, *short, strict=True)
            if any(t in written for t in texts)
        }
        assert named >= set(names[-2:]), figure
        assert len(named) < 12, figure


def test_no_two_long_names_are_drawn_as_one() -> None:
    """Of plates, captures and groups, in all figures that name each of them."""
    names, table = LABELS[:24], pd.DataFrame(1.0, LABELS[:24], ["gene"])
    markers = pd.DataFrame({"group": names, "names": "gene"})
    captures = dict(zip(names, scores(24).values(), strict=True))
    drawn = {
        "kept": pl.cells_kept({name: summary(name, 9, {}) for name in names}),
        "violins": pl.qc_violins({name: qc_table(9, 0) for name in names}, {}),
        "overlap": pl.hvg_overlap({name: ["gene"] for name in names}),
        "doublets": pl.doublet_scores(captures),
        "dots": pl.marker_dots(table, table, markers),
        "clusters": pl.cluster_shares(table.T),
    }
    for name, figure in drawn.items():
        assert len({text for text in texts(figure) if "…" in text}) == 24, name
    drawn["doublets"].draw_without_rendering()
    titles = [text for text in drawn["doublets"].findobj(Text) if "…" in text.get_text()]
    boxes = [title.get_window_extent() for title in titles]
    assert not any(one.overlaps(other) for one, other in pairwise(boxes))


def test_cluster_shares_of_similar_plates_are_side_by_side() -> None:
    name = "blood of a donor after stimulation, collected in the second visit, lane {}".format
    table = pd.DataFrame({name(1): [90, 10], name(2): [20, 80], name(3): [45, 5], name(4): [0, 0]})
    table.index = ["10", "9"]
    ax = pl.cluster_shares(table).axes[0]
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert len(set(names)) == 4
    shares = dict(zip(names, ax.images[0].get_array().tolist(), strict=True))
    by_lane = {text[-1]: row for text, row in shares.items()}
    assert by_lane == {"1": [10, 90], "3": [10, 90], "2": [80, 20], "4": [0, 0]}
    assert abs([*by_lane].index("1") - [*by_lane].index("3")) == 1
    assert [text.get_text() for text in ax.get_xticklabels()] == ["9", "10"]
    assert pl.cluster_shares(table.iloc[:, :1]).axes[0].images[0].get_array().shape == (1, 2)
    with pytest.raises(InputError, match="no plate or no cluster"):
        pl.cluster_shares(table.iloc[:0])


def test_shares_of_unknown_cells_have_the_names_of_the_highest() -> None:
    shares = pd.Series(np.arange(200) / 200, [f"c{i}" for i in range(200)])
    many, few = pl.unknown_shares(shares, shares[:2], whole=0.25).axes
    assert [bar.get_height() for bar in few.patches] == [0, 0.5]
    assert [label.get_text() for label in few.get_xticklabels()] == ["c0", "c1"]
    assert {tuple(ax.lines[0].get_ydata()) for ax in (many, few)} == {(25, 25)}
    heights = [bar.get_height() for bar in many.patches]
    assert heights == sorted(heights, reverse=True)
    (text,) = many.texts
    assert text.get_text().split("\n")[:2] == ["c199  100%", "c198  99%"]
    assert text.get_text().count("\n") == 7
    with pytest.raises(InputError, match="no share of unknown cells"):
        pl.unknown_shares(shares, shares[:0], whole=0)


def test_scree_numbers() -> None:
    ratio = np.array([0.4, 0.2, 0.1, 0.0])
    scree, running = pl.pca_scree(ratio).axes
    # A component without variance has no place on a log scale.
    np.testing.assert_allclose(scree.lines[0].get_ydata(), [40, 20, 10])
    np.testing.assert_allclose(running.lines[0].get_ydata(), [40, 60, 70, 70])
    assert "4 components hold 70.0% of the variance" in texts(running.figure)
    assert "at least half in the first" in texts(running.figure)
    assert "at least half of this in the first 2" in texts(pl.pca_scree([0.3, 0.29, 0.2]))


def test_plates_that_agree_look_alike() -> None:
    genes = [f"g{i}" for i in range(100)]
    for n in (3, 40):
        (image,) = pl.hvg_overlap({f"p{i}": genes[: 100 - i % 3] for i in range(n)}).axes[0].images
        assert image.get_clim() == (0, 100)


def test_umap_points_carry_their_colours() -> None:
    adata = mapped(k=3)
    figure = pl.umap(adata, "line")
    (points,) = figure.axes[0].collections
    legend = figure.axes[0].get_legend()
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["line0", "line1", "line2"]
    colour = dict(zip(names, (line.get_color() for line in legend.get_lines()), strict=True))
    at = {tuple(xy): name for xy, name in zip(adata.obsm["X_umap"], adata.obs["line"], strict=True)}
    for xy, face in zip(points.get_offsets(), points.get_facecolors(), strict=True):
        assert to_rgb(face[:3]) == to_rgb(colour[at[tuple(np.float32(xy))]])


def test_points_shrink_with_cells() -> None:
    sizes = [
        float(pl.umap(mapped(n, 3), "line").axes[0].collections[0].get_sizes()[0])
        for n in (100, 20_000)
    ]
    assert sizes[0] > 5 * sizes[1]


def test_many_categories_are_numbered_and_the_legend_fits(tmp_path) -> None:
    adata = mapped(3000, 50)
    adata.obs["line"] = adata.obs["line"].cat.rename_categories(
        {f"line{i}": f"A long name of a cell line, number {i}" for i in range(50)}
    )
    figure = pl.umap(adata, "line")
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert len(legend) == 50
    assert sum(label.split()[0].isdecimal() for label in legend) > 40
    pl.save(figure, tmp_path / "a.png")
    pixels = mpl.image.imread(tmp_path / "a.png")
    edge = [pixels[:, -4:], pixels[:, :4], pixels[:4], pixels[-4:]]
    assert all((part[..., :3] == 1).all() for part in edge), "something touches the edge"


def test_more_categories_than_a_legend_holds() -> None:
    adata = mapped(2000, 4)
    adata.obs["drug"] = [f"drug{i % 300}" for i in range(2000)]
    start = time.process_time()  # of this process alone: other tests use the cores, too
    axes = pl.umap(adata, "drug").axes[0]
    assert time.process_time() - start < 5
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert len(labels) == 77
    assert labels[-1] == "and 224 smaller"
    assert not axes.texts


def test_missing_values_are_grey() -> None:
    adata = mapped(100, 3)
    adata.obs.loc[adata.obs_names[:10], "line"] = np.nan
    axes = pl.umap(adata, "line").axes[0]
    assert axes.get_legend().get_texts()[-1].get_text() == "no value"
    assert (axes.collections[0].get_facecolors()[:, :3] == to_rgb("#d9d9d9")).all(
        axis=1
    ).sum() == 10


def test_cells_of_unknown_type_are_called_so(tmp_path) -> None:
    """In columns with a column of their probability, of a file, too; never as one of the types."""
    adata = mapped(100, 3)
    adata.obs["kind"] = adata.obs["kind_coarse"] = adata.obs["line"].where(np.arange(100) > 9)
    adata.obs["kind_probability"], adata.obs["kind_runner_up"] = 0.5, adata.obs["line"]
    adata.obs["kind_own"] = (
        adata.obs["kind"].astype(object).replace(adata.obs["line"].iloc[50], "unknown")
    )
    adata.obs["kindred"] = adata.obs["kind"].cat.rename_categories(lambda name: f"{name} no value")
    adata.write_h5ad(tmp_path / "cells.h5ad")
    expected = {"kind": "unknown", "kind_coarse": "unknown", "kindred": "no value"}
    for name, word in (expected | {"kind_own": "(unknown)"}).items():
        for source in (adata, tmp_path / "cells.h5ad"):
            for where in ("right margin", "on data"):
                legend = pl.umap(source, name, legend_loc=where).axes[0].get_legend()
                texts = [text.get_text() for text in legend.get_texts()]
                assert texts[-1] == word
                assert texts.count(word) == 1
    adata.obs["line"] = pd.Categorical([None] * 100, ["a"])
    axes = pl.umap(adata, "line").axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["no value"]


def test_categories_keep_an_order_that_somebody_chose() -> None:
    chosen = pd.Series(pd.Categorical(["b", "a", "c"], categories=["c", "a", "b", "unused"]))
    assert categories(chosen)[1] == ["c", "a", "b"]
    codes, names = categories(pd.Series(["p10", "p9", None]))
    assert names == ["p9", "p10"]
    assert list(codes) == [1, 0, -1]
    assert categories(pd.Series(pd.Categorical(["p10", "p9"])))[1] == ["p9", "p10"]
    assert categories(pd.Series([True, False]))[1] == ["False", "True"]
    assert categories(pd.Series([10, 9]))[1] == ["9", "10"]


def test_marks_stand_where_categories_gather() -> None:
    adata = mapped(2000, 10)
    codes = np.arange(2000) % 10
    places = _label_positions(adata.obsm["X_umap"], codes, 10)
    assert set(places) == set(range(10))
    for code, place in places.items():
        np.testing.assert_allclose(
            place, np.median(adata.obsm["X_umap"][codes == code], axis=0), atol=1.0
        )
    mixed = np.random.default_rng(0).integers(0, 10, 2000)
    assert _label_positions(adata.obsm["X_umap"], mixed, 10) == {}


def test_marks_are_moved_apart() -> None:
    places = np.array([[0.5, 0.5], [0.5, 0.5], [0.52, 0.51], [0.9, 0.9]])
    sizes = np.full((4, 2), [0.04, 0.03])
    moved = _push_apart(places, sizes)
    for i in range(4):
        for j in range(i):
            assert (np.abs(moved[i] - moved[j]) >= [0.04 - 1e-5, 0.03 - 1e-5]).any()
    np.testing.assert_array_equal(moved[3], places[3])


@pytest.mark.parametrize("n", [3, 7, 8, 20, 60])
def test_colours_differ(n: int) -> None:
    found = colours(n)
    assert found == colours(n)
    assert len(set(found)) == n
    rgb = np.array([to_rgb(colour) for colour in found])
    gaps = np.linalg.norm(rgb[:, None] - rgb[None], axis=2)[np.triu_indices(n, 1)]
    assert gaps.min() > (0.25 if n <= 7 else 0.03)
    # Visible on white.
    assert (rgb @ [0.2126, 0.7152, 0.0722]).max() < 0.85


def test_errors() -> None:
    for draw in (
        lambda: pl.qc_violins({}, {}),
        lambda: pl.cells_kept({}),
        lambda: pl.hvg_overlap({}),
    ):
        with pytest.raises(InputError, match="no plate to draw"):
            draw()
    with pytest.raises(InputError, match="no component"):
        pl.pca_scree([])
    adata = mapped(20, 2)
    with pytest.raises(InputError, match="obs has no column 'drug'"):
        pl.umap(adata, "drug")
    with pytest.raises(InputError, match=r"name one of \['X_umap'\]"):
        pl.umap(adata, "line", basis="X_tsne")


def test_numbers_get_a_colour_scale() -> None:
    adata = mapped(200, 2)
    adata.obs["share"] = np.r_[np.nan, np.linspace(0, 1, 199)]
    adata.obs["total"] = np.arange(200)
    adata.obs["batch"] = np.arange(200) % 3
    for column, numbers in (("share", True), ("total", True), ("batch", False)):
        made = pl.umap(adata, column)
        assert (len(made.axes[0].child_axes) == 1) == numbers  # the colour bar
        shown = [c for c in made.axes[0].collections if c.get_array() is not None]
        assert sum(len(c.get_array()) for c in shown) == (
            200 - adata.obs[column].isna().sum() if numbers else 0
        )


@pytest.mark.parametrize("k", [5, 12])
def test_before_and_after_have_the_same_colours_and_marks(k: int) -> None:
    adata = mixed(k)
    figure = pl.before_after(adata, "line")
    first, second = figure.axes
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["line, before", "line, after"]
    points = [ax.collections[0] for ax in (first, second)]
    assert (points[0].get_facecolors() == points[1].get_facecolors()).all()
    order = np.random.default_rng(0).permutation(adata.n_obs)
    for drawn, basis in zip(points, ("X_umap", "X_umap_harmony"), strict=True):
        np.testing.assert_array_equal(drawn.get_offsets(), adata.obsm[basis][order])
    assert first.get_legend() is None
    assert len(second.get_legend().get_texts()) == k
    for color, basis, message in (
        ("day", "X_umap", "obs has no column 'day'"),
        (
            "line",
            "X_tsne",
            "no 'X_tsne' in obsm .basis.: .* name one of .'X_umap', 'X_umap_harmony'",
        ),
    ):
        with pytest.raises(InputError, match=message):
            pl.before_after(adata, color, before=basis)


@pytest.mark.parametrize("n", [1, 5, 30])
def test_doublet_scores_of_each_capture(n: int) -> None:
    captures = scores(n)
    figure = pl.doublet_scores(captures)
    panels = [ax for ax in figure.axes if ax.get_title(loc="left")]
    shown = [ax.get_title(loc="left") for ax in panels]
    # The largest are those with the highest numbers.
    assert shown == [f"lane{i}" for i in range(max(0, n - 24), n)]
    for ax, name in zip(panels, shown, strict=True):
        (line,) = ax.lines
        threshold = captures[name]["threshold"]
        assert threshold is None or set(line.get_xdata()) == {threshold}
        share = 100 * 25 / captures[name]["n_cells"]
        wanted = "no threshold" if threshold is None else f"{share:.1f}% doublets"
        assert [text.get_text() for text in ax.texts] == [wanted]
        counts = captures[name]["histogram"]["observed"]
        drawn = ax.patches[0].get_data().values
        np.testing.assert_allclose(drawn**2, counts / counts.sum())
    with pytest.raises(InputError, match="no capture to draw"):
        pl.doublet_scores({})


@pytest.mark.parametrize("n_categories", [5, 76, 300])
def test_maps_of_long_names_fit_a_page(n_categories, tmp_path) -> None:
    adata = mixed(n_categories)
    names = {f"line{i}": f"the cell line of a laboratory, number {i}" for i in range(n_categories)}
    adata.obs["line"] = adata.obs["line"].cat.rename_categories(names)
    for draw in (pl.umap, pl.before_after):
        figure = draw(adata, "line")
        legend = [text.get_text() for text in figure.axes[-1].get_legend().get_texts()]
        assert len(set(legend)) == len(legend), "no two names are drawn as one text"
        pl.save(figure, tmp_path / "map.png")
        assert max(mpl.image.imread(tmp_path / "map.png").shape[:2]) <= 2400


def test_effects_show_the_strongest_conditions_and_their_genes(tmp_path) -> None:
    rng = np.random.default_rng(0)
    names = [f"a drug with a long name at a dose of {i} uM" for i in range(90)]
    genes = pd.DataFrame(rng.poisson(30, (90, 50)), names, [f"line {i}" for i in range(50)])
    genes.loc[names[7]] = 5000
    genes = genes.astype(float).mask(rng.random(genes.shape) < 0.1)
    figure = pl.effect_strength(genes)
    ax = figure.axes[0]
    assert len(ax.get_yticks()) == 60
    assert ax.get_yticklabels()[0].get_text().endswith("7 uM")
    pl.save(figure, tmp_path / "strength.png")
    height, width = mpl.image.imread(tmp_path / "strength.png").shape[:2]
    assert max(height, width) <= 3000
    for columns, beside in ((50, False), (3, True)):
        few = genes.iloc[:, :columns]
        distances = (few / 100 - 0.2).drop(index=names[3])
        first, second = pl.effect_strength(few, distances).axes[:2]
        assert (first.get_position().y0 == second.get_position().y0) == beside
        drawn = second.images[0].get_array()
        assert drawn.shape == first.images[0].get_array().shape == (60, columns)
        assert drawn.min() == 0, "nearer than by chance"
        assert np.ma.getmaskarray(drawn).sum() or np.isnan(drawn).any()
    assert len(pl.effect_strength(few, distances * np.nan).axes) == 2, "one map and its bar"

    p = np.array([1e-30, 1e-31, 0.0, 0.5, 1e-9])
    table = pd.DataFrame(
        {
            "gene": list("ABCDE"),
            "log2_fold_change": [1.0, 1.01, -2.0, 0.1, -0.5],
            "p_value": p,
            "fdr": np.minimum(1, 5 * p),
        }
    )
    ax = pl.volcano(table, "drug").axes[0]
    assert ax.get_title(loc="left") == "drug: 2 up, 2 down"
    assert {text.get_text() for text in ax.texts} == {"C", "B", "E"}, "A would lie on B"
    doses = [
        (f"drug {i}", f"{d} uM", i, g, i - 9.0 * d) for i in range(14) for d in (1, 2) for g in "AB"
    ]
    names = ["compound", "dose", "n_significant", "gene", "log2_fold_change"]
    strips = pd.DataFrame(doses, columns=names).replace(-9.0, np.nan)
    figure = pl.dose_response(strips, "line 1")
    drawn = [ax for ax in figure.axes if ax.images and ax.get_title(loc="left")]
    assert [ax.get_title(loc="left") for ax in drawn] == [f"drug {i}" for i in range(12)]
    assert drawn[3].get_xticklabels()[1].get_text() == "2 uM\n3 genes"
    assert drawn[3].images[0].get_array().tolist() == [[-6.0, -15.0]] * 2
    for draw in (pl.effect_strength, pl.volcano, pl.dose_response):
        with pytest.raises(InputError, match="to draw"):
            draw(table.iloc[:0])


@pytest.mark.parametrize("numbers", [
    np.random.default_rng(0).poisson(3, 1000),
    np.random.default_rng(1).random(77),
    np.array([5, 2**40, 2**40 + 3]),
    np.array([-2, 7]),
    np.array([3.0, np.nan, 1.5, np.inf]),
    np.array([4]),
])  # fmt: skip
def test_quantiles_of_counted_numbers_are_those_of_the_numbers(numbers: np.ndarray) -> None:
    shares = (0, 0.05, 0.25, 0.5, 0.75, 0.99, 1)
    known = numbers[np.isfinite(numbers)]
    counted = Counted.tally(numbers)
    np.testing.assert_array_equal(np.repeat(*counted), np.sort(known))
    np.testing.assert_array_equal(counted.quantiles(shares), np.quantile(known, shares))
    assert Counted.tally(numbers[:0]).quantiles(shares) == ()


@pytest.mark.parametrize("area", [0.3, 2.0, 40.0])
def test_points_are_those_of_matplotlib(area: float) -> None:
    rng = np.random.default_rng(0)
    xy, rgba = rng.normal(size=(2000, 2)), np.insert(rng.random((2000, 3)), 3, 1, axis=1)
    xy[:2], xy[2, 1] = np.nan, np.nan
    images = []
    for own in (True, False):
        made, ax = empty_map()
        if own:
            draw_points(ax, xy, area, facecolors=rgba)
        else:
            ax.scatter(*xy.T, s=area, c=rgba, linewidths=0)
        ax.set_xlim(-1, 1)  # other points are cut, or outside
        made.canvas.draw()
        images.append(np.asarray(made.canvas.buffer_rgba()).astype(int))
    away = np.abs(images[0] - images[1])
    assert away.max() < 64
    assert away.mean() < 1
    assert (images[0] != 255).any(axis=2).sum() > 1000
