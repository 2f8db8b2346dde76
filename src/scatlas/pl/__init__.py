"""Figures of the atlas, from plain tables.

Each function returns a :class:`matplotlib.figure.Figure` that pyplot does not manage. No global
setting is changed, and :func:`save` writes the same bytes for the same input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas._util.lazy_exports import exports

if TYPE_CHECKING:
    from scatlas.pl._components import held_variance, pca_scree
    from scatlas.pl._density import umap_density
    from scatlas.pl._doublets import doublet_scores
    from scatlas.pl._genes import genes_by_plates, hvg_overlap, marker_dots, marker_heat_map
    from scatlas.pl._qc import cells_kept, qc_violins
    from scatlas.pl._style import save
    from scatlas.pl._umap import before_after, new_cells, umap

_EXPORTS = {
    "before_after": "_umap",
    "cells_kept": "_qc",
    "doublet_scores": "_doublets",
    "genes_by_plates": "_genes",
    "held_variance": "_components",
    "hvg_overlap": "_genes",
    "marker_dots": "_genes",
    "marker_heat_map": "_genes",
    "new_cells": "_umap",
    "pca_scree": "_components",
    "qc_violins": "_qc",
    "save": "_style",
    "umap": "_umap",
    "umap_density": "_density",
}
__all__ = [
    "before_after",
    "cells_kept",
    "doublet_scores",
    "genes_by_plates",
    "held_variance",
    "hvg_overlap",
    "marker_dots",
    "marker_heat_map",
    "new_cells",
    "pca_scree",
    "qc_violins",
    "save",
    "umap",
    "umap_density",
]


__getattr__, __dir__ = exports(__name__, _EXPORTS)
