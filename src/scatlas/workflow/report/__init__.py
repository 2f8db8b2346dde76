"""The page a person reads first: figures, tables and facts of one atlas, in one HTML file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas._util.imports import exports

if TYPE_CHECKING:
    from scatlas.workflow.report._build import build as build
    from scatlas.workflow.report._new_plates import NewPlates as NewPlates
    from scatlas.workflow.report._new_plates import build_new_plates as build_new_plates
    from scatlas.workflow.report._results import Results as Results

__getattr__, __dir__, __all__ = exports(__name__)
