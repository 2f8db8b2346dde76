"""Figures of marker genes: their genes and groups, sizes, and the numbers that they draw."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

from scatlas import pl
from scatlas.errors import InputError


def tables(n_groups: int, n_genes: int = 12) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Means and shares [groups x genes], and the markers of each group; the last has none."""
    rng = np.random.default_rng(0)
    groups = [f"group {i}" for i in range(n_groups)]
    genes = [f"gene {i}" for i in range(n_groups * n_genes)]
    mean = pd.DataFrame(rng.random((n_groups, len(genes))), groups, genes)
    share = pd.DataFrame(rng.random(mean.shape), groups, genes)
    rows = [
        {"group": group, "names": genes[i * n_genes + rank]}
        for i, group in enumerate(groups[: max(1, n_groups - 1)])
        for rank in range(n_genes)
    ]
    return mean, share, pd.DataFrame(rows)


def names(axis: mpl.axis.Axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def test_dots_show_means_and_shares_of_the_first_markers():
    mean, share, markers = tables(4)
    ax = pl.marker_dots(mean, share, markers, n_genes=2).axes[0]
    genes = [f"gene {i}" for i in (0, 1, 12, 13, 24, 25)]
    assert names(ax.xaxis) == genes
    assert names(ax.yaxis) == ["group 0", "group 1", "group 2"], "the last has no markers"
    (dots,) = ax.collections
    shown = mean.loc[names(ax.yaxis), genes].to_numpy().ravel()
    np.testing.assert_array_equal(dots.get_array(), shown)
    areas = share.loc[names(ax.yaxis), genes].to_numpy().ravel()
    np.testing.assert_allclose(dots.get_sizes() / dots.get_sizes().max(), areas / areas.max())
    assert dots.norm.vmin == 0
    low, high = ax.get_ylim()
    assert low > high, "the first group is on top"


def test_the_heat_map_shows_each_gene_beside_its_highest_group():
    mean, _, markers = tables(4)
    mean["gene 1"] = 0.5  # the same in all groups
    mean["gene 12"] = np.log1p([4.0, 3.0, 1.0, 8.0])
    mean["gene 13"] = 0.0
    ax = pl.marker_heat_map(mean, markers, n_genes=2).axes[0]
    (image,) = ax.images
    found = image.get_array()
    assert found.shape == (3, 6)
    np.testing.assert_array_equal(found[:, 1], 1)
    np.testing.assert_allclose(found[:, 2], [1, 0.75, 0.25])
    np.testing.assert_array_equal(found[:, 3], 0)


def test_two_groups_that_differ_little_look_alike():
    mean = pd.DataFrame({"a": np.log1p([1.0, 0.9])}, ["treated", "not"])
    markers = pd.DataFrame({"group": ["treated", "not"], "names": ["a", "a"]})
    (image,) = pl.marker_heat_map(mean, markers).axes[0].images
    np.testing.assert_allclose(image.get_array(), [[1], [0.9]])


def test_a_gene_that_marks_two_groups_is_drawn_once():
    mean, share, markers = tables(3)
    markers.loc[markers["group"] == "group 1", "names"] = [f"gene {i}" for i in range(12)]
    ax = pl.marker_dots(mean, share, markers).axes[0]
    assert names(ax.xaxis) == ["gene 0", "gene 1", "gene 2"]


@pytest.mark.parametrize("n_groups", [1, 3, 20, 40])
def test_any_number_of_groups_fits_a_page(n_groups: int, tmp_path):
    mean, share, markers = tables(n_groups)
    figures = (pl.marker_dots(mean, share, markers), pl.marker_heat_map(mean, markers))
    for i, figure in enumerate(figures):
        pl.save(figure, tmp_path / f"{i}.png")
        height, width = mpl.image.imread(tmp_path / f"{i}.png").shape[:2]
        assert max(height, width) <= 2400


def test_markers_that_cannot_be_drawn():
    mean, share, markers = tables(2)
    with pytest.raises(InputError, match="there is no marker gene to draw"):
        pl.marker_dots(mean, share, markers.iloc[:0])
    with pytest.raises(InputError, match="the means lack the marker gene 'gene 0'"):
        pl.marker_heat_map(mean.drop(columns="gene 0"), markers)
