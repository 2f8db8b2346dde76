"""The command ``scatlas`` and what its commands print: lines for the terminal, or a JSON object."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from scatlas._util.names import short_names
from scatlas._version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_MAX_LETTERS = 48  # of a name in a table
# Exit status of all commands, and what each means.
DONE, PROBLEM, USAGE = 0, 1, 2
EXIT_CODES = {
    DONE: "done; `check`: the atlas can be built; `status`: no step has failed",
    PROBLEM: "refused or failed, with a sentence for each problem; `run` ends with the status of "
    "Snakemake, which is 1 if a step has failed",
    USAGE: "the command line is wrong, and nothing was done (no JSON)",
}
# Keys of the object of --json. Those of one command are null if an error came before.
COMMON_KEYS = {
    "scatlas": "version",
    "command": "`check` or `status`",
    "config": "the config, as given",
    "exit_code": "exit status: 0 if and only if `errors` is empty",
    "errors": "one `{message, plate}` for each problem; `plate` is null if it is of no one plate",
}
JSON_KEYS = {
    "check": {
        "folder": "local folder of the results",
        "n_plates": "number of plates",
        "n_jobs_to_run": "number of jobs that Snakemake plans: steps and their target",
        "left_out": "`{message, plate}` of the plates left out (config: `plates.on_error: skip`)",
        "same_cells": "`{message, plate}` of the plates nearly all of whose cells another has",
        "notices": "sentences on values of the config that probably mean something else",
        "edited": "a sentence for each result that was edited, and stays as it is",
    },
    "status": {
        "folder": "local folder of the results",
        "n_steps": "number of steps in each state: `done`, `running`, `failed`, `to run`",
        "steps": "`{rule, plate, state, reason, files}` of each step: `plate` is null if it is a "
        "step of the atlas, `reason` if it has not failed; the last of `files` is its manifest",
        "slurm": "`{number, state, reason, step}` of each job of the last run that Slurm lists",
        "edited": "a sentence for each result that was edited, and stays as it is",
    },
}


class Problem(NamedTuple):
    """A sentence about a plate, or about the whole project."""

    message: str
    plate: str | None = None


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def say_json(command: str, config: Path, errors: Sequence[Problem], **found: Any) -> int:
    """Print one JSON object with all keys of a command; return the exit status."""
    status = PROBLEM if errors else DONE
    common = (__version__, command, str(config), status, [e._asdict() for e in errors])
    values = dict(zip(COMMON_KEYS, common, strict=True))
    say(json.dumps(values | dict.fromkeys(JSON_KEYS[command]) | found))
    return status


def say_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows with aligned columns; the first row is the header, and the first column names."""
    names = short_names([row[0] for row in rows], _MAX_LETTERS)
    rows = [[name, *row[1:]] for name, row in zip(names, rows, strict=True)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        say("  ".join(cells).rstrip())
