"""Main memory: what is available, what blocks and steps take, and its reuse by the C library."""

from __future__ import annotations

import ctypes
import logging
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scatlas._util.operating_system import memory_report
from scatlas.arrays.kinds import kind_of
from scatlas.compute.threads import BLOCK_BYTES, BLOCKS_PER_BUDGET

if TYPE_CHECKING:
    import numpy as np

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
# Share of the free memory (on a GPU, of all its memory) for values beside a matrix.
_SHARE_FOR_VALUES = 0.4
_NO_BOUND = 2**62


def reuse_memory(*, blocks: bool = True) -> None:
    """Reuse the memory of freed arrays for new arrays of the size of a block, in the whole process.

    By default glibc unmaps each freed large array, and the system clears every page of the next
    one, which costs as much as the work on it. Call it before threads start, in processes of
    scatlas only. Without `blocks` freed arrays return to the system: columns would fragment the
    heap.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        logger.debug("the C library has no mallopt: it decides what goes back to the system")
        return
    # One heap per thread would keep more memory than they need.
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_THRESHOLD, _MAX_REUSED if blocks else _COLUMN)
    mallopt(_M_TRIM_THRESHOLD, _MAX_FREE if blocks else _COLUMN)


def release_memory() -> None:
    """Return the freed memory that :func:`reuse_memory` keeps to the system, where glibc can."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process can still allocate without swapping or being killed, None if unknown:
    the least of ``MemAvailable`` and the limits of its control groups (version 2).
    """
    report = memory_report(root)
    if report is None:
        return None
    meminfo, groups = report
    free = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo, re.MULTILINE)
    if free is None:
        return None
    least = 1024 * int(free[1])
    top = root / "sys/fs/cgroup"
    name = re.search(r"^0::/(.*)$", groups, re.MULTILINE)
    folder = top / name[1] if name else top
    for group in (folder, *folder.parents):
        if group.is_relative_to(top) and (left := _left_in_group(group)) is not None:
            least = min(least, left)
    return least


def memory_budget(x: Any) -> int:
    """Bytes for values beside a matrix, in the memory (host or GPU) that holds it."""
    if kind_of(x).gpu:
        from scatlas.arrays import cupy_arrays

        return int(_SHARE_FOR_VALUES * cupy_arrays.total_memory())
    available = available_memory()
    return _NO_BOUND if available is None else int(_SHARE_FOR_VALUES * available)


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


# Bytes per stored value while a block is processed: a count and an index of 4 bytes each.
BYTES_PER_VALUE = 8


def csr_blocks(
    indptr: np.ndarray, budget: int, largest: int = BLOCK_BYTES
) -> list[tuple[int, int]]:
    """Rows ``(first, last + 1)`` of blocks of a CSR matrix, one row at least, of at most
    :func:`block_bytes` each; they depend on these arguments and never on threads.
    """
    import numpy as np

    n_cells = indptr.size - 1
    limit = block_bytes(budget, largest)
    ends = BYTES_PER_VALUE * indptr.astype(np.int64) + 8 * np.arange(n_cells + 1, dtype=np.int64)
    blocks: list[tuple[int, int]] = []
    first = 0
    while first < n_cells:
        stop = int(np.searchsorted(ends, ends[first] + limit, side="right")) - 1
        stop = min(max(stop, first + 1), n_cells)
        blocks.append((first, stop))
        first = stop
    return blocks or [(0, 0)]


def block_bytes(budget: int, largest: int = BLOCK_BYTES) -> int:
    """Most bytes per block: an eighth of the budget, at most ``largest``."""
    return min(budget // BLOCKS_PER_BUDGET, largest)


def dense_blocks(
    n_cells: int, row_bytes: int, budget: int, largest: int = BLOCK_BYTES
) -> list[tuple[int, int]]:
    """Cut the rows of a dense matrix into blocks as :func:`csr_blocks` does."""
    rows = max(1, block_bytes(budget, largest) // max(1, row_bytes))
    return [(i, min(i + rows, n_cells)) for i in range(0, n_cells, rows)] or [(0, 0)]


# Number of clusters of Harmony: one per 30 cells, at most 100 (defaults of harmonypy).
CELLS_PER_CLUSTER, MAX_CLUSTERS = 30, 100
# Bytes per cell: per component the unit rows, which become the result, and the components; batches.
# Sums and blocks in flight do not grow with the cells.
_PER_COMPONENT, _PER_CELL = 8, 32
# For more cells, the step `harmony` has the rows in files.
HARMONY_CELLS_IN_MEMORY = 2**18
# What Harmony works with on a GPU, beside what grows with the cells.
GPU_HARMONY_BYTES = 1_500_000_000


def harmony_bytes(n_cells: float, n_comps: int, *, streamed: bool = False) -> float:
    """Bytes of Harmony that grow with the cells: in memory, or of the step ``harmony``."""
    held = min(n_cells, HARMONY_CELLS_IN_MEMORY) if streamed else n_cells
    return held * _PER_COMPONENT * n_comps + n_cells * _PER_CELL


# Bytes per cell of the largest of the steps neighbors, umap and leiden, as measured with 200,000
# cells on 50 and 300 components: per component, and a constant.
_MAP_PER_COMPONENT, _MAP_CONSTANT = 6, 4000


def map_bytes(n_cells: float, n_comps: int) -> float:
    """Peak bytes of the steps that compute neighbours, UMAP and clusters of the given cells."""
    return n_cells * (_MAP_PER_COMPONENT * n_comps + _MAP_CONSTANT)


# A plate's Gram matrix takes at most this share of its counts (2 bytes per stored value).
MAX_GRAM_SHARE, _BYTES_PER_COUNT = 0.1, 2
_BYTES_PER_GRAM_ENTRY = 8


def gram_is_worth_storing(n_cells: float, values_per_cell: float, n_genes: float) -> bool:
    """Whether a plate stores its Gram matrix, so that PCA need not sum over its cells again: for
    few values the sum takes less time, and the matrix would be many times the size of the counts.
    """
    triangle_bytes = _BYTES_PER_GRAM_ENTRY * n_genes * (n_genes + 1) / 2
    return triangle_bytes <= max_gram_bytes(n_cells * values_per_cell)


def max_gram_bytes(n_values: float) -> float:
    """Largest triangle of a Gram matrix that a plate of ``n_values`` counts stores, in bytes."""
    return MAX_GRAM_SHARE * _BYTES_PER_COUNT * n_values
