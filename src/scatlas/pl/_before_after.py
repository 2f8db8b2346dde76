"""The map of the cells before and after their plates were mixed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.columns import get_column
from scatlas.elements import get_table
from scatlas.pl._style import colours, figure, styled
from scatlas.pl._umap import categories, label_clusters, legend, positions, scatter

if TYPE_CHECKING:
    from anndata import AnnData
    from matplotlib.figure import Figure

_SIDE = 4.5  # inches


@styled
def before_after(
    adata: AnnData, color: str, *, before: str = "X_umap", after: str = "X_umap_harmony"
) -> Figure:
    """Cells on two maps, coloured by a column of ``obs`` with the same colours.

    Parameters
    ----------
    adata
        Annotated data with both maps in ``obsm`` [cells x 2].
    color
        Column of ``obs``, whose values are taken for categories.
    before, after
        Keys of ``obsm``.

    Raises
    ------
    InputError
        No such column or coordinates.
    """
    codes, names = categories(get_column(get_table(adata, "obs"), color, "color"))
    palette = colours(len(names))
    made = figure(2 * _SIDE, _SIDE, layout=None)
    order = np.random.default_rng(0).permutation(adata.n_obs)
    marks: dict[int, str] = {}
    for column, (basis, title) in enumerate([(before, "before"), (after, "after")]):
        ax = made.add_axes((0.03 + 0.49 * column, 0.05, 0.46, 0.88))
        xy = positions(adata, basis)
        scatter(ax, xy, codes, palette, order)
        ax.set_title(f"{color}, {title}")
        # Each value keeps one mark on both maps.
        marks |= label_clusters(ax, xy, codes, names)
    legend(ax, codes, names, palette, marks)
    return made
