"""Between the main memory and the GPU's: ``sa.get``, with rapids-singlecell's names.

All other functions take what they find: a matrix on the GPU is worked on there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas._lazy import exports

if TYPE_CHECKING:
    from scatlas.get._move import X_to_CPU, X_to_GPU, anndata_to_CPU, anndata_to_GPU, on_backend

__all__ = ["X_to_CPU", "X_to_GPU", "anndata_to_CPU", "anndata_to_GPU", "on_backend"]

__getattr__, __dir__ = exports(__name__, dict.fromkeys(__all__, "_move"))
