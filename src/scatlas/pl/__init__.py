"""Figures of the atlas, from plain tables.

Each function returns a :class:`matplotlib.figure.Figure` that pyplot does not manage. No global
setting is changed, and :func:`save` writes the same bytes for the same input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas._util.imports import exports

if TYPE_CHECKING:
    from scatlas.pl._clusters import cluster_shares as cluster_shares
    from scatlas.pl._clusters import unknown_shares as unknown_shares
    from scatlas.pl._components import held_variance as held_variance
    from scatlas.pl._components import pca_scree as pca_scree
    from scatlas.pl._composition import composition as composition
    from scatlas.pl._density import umap_density as umap_density
    from scatlas.pl._doublets import doublet_scores as doublet_scores
    from scatlas.pl._effects import dose_response as dose_response
    from scatlas.pl._effects import effect_strength as effect_strength
    from scatlas.pl._effects import volcano as volcano
    from scatlas.pl._expression import dotplot as dotplot
    from scatlas.pl._expression import violin as violin
    from scatlas.pl._genes import genes_by_plates as genes_by_plates
    from scatlas.pl._genes import hvg_overlap as hvg_overlap
    from scatlas.pl._genes import marker_dots as marker_dots
    from scatlas.pl._genes import marker_heat_map as marker_heat_map
    from scatlas.pl._qc import cells_kept as cells_kept
    from scatlas.pl._qc import qc_violins as qc_violins
    from scatlas.pl._style import save as save
    from scatlas.pl._umap import before_after as before_after
    from scatlas.pl._umap import new_cells as new_cells
    from scatlas.pl._umap import umap as umap

__getattr__, __dir__, __all__ = exports(__name__)
