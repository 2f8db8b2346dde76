"""The lock of a folder of results: one run at a time makes them.

Snakemake's own lock stays after a killed run, and the first of two runs in one working folder
removes those of both at its end. The system frees this one, however a process ends. While a run
lasts the file names its machine and process, so that the next run knows of one that was killed.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING

from scatlas.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger("snakemake.logging")  # it takes texts, without arguments
LOCK = "logs/run.lock"


def lock_results(folder: Path, *, on_cluster: bool = False, unlock: bool = False) -> IO[str] | None:
    """Lock a folder until :func:`release` of the result; None if the file system has no locks. Jobs
    of a killed run may go on ``on_cluster``, or on another machine: ``unlock`` forgets it.
    """
    path = folder / LOCK
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.open("a+"))
        except OSError as error:
            problem = f"{error.filename} cannot be written ({error.strerror})"
            raise InputError(f"outdir: {problem}: name another folder") from error
        if not _is_locked(file, fcntl.LOCK_EX, folder):
            return None
        file.seek(0)
        machine, number, where = (file.read() or "\t\t").split("\t")
        # Some file systems keep the locks of each machine apart.
        if (where or machine not in ("", socket.gethostname())) and not unlock:
            msg = (
                f"{folder.absolute()}: the run of process {number} on {machine} was killed, or is "
                "still running: give the command once with --unlock, then without, when neither "
                "it nor any of its jobs runs"
            )
            raise InputError(msg)
        if machine and not unlock:
            notice = f"{folder}: process {number} was killed, this run goes on from there"
            logger.info(notice)
        file.truncate(0)
        file.write(f"{socket.gethostname()}\t{os.getpid()}\t{'cluster' if on_cluster else ''}")
        file.flush()
        stack.pop_all()
        return file


def share_results(folder: Path) -> IO[str] | None:
    """Let no run write in a folder until the result is closed; None if it has no lock."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context((folder / LOCK).open())
        except OSError:
            return None
        if not _is_locked(file, fcntl.LOCK_SH, folder):
            return None
        stack.pop_all()
        return file


def _is_locked(file: IO[str], how: int, folder: Path) -> bool:
    """Lock a file, unless its file system has no locks."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        msg = f"another Snakemake is running in {folder.absolute()}: wait until it has ended"
        raise InputError(msg) from None
    except OSError as error:
        notice = f"{file.name} cannot be locked ({error}): start one run at a time"
        logger.info(notice)
        return False
    return True


def release(file: IO[str] | None) -> None:
    """End a lock of :func:`lock_results`, with nothing left in its file."""
    if file:
        file.truncate(0)
        file.close()
