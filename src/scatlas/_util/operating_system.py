"""Calls that only Linux has, or that not every file system allows, each with a portable way.

Elsewhere results are the same: what is lost is speed, disk space, or a line in a log.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

# What os.link answers where a hard link cannot be made, though a copy can.
_NO_LINK = {
    errno.EXDEV,  # another file system
    errno.EPERM,  # a file system without hard links, or links to others' files are forbidden
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EMLINK,  # too many links to one file
}


_EARLIER = [0.0]  # processor seconds of earlier jobs of this process
# Flag of sync_file_range: begin to write, do not wait.
_BEGIN_TO_WRITE = 2


def n_available_cores() -> int:
    """Cores on which this process may run; where the system does not tell, those of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def peak_memory() -> int:
    """Largest resident memory of this process, without ``/proc`` also of its parent; in bytes."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak  # macOS counts bytes
    kilobytes = status.partition("VmHWM:")[2].split(maxsplit=1)[0]
    return 1024 * int(kilobytes)


def processor_seconds() -> float:
    """Processor time of this process and of those it has waited for."""
    return time.process_time() + sum(os.times()[2:4]) - _EARLIER[0]


def reset_usage() -> None:
    """Let :func:`processor_seconds` begin at 0, and :func:`peak_memory` at what is held now, where
    ``/proc`` allows it.
    """
    _EARLIER[0] += processor_seconds()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def memory_report(root: Path) -> tuple[str, str] | None:
    """Linux's report on memory and this process's control groups, below ``root``; else None."""
    try:
        machine = (root / "proc/meminfo").read_text(encoding="ascii")
        return machine, (root / "proc/self/cgroup").read_text(encoding="utf-8")
    except OSError:
        return None


def sleeping_since(child: int, before: list[str] | None) -> tuple[bool, list[str] | None]:
    """Whether a child process sleeps and has used no processor time since the last call, and its
    time so far, the next call's ``before``.

    Without ``/proc`` the answer is True: the caller then limits the time by the clock.
    """
    try:
        text = Path(f"/proc/{child}/stat").read_text(encoding="utf-8")
    except OSError:
        return True, None
    # State, and user and system time, after the name in parentheses.
    fields = text.rpartition(")")[2].split()
    return fields[0] == "S" and fields[11:13] == before, fields[11:13]


def link_or_copy(source: Path, target: Path, *, can_link: bool = True) -> str:
    """Make a second name of a file, or copy it and say why (else ""); ``target`` must not exist."""
    reason = "links were refused before"
    if can_link and hasattr(os, "link"):
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            reason = os.strerror(error.errno)
        else:
            return ""
    elif can_link:
        reason = "this system has no hard links"
    shutil.copyfile(source, target)
    return reason


def begin_to_write(file: int) -> None:
    """Let the disk write an open file while this process continues; elsewhere the system decides.

    Linux waits 30 seconds, or for a tenth of the memory: then an ``fsync``, of any file, waits for
    gigabytes, five seconds at the end of `load` on 16 cores.
    """
    if call := _sync_file_range():
        call(file, ctypes.c_int64(0), ctypes.c_int64(0), _BEGIN_TO_WRITE)


@cache
def _sync_file_range() -> Any:
    try:
        return ctypes.CDLL(None).sync_file_range
    except (AttributeError, OSError):
        return None
