"""The page a person reads first: figures, tables and facts of one atlas, in one HTML file."""

from scatlas.workflow.report._build import build
from scatlas.workflow.report._new_plates import NewPlates, build_new_plates
from scatlas.workflow.report._results import Results

__all__ = ["NewPlates", "Results", "build", "build_new_plates"]
