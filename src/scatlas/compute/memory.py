"""Main memory: how much there is to be had, and how the C library keeps what NumPy has freed."""

from __future__ import annotations

import ctypes
import logging
import re
from pathlib import Path

logger = logging.getLogger(__name__)

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
# The largest that glibc takes; a block of the default budget has arrays of 4 to 16 MB.
_LARGEST = 2**25
_KEPT = 2**28
# Columns of a table of 100,000 cells and more.
_COLUMN = 2**20


def reuse_memory(*, blocks: bool = True) -> None:
    """Let arrays of a block's size use again what arrays before them have freed, and no others.

    By default glibc maps large arrays anew and gives them back when they are freed: the system
    then clears every page of the next one, which costs as much as the work on it. A heap for each
    thread would keep more than all of them need; they share one. For processes that are ours,
    such as a job's: it changes the whole process, so it belongs before threads are started.

    Does nothing, and says so in the log, where the C library is not glibc.

    Parameters
    ----------
    blocks
        False for work on tables, of which no two columns are alike: they leave holes that none of
        them fits, so each goes back to the system at once.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        logger.debug("the C library has no mallopt: it decides what goes back to the system")
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_THRESHOLD, _LARGEST if blocks else _COLUMN)
    mallopt(_M_TRIM_THRESHOLD, _KEPT if blocks else _COLUMN)


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process can still take without swapping or being killed.

    The kernel's own estimate (``MemAvailable``), or what the control groups leave in which a
    scheduler or container keeps the process (version 2), if that is less.

    Parameters
    ----------
    root
        Where ``proc`` and ``sys`` are.

    Returns
    -------
    None where the system does not say.
    """
    try:
        meminfo = (root / "proc/meminfo").read_text(encoding="ascii")
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo, re.MULTILINE)
    if found is None:
        return None
    least = 1024 * int(found[1])
    top = root / "sys/fs/cgroup"
    name = re.search(r"^0::/(.*)$", groups, re.MULTILINE)
    folder = top / name[1] if name else top
    for place in (folder, *folder.parents):
        if place.is_relative_to(top) and (left := _left(place)) is not None:
            least = min(least, left)
    return least


def _left(group: Path) -> int | None:
    """Bytes that a control group's limit leaves; files that it keeps in memory can go."""
    try:
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        used = int((group / "memory.current").read_text(encoding="ascii"))
        stat = (group / "memory.stat").read_text(encoding="ascii")
    except OSError:
        return None
    if limit == "max":
        return None
    files = re.search(r"^inactive_file (\d+)$", stat, re.MULTILINE)
    return max(0, int(limit) - used + (int(files[1]) if files else 0))
