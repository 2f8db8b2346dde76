"""Bars of Snakemake's progress: all steps with the time left, and the plates of the long steps."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

if TYPE_CHECKING:
    from typing import Self, TextIO

# Steps of a plate that read its counts, which take most of the time, with the name of their bar.
PLATE_STEPS = {
    "load": "plates read",
    "hvg": "plates with variable genes",
    "select_genes": "plates cut to these genes",
    "map_plate": "plates placed on the map",
}
# What Snakemake prints.
_PROGRESS = re.compile(r"^(\d+) of (\d+) steps \(")
_FINISHED = re.compile(r"^ *Finished jobid: \d+ \(Rule: (\w+)\)")
_STATS, _STAT = "Job stats:", re.compile(r"^(\w+) +(\d+)$")
_FORMAT = "{desc:<27}{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]"


class ProgressBars:
    """Bars below the lines of Snakemake; a context manager."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file or sys.stderr
        self._steps: Any = None
        self._plates: dict[str, Any] = {}
        self._in_stats = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for bar in [*self._plates.values(), *filter(None, [self._steps])]:
            bar.close()

    def read(self, line: str) -> None:
        """Print a line of Snakemake, and update the bars by it."""
        line = line.rstrip("\n")
        tqdm.write(line, file=self._file)
        if line == _STATS:
            self._in_stats = True
        elif not line:
            self._in_stats = False
        elif self._in_stats and (match := _STAT.match(line)):
            self._plan(match[1], int(match[2]))
        elif match := _FINISHED.match(line):
            if match[1] in self._plates:
                self._plates[match[1]].update()
        elif (match := _PROGRESS.match(line)) and self._steps is not None:
            # A checkpoint adds steps.
            self._steps.total = int(match[2])
            self._steps.update(int(match[1]) - self._steps.n)
            self._steps.refresh()

    def _plan(self, rule: str, number: int) -> None:
        """Make the bar of a rule, or of all steps, unless it is there."""
        if rule == "total" and self._steps is None:
            self._steps = self._bar("all steps", number)
        elif rule in PLATE_STEPS and rule not in self._plates:
            self._plates[rule] = self._bar(PLATE_STEPS[rule], number)

    def _bar(self, name: str, total: int) -> Any:
        return tqdm(total=total, desc=name, file=self._file, bar_format=_FORMAT, dynamic_ncols=True)
