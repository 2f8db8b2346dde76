"""The atlas as one page that opens by a double click: ``explore.html``."""

from scatlas.workflow.explore._build import build
from scatlas.workflow.explore._cells import MapCells, count_pixels
from scatlas.workflow.explore._choose import certain_columns, choose, choose_genes, read_markers

__all__ = ["MapCells", "build", "certain_columns", "choose", "choose_genes", "count_pixels"]
__all__ += ["read_markers"]
