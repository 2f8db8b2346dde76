"""Division of a plate into row blocks of bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas.compute.threads import BLOCK_BYTES, BLOCKS_PER_BUDGET

if TYPE_CHECKING:
    import numpy as np


# Bytes per stored value while a block is processed: a count and an index of 4 bytes each.
BYTES_PER_VALUE = 8


def csr_blocks(
    indptr: np.ndarray, budget: int, largest: int = BLOCK_BYTES
) -> list[tuple[int, int]]:
    """Rows ``(first, last + 1)`` of blocks of a CSR matrix, of at most :func:`block_bytes` each, at
    8 bytes per value and 8 per row, but of one row at least. They depend on these arguments and
    never on threads; a matrix without rows has one empty block.
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
