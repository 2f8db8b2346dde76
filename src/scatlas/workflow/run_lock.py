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
from typing import IO, TYPE_CHECKING

from scatlas.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)


def lock_results(folder: Path, *, on_cluster: bool = False, unlock: bool = False) -> IO[str] | None:
    """Lock a folder of results for this process.

    Parameters
    ----------
    folder
        The folder, which is created.
    on_cluster
        Whether other machines run the jobs of this run, and go on with them if it is killed.
    unlock
        Forget a run that was killed.

    Returns
    -------
    The open file, which holds the lock; :func:`release` ends it. None if the file system has no
    locks.

    Raises
    ------
    InputError
        Another run has the lock, or was killed and may have jobs that still run.
    """
    path = folder / "logs/run.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    except OSError as error:
        msg = f"outdir: {error.filename} cannot be written ({error.strerror}): name another folder"
        raise InputError(msg) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        msg = f"another Snakemake is running in {folder.absolute()}: wait until it has ended"
        raise InputError(msg) from None
    except OSError as error:
        file.close()
        logger.info("%s cannot be locked (%s): start one run at a time", path, error)
        return None
    file.seek(0)
    machine, number, where = (*file.read().split("\t"), "", "", "")[:3]
    here = socket.gethostname()
    if machine and not unlock:
        # A file system may keep the locks of each machine apart.
        if machine != here or where:
            file.close()
            msg = (
                f"{folder.absolute()}: the run of process {number} on {machine} was killed, or is "
                "still running: give the command once with --unlock, then without, when neither "
                "it nor any of its jobs runs"
            )
            raise InputError(msg)
        logger.info("%s: process %s was killed, this run goes on from there", folder, number)
    file.truncate(0)
    file.write("\t".join([here, str(os.getpid()), "cluster" if on_cluster else ""]))
    file.flush()
    return file


def release(file: IO[str]) -> None:
    """End a lock, with nothing left in its file."""
    file.truncate(0)
    file.close()
