"""Preprocessing with scanpy's names, defaults and result keys, in memory and out of core.

Each function takes an :class:`anndata.AnnData` whose X is NumPy, SciPy CSR or CSC, or a Dask array
of row blocks (:func:`scatlas.read_lazy`). ``fn.passes`` says how often it computes a Dask X.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas._lazy import exports

if TYPE_CHECKING:
    from scatlas.pp._consensus import consensus_genes
    from scatlas.pp._cut import cut_log_normalize
    from scatlas.pp._downsample import downsample_counts
    from scatlas.pp._filter import filter_cells, filter_genes
    from scatlas.pp._gene_scale import GeneScale
    from scatlas.pp._gram import GramAccumulator, GramStats
    from scatlas.pp._harmony import harmonized, harmony_integrate
    from scatlas.pp._hvg import highly_variable_genes, hvg_of_counts
    from scatlas.pp._neighbors import neighbors
    from scatlas.pp._normalize import cell_totals, log1p, normalize_total, size_factors
    from scatlas.pp._pca import Components, components, pca
    from scatlas.pp._qc import calculate_qc_metrics
    from scatlas.pp._qc_bounds import evaluate_filter, frequent_genes, qc_filter
    from scatlas.pp._regress import regress_out
    from scatlas.pp._sample import sample
    from scatlas.pp._scale import scale
    from scatlas.pp._scrublet import scrublet, scrublet_of_counts

_HOME = {
    "Components": "_pca",
    "GeneScale": "_gene_scale",
    "GramAccumulator": "_gram",
    "GramStats": "_gram",
    "calculate_qc_metrics": "_qc",
    "cell_totals": "_normalize",
    "components": "_pca",
    "consensus_genes": "_consensus",
    "cut_log_normalize": "_cut",
    "downsample_counts": "_downsample",
    "evaluate_filter": "_qc_bounds",
    "filter_cells": "_filter",
    "filter_genes": "_filter",
    "frequent_genes": "_qc_bounds",
    "harmonized": "_harmony",
    "harmony_integrate": "_harmony",
    "highly_variable_genes": "_hvg",
    "hvg_of_counts": "_hvg",
    "log1p": "_normalize",
    "neighbors": "_neighbors",
    "normalize_total": "_normalize",
    "pca": "_pca",
    "qc_filter": "_qc_bounds",
    "regress_out": "_regress",
    "sample": "_sample",
    "scale": "_scale",
    "scrublet": "_scrublet",
    "scrublet_of_counts": "_scrublet",
    "size_factors": "_normalize",
}
__all__ = [
    "Components",
    "GeneScale",
    "GramAccumulator",
    "GramStats",
    "calculate_qc_metrics",
    "cell_totals",
    "components",
    "consensus_genes",
    "cut_log_normalize",
    "downsample_counts",
    "evaluate_filter",
    "filter_cells",
    "filter_genes",
    "frequent_genes",
    "harmonized",
    "harmony_integrate",
    "highly_variable_genes",
    "hvg_of_counts",
    "log1p",
    "neighbors",
    "normalize_total",
    "pca",
    "qc_filter",
    "regress_out",
    "sample",
    "scale",
    "scrublet",
    "scrublet_of_counts",
    "size_factors",
]


__getattr__, __dir__ = exports(__name__, _HOME)
