"""``scatlas run``: call Snakemake, with bars of its progress on a terminal."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from scatlas.errors import InputError
from scatlas.io.files.atomic import atomic_path
from scatlas.workflow.command_line.output import say
from scatlas.workflow.command_line.progress_bars import ProgressBars
from scatlas.workflow.command_line.project import read_project
from scatlas.workflow.command_line.snakemake_command import snakemake_command
from scatlas.workflow.snakefile import workflow_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

# Profile of the user's cluster, in the working folder.
_SLURM = Path("slurm")


def run(config: Path, options: Sequence[str], *, slurm: bool = False) -> int:
    """Run the workflow, with ``slurm`` by the profile in the folder of that name, and return
    Snakemake's exit status. Without a terminal Snakemake takes the place of this process. It is an
    error if there was no profile for Slurm, which is written then.
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
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
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
    msg = (
        f"{_SLURM}/config.yaml was missing and is written now: edit its section 'Your cluster' "
        "(sinfo lists the partitions), and give the same command again"
    )
    raise InputError(msg)
