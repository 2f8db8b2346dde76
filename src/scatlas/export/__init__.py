"""An atlas in the forms that other programs read; ``scatlas export`` calls these functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas._util.imports import exports

if TYPE_CHECKING:
    from scatlas.export._annbatch import to_annbatch as to_annbatch
    from scatlas.export._files import to_cellxgene as to_cellxgene
    from scatlas.export._files import to_h5ad as to_h5ad
    from scatlas.export._files import to_vitessce as to_vitessce

__getattr__, __dir__, __all__ = exports(__name__)
