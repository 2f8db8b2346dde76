"""How a plate is cut into row blocks of bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas.compute.threads import BLOCK_BYTES, BLOCKS_PER_BUDGET

if TYPE_CHECKING:
    import numpy as np


# A value of a block in work takes 8 bytes: a count and an index of 4 bytes each.
BYTES_PER_VALUE = 8


def csr_blocks(
    indptr: np.ndarray, budget: int, largest: int = BLOCK_BYTES
) -> list[tuple[int, int]]:
    """Cut the rows of a CSR matrix into blocks of bounded size.

    Parameters
    ----------
    indptr
        Row offsets [n_cells + 1] of the whole matrix.
    budget
        Block budget in bytes. A block takes at most an eighth of it, at 8 bytes a value and 8 a
        row, but always holds at least one row.
    largest
        Bytes that a block takes at most, whatever the budget. The cut depends on these three
        arguments alone, never on threads.

    Returns
    -------
    ``(first, last + 1)`` rows of each block, in order; one empty block when there are no rows.
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
    """Bytes that a block may take."""
    return min(budget // BLOCKS_PER_BUDGET, largest)


def dense_blocks(
    n_cells: int, row_bytes: int, budget: int, largest: int = BLOCK_BYTES
) -> list[tuple[int, int]]:
    """Cut the rows of a dense matrix into blocks as :func:`csr_blocks` does."""
    rows = max(1, block_bytes(budget, largest) // max(1, row_bytes))
    return [(i, min(i + rows, n_cells)) for i in range(0, n_cells, rows)] or [(0, 0)]
