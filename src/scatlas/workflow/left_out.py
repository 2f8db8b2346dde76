"""Steps that refuse their input, and plates that are left out because they cannot be used.

A step stores its sentence beside its manifest (`scatlas.workflow.script`): Snakemake neither
repeats it nor prints its command, and the run ends with the sentences, each once. Errors that may
pass, such as too little memory, store none: Snakemake repeats those steps.

With ``plates.on_error: skip`` the step that refuses a plate, and those after it, write
placeholders, because Snakemake expects outputs; the manifest holds the message under ``left_out``.
`consensus` lists these plates.
"""

from __future__ import annotations

import atexit
import json
import logging
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from scatlas.errors import ScatlasError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Iterable, Mapping

    from snakemake.jobs import Job

# Plates that one message names at most.
_MAX_NAMED = 20
# The manifest among the words of a step's command, as Snakemake prints it.
_MANIFEST = re.compile(r" --manifest ('[^']*'|\S+)")


class PlateLeftOut(ScatlasError):  # noqa: N818  (the run goes on)
    """A plate that cannot be used; the message is that of the error."""


def left_out(manifest: Path) -> str | None:
    """Message of the error for which a step has left its plate out; None if it has not."""
    return json.loads(manifest.read_text("utf-8")).get("left_out")


def plates_left_out(consensus: Path) -> dict[str, str]:
    """Plates that the atlas lacks, with messages, from the manifest of `consensus`."""
    return json.loads(consensus.read_text("utf-8")).get("left_out", {})


def check_previous(args: argparse.Namespace) -> None:
    """Leave a plate out that its previous step has left out, with the message of that step."""
    previous = getattr(args, "previous", None)
    if previous and (message := left_out(previous)):
        raise PlateLeftOut(message)


def is_about_plate(message: str, args: argparse.Namespace) -> bool:
    """Whether an error of bad input is about the plate: one that names an input or output of a step
    after `load` means a store that was lost or damaged, which leaves no plate out.
    """
    if hasattr(args, "source"):
        return True
    return not any(str(path) in message for path in vars(args).values() if isinstance(path, Path))


def write_placeholders(outputs: Iterable[Path], message: str) -> None:
    """Write outputs without content: an empty Zarr group for a store, the message for a file."""
    from scatlas.io.files.atomic import atomic_path
    from scatlas.io.zarr_writer.elements import create_group

    for output in outputs:
        with atomic_path(output) as path:
            if output.suffix == ".zarr":
                create_group(path, {"left_out": message})
            else:
                path.write_text(message, encoding="utf-8")


def sentences(messages: Mapping[str, str], mark: str = "- ") -> str:
    """One line per plate with the reason, of at most 20 plates; each line begins with a mark."""
    lines = [
        text if plate in text else f"{plate}: {text}"
        for plate, text in list(messages.items())[:_MAX_NAMED]
    ]
    if len(messages) > _MAX_NAMED:
        lines.append(f"and {len(messages) - _MAX_NAMED:,} more")
    return "\n".join(mark + line for line in lines)


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
        from snakemake.jobs import GroupJob, Job

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
        step = Path(manifest).absolute().with_suffix("").relative_to(self._manifests)
        name = f"{step.parent} of {step.name}" if step.parent.name else step.name
        record.msg = f"{name} cannot go on: the end of this run says why"
        return True

    def _say(self) -> None:
        """Print the sentences of this run: of plates, and of steps of the whole atlas."""
        refused = {path: path.read_text("utf-8") for path in self._times() if self.is_refused(path)}
        of_plates = {path.stem: text for path, text in refused.items() if path.stem in self._plates}
        others = {text for path, text in refused.items() if path.stem not in self._plates}
        if of_plates:
            sys.stderr.write(
                f"{len(of_plates):,} of {len(self._plates):,} plates cannot be used. Mend them or "
                "remove them from the plate sheet, or set plates.on_error to skip, and give the "
                f"same command again:\n{sentences(of_plates, 'error: ')}\n"
            )
        for text in sorted(others):
            sys.stderr.write(f"error: {text}\n")
