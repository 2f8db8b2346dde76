"""What all jobs of a run have in common: its config, its plates and its code.

Each job of a cluster starts a separate Snakemake, which reads the files again, perhaps hours later.
It takes the config of its run from the environment, and refuses other plates or other code.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from scatlas.errors import InputError
from scatlas.io.files.checksums import text_digest

if TYPE_CHECKING:
    from collections.abc import Mapping

_VARIABLE = "SCATLAS_RUN"


class RunPlan:
    """Plan of one run, which Snakemake's main process writes and its jobs read.

    Parameters
    ----------
    name
        Of the module, if another workflow imports this one; there may be several.
    is_main
        Whether this is the main process.
    """

    def __init__(self, name: str, *, is_main: bool) -> None:
        self._name, self._is_main = name, is_main
        self._run: dict[str, dict[str, Any]] = json.loads(os.environ.get(_VARIABLE) or "{}")
        if is_main:
            self._run[name] = {}

    def _of_run(self, part: str, value: Any) -> Any:
        """A part of the plan; in the main process, and where an executor hands on no environment,
        that of this process."""
        if not self._is_main:
            return self._run.get(self._name, {}).get(part, value)
        self._run[self._name][part] = value
        os.environ[_VARIABLE] = json.dumps(self._run, default=str)  # `load` refuses the others
        return value

    def config(
        self, given: Mapping[str, Any], config: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The user's config without and with the defaults, as they were when the run began."""
        given, config = self._of_run("config", [given, config])
        return given, config

    def bind(self, place: str, text: str) -> None:
        """Bind the jobs to a text that was read at a place.

        Raises
        ------
        InputError
            This is a job, and its run began with another text.
        """
        digest = text_digest(text.encode())
        if self._of_run(place, digest) != digest:
            msg = (
                f"{place} has changed since this run began, whose jobs would differ: give the "
                "same command again when it has ended"
            )
            raise InputError(msg)
