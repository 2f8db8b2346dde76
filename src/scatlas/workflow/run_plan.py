"""What all jobs of a run have in common: its config, its plates and its code.

Each job of a cluster starts a separate Snakemake, which reads the files again, perhaps hours later.
It takes the config of its run from the environment, and refuses other plates or other code.
"""

from __future__ import annotations

import json
import os
from typing import Any

from scatlas.errors import InputError
from scatlas.io.files.checksums import text_digest

_VARIABLE = "SCATLAS_RUN"


def of_run(part: str, value: Any, *, module: str, is_main: bool) -> Any:
    """A part of the plan of a run, which Snakemake's main process writes and its jobs read.
    ``value`` is what this process has read, and the result where an executor hands on no
    environment. Another workflow may import this one as several modules.
    """
    run, key = json.loads(os.environ.get(_VARIABLE) or "{}"), f"{module} {part}"
    if not is_main:
        return run.get(key, value)
    # `load` refuses what JSON does not know.
    os.environ[_VARIABLE] = json.dumps(run | {key: value}, default=str)
    return value


def bind(place: str, text: str, *, module: str, is_main: bool) -> None:
    """Refuse to go on if this is a job, and its run began with another text at this place."""
    digest = text_digest(text.encode())
    if of_run(place, digest, module=module, is_main=is_main) != digest:
        msg = (
            f"{place} has changed since this run began: give the same command again when the run "
            "has ended"
        )
        raise InputError(msg)
