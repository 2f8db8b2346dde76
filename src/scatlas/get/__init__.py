"""Groups of cells aggregated, single genes, and matrices moved between CPU and GPU.

``sa.get`` has scanpy's names, and rapids-singlecell's for the moves. All other functions compute
where a matrix is, on the CPU or GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas._util.lazy_exports import exports

if TYPE_CHECKING:
    from scatlas.get._aggregate import aggregate, aggregate_cells
    from scatlas.get._gene import gene
    from scatlas.get._move import X_to_CPU, X_to_GPU, anndata_to_CPU, anndata_to_GPU, on_backend

__all__ = [
    "X_to_CPU",
    "X_to_GPU",
    "aggregate",
    "aggregate_cells",
    "anndata_to_CPU",
    "anndata_to_GPU",
    "gene",
    "on_backend",
]
_EXPORTS = dict.fromkeys(__all__, "_move")
_EXPORTS |= {"aggregate": "_aggregate", "aggregate_cells": "_aggregate", "gene": "_gene"}

__getattr__, __dir__ = exports(__name__, _EXPORTS)
