"""Scores and ranks of genes, graphs of cells: scanpy's names, defaults and result keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas._util.imports import exports

if TYPE_CHECKING:
    from scatlas.tl._annotate import annotate as annotate
    from scatlas.tl._annotate import train_annotator as train_annotator
    from scatlas.tl._conditions import composition as composition
    from scatlas.tl._conditions import edistance as edistance
    from scatlas.tl._effects import effects as effects
    from scatlas.tl._ingest import ingest as ingest
    from scatlas.tl._leiden import leiden as leiden
    from scatlas.tl._lisi import lisi as lisi
    from scatlas.tl._rank_genes_groups import rank_genes_groups as rank_genes_groups
    from scatlas.tl._rank_genes_groups import rank_genes_groups_logreg as rank_genes_groups_logreg
    from scatlas.tl._score import score_genes as score_genes
    from scatlas.tl._score import score_genes_cell_cycle as score_genes_cell_cycle
    from scatlas.tl._umap import umap as umap

__getattr__, __dir__, __all__ = exports(__name__)
