"""Scores and ranks of genes, graphs of cells: scanpy's names, defaults and result keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas._util.lazy_exports import exports

if TYPE_CHECKING:
    from scatlas.tl._ingest import ingest
    from scatlas.tl._leiden import leiden
    from scatlas.tl._lisi import lisi
    from scatlas.tl._rank_genes_groups import rank_genes_groups, rank_genes_groups_logreg
    from scatlas.tl._score import score_genes, score_genes_cell_cycle
    from scatlas.tl._umap import umap

_EXPORTS = {
    "ingest": "_ingest",
    "leiden": "_leiden",
    "lisi": "_lisi",
    "rank_genes_groups": "_rank_genes_groups",
    "rank_genes_groups_logreg": "_rank_genes_groups",
    "score_genes": "_score",
    "score_genes_cell_cycle": "_score",
    "umap": "_umap",
}
__all__ = [
    "ingest",
    "leiden",
    "lisi",
    "rank_genes_groups",
    "rank_genes_groups_logreg",
    "score_genes",
    "score_genes_cell_cycle",
    "umap",
]
__getattr__, __dir__ = exports(__name__, _EXPORTS)
