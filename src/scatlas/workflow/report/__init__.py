"""The page a person reads first: figures, tables and facts of one atlas, in one HTML file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas._util.lazy_exports import exports

if TYPE_CHECKING:
    from scatlas.workflow.report._build import build
    from scatlas.workflow.report._new_plates import NewPlates, build_new_plates
    from scatlas.workflow.report._results import Results

_EXPORTS = {
    "NewPlates": "_new_plates",
    "Results": "_results",
    "build": "_build",
    "build_new_plates": "_new_plates",
}
__all__ = ["NewPlates", "Results", "build", "build_new_plates"]


__getattr__, __dir__ = exports(__name__, _EXPORTS)
