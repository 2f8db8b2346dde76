"""The page a person reads first: figures, tables and facts of one atlas, in one HTML file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas._util.lazy_exports import exports

if TYPE_CHECKING:
    from scatlas.workflow.report._build import build
    from scatlas.workflow.report._results import Results

_EXPORTS = {"Results": "_results", "build": "_build"}
__all__ = ["Results", "build"]


__getattr__, __dir__ = exports(__name__, _EXPORTS)
