"""Genes on the map, as dots and as violins, of an AnnData and of a file."""

from __future__ import annotations

import itertools

import anndata as ad
import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
from scipy import sparse

import scatlas as sa
from scatlas import pl
from scatlas.errors import InputError

GENES = [f"g{i}" for i in range(6)]
BY_TYPE = {"T": ["g0", "g1"], "B": ["g4", "g0"]}


@pytest.fixture(scope="module")
def cells() -> ad.AnnData:
    rng = np.random.default_rng(0)
    line = rng.integers(0, 3, 500)
    counts = rng.poisson(0.4 + 3 * (line[:, None] == np.arange(6) % 3))
    text = np.array(["b", "a", "c 10"], object)[line]
    text[:7] = None
    obs = pd.DataFrame({"line": pd.Categorical(text)}, index=[f"c{i}" for i in range(500)])
    obs["total"] = counts.sum(axis=1).astype(np.float32)
    x = sparse.csr_matrix(np.log1p(counts).astype(np.float32))
    found = ad.AnnData(x, obs=obs, var=pd.DataFrame(index=GENES))
    found.layers["counts"] = sparse.csr_matrix(counts.astype(np.int32))
    found.obsm["X_umap"] = rng.normal(size=(500, 2)).astype(np.float32)
    return found


@pytest.fixture(scope="module", params=["in memory", "lazy", "path"])
def source(request, cells: ad.AnnData, tmp_path_factory):
    """The same cells in memory, opened lazily, and as the path of a file."""
    if request.param == "in memory":
        return cells
    path = tmp_path_factory.mktemp("cells") / "cells.h5ad"
    cells.write_h5ad(path)
    return sa.read_lazy(path) if request.param == "lazy" else str(path)


@pytest.mark.parametrize("scale", [None, "var", "group"])
@pytest.mark.parametrize("layer", [None, "counts"])
def test_dots_are_those_of_scanpy(source, cells: ad.AnnData, scale, layer):
    ax = pl.dotplot(source, BY_TYPE, "line", standard_scale=scale, layer=layer).axes[0]
    known = cells[cells.obs["line"].notna()]
    plot = sc.pl.DotPlot(known, BY_TYPE, "line", standard_scale=scale, layer=layer)
    assert [label.get_text() for label in ax.get_yticklabels()] == list(plot.dot_color_df.index)
    assert [label.get_text() for label in ax.get_xticklabels()] == list(plot.dot_color_df)
    (dots,) = ax.collections
    np.testing.assert_allclose(
        dots.get_array(), plot.dot_color_df.to_numpy().ravel(), rtol=1e-6, atol=1e-7
    )
    np.testing.assert_allclose(
        dots.get_sizes() / 81, plot.dot_size_df.to_numpy().ravel(), rtol=1e-6
    )
    assert [text.get_text() for text in ax.texts] == ["T", "B"]
    left, right = (line.get_xdata() for line in ax.lines)
    assert left.max() < 1.5 < right.min(), "a bracket over the genes of each name"


def test_violins_have_the_values_of_each_group(source, cells: ad.AnnData):
    gene, total = pl.violin(source, ["g0", "total"], "line").axes
    for ax, name in ((gene, "g0"), (total, "total")):
        assert ax.get_ylabel() == name
        values = sc.get.obs_df(cells, [name, "line"])
        medians = values.groupby("line", observed=True)[name].median()
        dots = [line for line in ax.lines if line.get_marker() == "o"]
        np.testing.assert_allclose([dot.get_ydata()[0] for dot in dots], medians)
        assert len(ax.collections) == 2 * len(medians)
    assert [label.get_text() for label in total.get_xticklabels()] == list(medians.index)


def test_maps_of_columns_and_genes(source, cells: ad.AnnData):
    made = pl.umap(source, ["line", "g1", "total"], ncols=2)
    assert [ax.get_title(loc="left") for ax in made.axes] == ["line", "g1", "total"]
    for ax, values in zip(
        made.axes[1:], (cells[:, "g1"].X.toarray(), cells.obs["total"]), strict=True
    ):
        points = ax.collections[-1]
        order = np.argsort(np.ravel(values), kind="stable")
        np.testing.assert_array_equal(points.get_array(), np.ravel(values)[order])
        np.testing.assert_array_equal(points.get_offsets(), cells.obsm["X_umap"][order])
    assert pl.umap(source, "g1", layer="counts").axes[0].collections[-1].get_array().max() == 9


def test_a_map_in_axes_of_your_own(cells: ad.AnnData):
    figure = mpl.figure.Figure()
    left, right = figure.subplots(1, 2)
    assert pl.umap(cells, "line", ax=left, legend_loc="on data") is figure
    pl.umap(cells, "line", ax=right, legend_loc="none")
    assert {text.get_text() for text in left.texts} == {"a", "b", "c 10"}
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["no value"]
    assert right.get_legend() is None
    assert not right.texts
    assert len(figure.axes) == 2


def test_many_long_names_stay_apart(cells: ad.AnnData):
    many = cells.copy()
    names = [
        f"CD{4 + 4 * (i % 2)} positive T cell, subset {i // 2} of the colon" for i in range(120)
    ]
    many.obs["long"] = pd.Categorical.from_codes(np.arange(many.n_obs) % 120, names)
    shares = pd.DataFrame(np.ones((120, 3)), names, ["a", "b", "c"])
    for made in (pl.violin(many, "g0", "long"), pl.cluster_shares(shares)):
        made.draw_without_rendering()
        ax = made.axes[0]
        labels = ax.get_xticklabels()
        assert len({label.get_text() for label in labels}) == 120
        boxes = [label.get_window_extent() for label in labels]
        assert all(left.x1 <= right.x0 for left, right in itertools.pairwise(boxes))
    ax = pl.umap(many, "long", legend_loc="on data").axes[0]
    assert not ax.texts, "more letters than the map has room for"
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert len(legend) == len(set(legend)) == 77


def test_a_gene_of_few_cells_is_seen(cells: ad.AnnData):
    few = cells.copy()
    few.obs["few"] = np.r_[np.full(3, 2.0), np.zeros(497)]
    assert pl.umap(few, "few").axes[0].collections[-1].get_clim() == (0, 2)


def test_what_cannot_be_drawn(source):
    for draw, message in (
        (lambda: pl.umap(source, "G2x"), r"obs has no column 'G2x' .* line, total; and .* 'g2'"),
        (
            lambda: pl.umap(source, ["g1", "line"], ax=mpl.figure.Figure().subplots()),
            "leave ax out",
        ),
        (lambda: pl.umap(source, []), "color is empty: name at least one"),
        (lambda: pl.umap(source, "line", legend_loc="left"), "legend_loc is 'left': use"),
        (
            lambda: pl.dotplot(source, "g1", "g2"),
            r"obs has no column 'g2' \(groupby\); it has line",
        ),
        (lambda: pl.dotplot(source, [], "line"), "var_names is empty"),
        (lambda: pl.dotplot(source, "g1", "line", standard_scale="obs"), "standard_scale is 'obs'"),
        (lambda: pl.violin(source, "line", "line"), r"obs\['line'\] \(keys\) holds no numbers"),
        (lambda: pl.violin(source, [], "line"), "keys is empty"),
    ):
        with pytest.raises(InputError, match=message):
            draw()
