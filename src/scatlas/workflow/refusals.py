"""Steps that refuse their input: Snakemake neither repeats them nor prints their commands, and the
run ends with their sentences, each once.

A step stores its sentence beside its manifest (`scatlas.workflow.script`). Errors that may pass,
such as too little memory, store none: Snakemake repeats those steps.
"""

from __future__ import annotations

import atexit
import logging
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from snakemake.jobs import GroupJob, Job

from scatlas.workflow.left_out import sentences

if TYPE_CHECKING:
    from collections.abc import Collection

# The manifest among the words of a step's command, as Snakemake prints it.
_MANIFEST = re.compile(r" --manifest ('[^']*'|\S+)")
_HOW_TO_GO_ON = (
    "Mend them or remove them from the plate sheet, or set plates.on_error to skip, and give the "
    "same command again:"
)


class Refusals(logging.Filter):
    """Refusals of this run, by the sentences in a folder of manifests; as a filter of Snakemake's
    log it puts one line in place of what Snakemake prints about such a step.
    """

    def __init__(self, manifests: Path, plates: Collection[str]) -> None:
        super().__init__()
        # At the end Snakemake is back in the folder where it was started.
        self._manifests, self._plates = manifests.absolute(), plates
        self._before = self._times()  # of earlier runs, which this run may mend

    def _times(self) -> dict[Path, int]:
        return {
            path: path.stat().st_mtime_ns for path in sorted(self._manifests.rglob("*.refused"))
        }

    def is_refused(self, manifest: str | Path) -> bool:
        """Whether the step of a manifest has refused its input in this run."""
        path = Path(manifest).absolute().with_suffix(".refused")
        return path.exists() and self._before.get(path) != path.stat().st_mtime_ns

    def watch(self) -> None:
        """Take part in this Snakemake: its log, the number of attempts, and its last words."""
        logging.getLogger("snakemake.logging").addFilter(self)
        Job.restart_times = property(lambda job: self._restarts(job, job.rule.restart_times))
        GroupJob.restart_times = property(
            lambda group: min(job.restart_times for job in group.jobs)
        )
        atexit.register(self._say)

    def _restarts(self, job: Job, allowed: int) -> int:
        manifest = job.output.get("manifest")
        return 0 if manifest and self.is_refused(manifest) else allowed

    def filter(self, record: logging.LogRecord) -> bool:
        """Shorten the log of a command whose step has refused its input."""
        is_error = record.levelno >= logging.ERROR
        text = getattr(record, "shellcmd", None) or record.getMessage() if is_error else ""
        named = _MANIFEST.search(text or "")
        if not named:
            return True
        (manifest,) = shlex.split(named[1])
        if not self.is_refused(manifest):
            return True
        if hasattr(record, "shellcmd"):
            return False  # the exception of the command has been logged before
        record.msg = f"{self._step(Path(manifest))} cannot go on: the end of this run says why"
        return True

    def _step(self, manifest: Path) -> str:
        step = manifest.absolute().with_suffix("").relative_to(self._manifests)
        return f"{step.parent} of {step.name}" if step.parent.name else step.name

    def _say(self) -> None:
        """Print the sentences of this run: of plates, and of steps of the whole atlas."""
        refused = {path: path.read_text("utf-8") for path in self._times() if self.is_refused(path)}
        of_plates = {path.stem: text for path, text in refused.items() if path.stem in self._plates}
        others = {text for path, text in refused.items() if path.stem not in self._plates}
        if of_plates:
            sys.stderr.write(
                f"{len(of_plates):,} of {len(self._plates):,} plates cannot be used. "
                f"{_HOW_TO_GO_ON}\n{sentences(of_plates, 'error: ')}\n"
            )
        for text in sorted(others):
            sys.stderr.write(f"error: {text}\n")
