"""Commands of Snakemake, as a user would type them."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from scatlas.errors import InputError
from scatlas.workflow.snakefile import workflow_folder

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


def check_folder() -> None:
    """Refuse a working folder with another workflow's config.

    Raises
    ------
    InputError
        Snakemake would take the missing keys of a config from a file in this folder.
    """
    defaults = Path("config/config.yaml")
    if defaults.is_file() and not defaults.samefile(workflow_folder() / defaults):
        msg = (
            f"{defaults.absolute()}: Snakemake would read this file as defaults of the atlas: use "
            "scatlas in another folder, or move the file"
        )
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
