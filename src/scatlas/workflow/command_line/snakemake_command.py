"""Commands of Snakemake, as a user would type them."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from scatlas.errors import InputError
from scatlas.workflow.snakefile import workflow_folder

if TYPE_CHECKING:
    from pathlib import Path

# Packages of the extra, by their modules.
_NEEDED = {"snakemake": "snakemake", "matplotlib": "matplotlib", "umap": "umap-learn"}


def check_installed() -> None:
    """Refuse an installation without the extra ``workflow``.

    Raises
    ------
    InputError
        A package of it is missing.
    """
    if missing := [name for module, name in _NEEDED.items() if find_spec(module) is None]:
        msg = f"{missing[0]} is not installed: pip install 'scatlas[workflow]'"
        raise InputError(msg)


def snakemake_command(config: Path, *options: str) -> list[str]:
    """Words of the command that runs the workflow with a config, in the working folder."""
    return [
        *(sys.executable, "-m", "snakemake"),
        *("--snakefile", str(workflow_folder() / "Snakefile")),
        # With "=": Snakemake would take targets after a space for more config files.
        *(f"--configfile={config}", *options),
    ]


def output_of(command: list[str]) -> tuple[int, str, str]:
    """Run a command; return its exit status, output and messages."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    return done.returncode, done.stdout, done.stderr
