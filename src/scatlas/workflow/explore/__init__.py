"""The atlas as one page that opens by a double click: ``explore.html``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas._util.imports import exports

if TYPE_CHECKING:
    from scatlas.workflow.explore._build import build as build
    from scatlas.workflow.explore._cells import MapCells as MapCells
    from scatlas.workflow.explore._choose import certain_columns as certain_columns
    from scatlas.workflow.explore._choose import choose as choose
    from scatlas.workflow.explore._choose import choose_genes as choose_genes
    from scatlas.workflow.explore._digests import digest_of_page as digest_of_page
    from scatlas.workflow.explore._digests import digests_of_plates as digests_of_plates
    from scatlas.workflow.explore._pixels import add_plates as add_plates
    from scatlas.workflow.explore._pixels import count_plate as count_plate
    from scatlas.workflow.explore._pixels import write_pixels as write_pixels

__getattr__, __dir__, __all__ = exports(__name__)
