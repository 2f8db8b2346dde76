"""The atlas as one page that opens by a double click: ``explore.html``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas._util.lazy_exports import exports

if TYPE_CHECKING:
    from scatlas.workflow.explore._build import build
    from scatlas.workflow.explore._cells import MapCells
    from scatlas.workflow.explore._choose import certain_columns, choose, choose_genes
    from scatlas.workflow.explore._digests import digest_of_page, digests_of_plates
    from scatlas.workflow.explore._pixels import add_plates, count_plate, write_pixels

_EXPORTS = {
    "MapCells": "_cells",
    "add_plates": "_pixels",
    "build": "_build",
    "certain_columns": "_choose",
    "choose": "_choose",
    "choose_genes": "_choose",
    "count_plate": "_pixels",
    "digest_of_page": "_digests",
    "digests_of_plates": "_digests",
    "write_pixels": "_pixels",
}
__all__ = [
    "MapCells",
    "add_plates",
    "build",
    "certain_columns",
    "choose",
    "choose_genes",
    "count_plate",
    "digest_of_page",
    "digests_of_plates",
    "write_pixels",
]


__getattr__, __dir__ = exports(__name__, _EXPORTS)
