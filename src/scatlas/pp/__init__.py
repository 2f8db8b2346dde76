"""Preprocessing with scanpy's names, defaults and result keys, in memory and out of core.

Each function takes an :class:`anndata.AnnData` whose X is NumPy, SciPy CSR or CSC, or a Dask array
of row blocks (:func:`scatlas.read_lazy`). ``fn.passes`` says how often it computes a Dask X.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas._util.lazy_exports import exports

if TYPE_CHECKING:
    from scatlas.pp._downsample import downsample_counts
    from scatlas.pp._filter import filter_cells, filter_genes
    from scatlas.pp._harmony import harmony_integrate
    from scatlas.pp._hvg import highly_variable_genes
    from scatlas.pp._neighbors import neighbors
    from scatlas.pp._normalize import log1p, normalize_total
    from scatlas.pp._pca import pca
    from scatlas.pp._qc import calculate_qc_metrics
    from scatlas.pp._regress import regress_out
    from scatlas.pp._sample import sample
    from scatlas.pp._scale import scale
    from scatlas.pp._scrublet import scrublet

_EXPORTS = {
    "calculate_qc_metrics": "_qc",
    "downsample_counts": "_downsample",
    "filter_cells": "_filter",
    "filter_genes": "_filter",
    "harmony_integrate": "_harmony",
    "highly_variable_genes": "_hvg",
    "log1p": "_normalize",
    "neighbors": "_neighbors",
    "normalize_total": "_normalize",
    "pca": "_pca",
    "regress_out": "_regress",
    "sample": "_sample",
    "scale": "_scale",
    "scrublet": "_scrublet",
}
__all__ = [
    "calculate_qc_metrics",
    "downsample_counts",
    "filter_cells",
    "filter_genes",
    "harmony_integrate",
    "highly_variable_genes",
    "log1p",
    "neighbors",
    "normalize_total",
    "pca",
    "regress_out",
    "sample",
    "scale",
    "scrublet",
]


__getattr__, __dir__ = exports(__name__, _EXPORTS)
