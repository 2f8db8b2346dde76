"""Place of the workflow: in a checkout, or in the installed package."""

from __future__ import annotations

from pathlib import Path

from scatlas.errors import InputError

_PACKAGE = Path(__file__).parents[1]


def workflow_folder() -> Path:
    """Folder with the Snakefile, the rules, the scripts and the profiles."""
    # Hatchling copies them into the wheel; see pyproject.toml.
    for folder in (_PACKAGE / "snakemake_workflow", _PACKAGE.parents[1]):
        if (folder / "Snakefile").is_file() and (folder / "scripts").is_dir():
            return folder
    msg = f"{_PACKAGE}: the package has no Snakefile: install scatlas again"
    raise InputError(msg)
