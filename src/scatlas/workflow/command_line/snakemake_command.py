"""Commands of Snakemake, as a user would type them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from scatlas.errors import InputError
from scatlas.workflow.snakefile import workflow_folder

# Packages of the extra, by their modules.
_NEEDED = {"snakemake": "snakemake", "matplotlib": "matplotlib", "umap": "umap-learn"}
# Lines of Snakemake around the sentences of an error.
_NOISE = re.compile(
    r"^(Using |Building DAG|Config file |SNAKEMAKE|=+$|  [A-Z][\w ()]*: |\w*Error in file |  File )"
)


def check_installed() -> None:
    """Refuse an installation that lacks a package of the extra ``workflow``."""
    if missing := [name for module, name in _NEEDED.items() if find_spec(module) is None]:
        msg = f"{missing[0]} is not installed: pip install 'scatlas[workflow]'"
        raise InputError(msg)


def check_folder() -> None:
    """Refuse a folder with a file in which Snakemake would find the missing keys of a config."""
    defaults = Path("config/config.yaml")
    if defaults.is_file() and not defaults.samefile(workflow_folder() / defaults):
        msg = (
            f"{defaults.absolute()}: Snakemake would read this file as defaults of the atlas: use "
            "scatlas in another folder, or move the file"
        )
        raise InputError(msg)


def use_writable_caches() -> None:
    """Without a home, as on compute nodes, give libraries a cache in the working folder."""
    from snakemake.common import get_appdirs

    usual, here = Path(get_appdirs().user_cache_dir), Path(".snakemake/cache").absolute()
    if _is_writable(usual / "snakemake"):
        return
    if not _is_writable(here):
        msg = f"neither {usual} nor {here} can be written: set XDG_CACHE_HOME to another folder"
        raise InputError(msg)
    sys.stderr.write(f"{usual} cannot be written: {here} is used instead\n")
    os.environ["XDG_CACHE_HOME"] = str(here)
    for variable, name in (("MPLCONFIGDIR", "matplotlib"), ("CUPY_CACHE_DIR", "cupy")):
        os.environ.setdefault(variable, str(here / name))


def _is_writable(folder: Path) -> bool:
    """Whether a folder, which is made, takes files; ``~`` stands for a user without a home."""
    with suppress(OSError):
        if not str(folder).startswith("~"):
            folder.mkdir(parents=True, exist_ok=True)
            return os.access(folder, os.W_OK | os.X_OK)
    return False


def snakemake_command(config: Path, *options: str) -> list[str]:
    """Words of the command that runs the workflow with a config, in the working folder."""
    folder = workflow_folder()
    return [
        *(sys.executable, "-m", "snakemake"),
        *("--snakefile", str(folder / "Snakefile")),
        # Without it Snakemake would take profiles/default of another workflow in this folder.
        *("--workflow-profile", str(folder / "profiles/default")),
        # With "=": Snakemake would take targets after a space for more config files.
        *(f"--configfile={config}", *options),
    ]


def plan(config: Path, *options: str) -> str:
    """Output of a command of Snakemake that runs no step; an error if it cannot plan the run."""
    done = subprocess.run(
        snakemake_command(config, *options),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        lines = f"{done.stderr}\n{done.stdout}".splitlines()
        reason = " ".join(line for line in lines if line.strip() and not _NOISE.match(line))
        msg = f"{config}: Snakemake cannot plan the run: {reason}"
        raise InputError(msg)
    return done.stdout
