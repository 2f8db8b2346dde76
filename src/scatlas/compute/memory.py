"""Main memory: bytes available, and reuse of freed memory by the C library."""

from __future__ import annotations

import ctypes
import logging
import re
from pathlib import Path

from scatlas._util.operating_system import memory_report

logger = logging.getLogger(__name__)

# Parameters of mallopt, from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
# Arrays up to this size are reused, the maximum of glibc; arrays of a default block have 4 to 16
# MB.
_MAX_REUSED = 2**25
# Free memory at the top of the heap beyond which glibc returns memory to the system.
_MAX_FREE = 2**28
# Both for work on tables: size of a column of 100,000 cells or more.
_COLUMN = 2**20


def reuse_memory(*, blocks: bool = True) -> None:
    """Reuse the memory of freed arrays for new arrays of the size of a block.

    By default glibc maps each large array and unmaps it when it is freed. The system then clears
    every page of the next array, which costs as much as the work on it. All threads share one heap,
    because one heap per thread would keep more memory than they need. It changes the whole process:
    call it only in processes of scatlas, such as jobs, and before threads start. Without glibc it
    only writes a line to the log. Without `blocks`, for work on tables, freed arrays return to the
    system: columns differ in size and would fragment the heap.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        logger.debug("the C library has no mallopt: it decides what goes back to the system")
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_THRESHOLD, _MAX_REUSED if blocks else _COLUMN)
    mallopt(_M_TRIM_THRESHOLD, _MAX_FREE if blocks else _COLUMN)


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process can still allocate without swapping or being killed; None: unknown.

    It is the minimum of the kernel's estimate (``MemAvailable``) and the limits of the control
    groups (version 2) in which a scheduler or container runs the process. ``root`` contains
    ``proc`` and ``sys``.
    """
    report = memory_report(root)
    if report is None:
        return None
    meminfo, groups = report
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo, re.MULTILINE)
    if found is None:
        return None
    least = 1024 * int(found[1])
    top = root / "sys/fs/cgroup"
    name = re.search(r"^0::/(.*)$", groups, re.MULTILINE)
    folder = top / name[1] if name else top
    for group in (folder, *folder.parents):
        if group.is_relative_to(top) and (left := _left_in_group(group)) is not None:
            least = min(least, left)
    return least


def _left_in_group(group: Path) -> int | None:
    """Bytes left below the limit of a control group, counting its file cache as free."""
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
