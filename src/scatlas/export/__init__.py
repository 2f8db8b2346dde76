"""An atlas in the forms that other programs read; ``scatlas export`` calls these functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas._util.lazy_exports import exports

if TYPE_CHECKING:
    from scatlas.export._annbatch import to_annbatch
    from scatlas.export._files import to_cellxgene, to_h5ad, to_vitessce

__all__ = ["to_annbatch", "to_cellxgene", "to_h5ad", "to_vitessce"]
_EXPORTS = dict.fromkeys(__all__, "_files") | {"to_annbatch": "_annbatch"}

__getattr__, __dir__ = exports(__name__, _EXPORTS)
