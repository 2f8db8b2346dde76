"""``scatlas run``: Snakemake, as a user would call it, with bars of its progress."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from scatlas.errors import InputError
from scatlas.io.files.atomic import atomic_path
from scatlas.workflow.code_hash import workflow_folder
from scatlas.workflow.command_line import say
from scatlas.workflow.config.loading import read_project

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self, TextIO

# Packages of the extra, by their modules.
_NEEDED = {"snakemake": "snakemake", "matplotlib": "matplotlib", "umap": "umap-learn"}
# Lines of Snakemake around the sentences of an error.
_NOISE = re.compile(
    r"^(Using |Assuming |Building DAG|Config file |SNAKEMAKE|=+$|  [A-Z][\w ()]*: "
    r"|\w*Error in file |  File |.* was edited .* and stays as it is;)"
)


def check_installed() -> None:
    """Refuse an installation that lacks a package of the extra ``workflow``."""
    if missing := [name for module, name in _NEEDED.items() if find_spec(module) is None]:
        raise InputError(f"{missing[0]} is not installed: pip install 'scatlas[workflow]'")


def check_folder() -> None:
    """Refuse a folder with a file in which Snakemake would find the missing keys of a config."""
    defaults = Path("config/config.yaml")
    if defaults.is_file() and not defaults.samefile(workflow_folder() / defaults):
        raise InputError(
            f"{defaults.absolute()}: Snakemake would read this file as defaults of the atlas: use "
            "scatlas in another folder, or move the file"
        )


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
        raise InputError(f"{config}: Snakemake cannot plan the run: {reason}")
    return done.stdout


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


# Profile of the user's cluster, in the working folder.
_SLURM = Path("slurm")


def run(config: Path, options: Sequence[str], *, slurm: bool = False) -> int:
    """Run the workflow and return Snakemake's exit status; without a terminal Snakemake takes the
    place of this process. ``slurm`` without a profile writes one and is an error.
    """
    read_project(config)
    if slurm:
        _check_profile()
    profile = [f"--profile={_SLURM}"] if slurm else []
    # The reasons of a step are long lists of files; Snakemake's log has them.
    command = snakemake_command(config, "--quiet=reason", *profile, *options)
    say(shlex.join(command))
    if not sys.stderr.isatty():
        # Snakemake takes the place of this process, so that signals and the exit status are its.
        os.execv(command[0], command)
    return _run_with_bars(command)


def _run_with_bars(command: list[str]) -> int:
    # Ctrl-C reaches Snakemake, too: it ends its jobs, and this program waits for it.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    with (
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process,
        ProgressBars() as bars,
    ):
        # A kill of this program alone would leave Snakemake running.
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        assert process.stdout is not None
        for line in process.stdout:
            bars.read(line)
    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return process.wait()


def _check_profile() -> None:
    if (_SLURM / "config.yaml").is_file():
        return
    with atomic_path(_SLURM) as partial:
        shutil.copytree(workflow_folder() / "profiles/slurm", partial)
    raise InputError(
        f"{_SLURM}/config.yaml was missing and is written now: edit its section 'Your cluster' "
        "(sinfo lists the partitions), and give the same command again"
    )
