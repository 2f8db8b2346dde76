"""Groups of cells aggregated, single genes, and matrices moved between CPU and GPU: scanpy's names,
and rapids-singlecell's for the moves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas._util.imports import exports

if TYPE_CHECKING:
    from scatlas.get._aggregate import aggregate as aggregate
    from scatlas.get._aggregate import aggregate_cells as aggregate_cells
    from scatlas.get._effects import effects as effects
    from scatlas.get._gene import gene as gene
    from scatlas.get._gene import genes as genes
    from scatlas.get._move import X_to_CPU as X_to_CPU
    from scatlas.get._move import X_to_GPU as X_to_GPU
    from scatlas.get._move import anndata_to_CPU as anndata_to_CPU
    from scatlas.get._move import anndata_to_GPU as anndata_to_GPU
    from scatlas.get._move import on_backend as on_backend

__getattr__, __dir__, __all__ = exports(__name__)
