"""Preprocessing with scanpy's names, defaults and result keys, in memory and out of core.

Each function takes an :class:`anndata.AnnData` whose X is NumPy, SciPy CSR or CSC, or a Dask array
of row blocks (:func:`scatlas.read_lazy`). ``fn.passes`` says how often it computes a Dask X.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas._util.imports import exports

if TYPE_CHECKING:
    from scatlas.pp._downsample import downsample_counts as downsample_counts
    from scatlas.pp._filter import filter_cells as filter_cells
    from scatlas.pp._filter import filter_genes as filter_genes
    from scatlas.pp._harmony import harmony_integrate as harmony_integrate
    from scatlas.pp._hvg import highly_variable_genes as highly_variable_genes
    from scatlas.pp._neighbors import neighbors as neighbors
    from scatlas.pp._normalize import log1p as log1p
    from scatlas.pp._normalize import normalize_total as normalize_total
    from scatlas.pp._pca import pca as pca
    from scatlas.pp._qc import calculate_qc_metrics as calculate_qc_metrics
    from scatlas.pp._regress import regress_out as regress_out
    from scatlas.pp._sample import sample as sample
    from scatlas.pp._scale import scale as scale
    from scatlas.pp._scrublet import scrublet as scrublet

__getattr__, __dir__, __all__ = exports(__name__)
