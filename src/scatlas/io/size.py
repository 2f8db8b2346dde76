"""Sizes: byte strings as people write them, and the cut of a plate into row blocks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from scatlas.compute.threads import BLOCK_BYTES, BLOCKS_PER_BUDGET
from scatlas.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

# A value of a block in work takes 8 bytes: a count and an index of 4 bytes each.
BYTES_PER_VALUE = 8


def parse_bytes(size: str | int) -> int:
    """Bytes of a size as written in a config.

    Parameters
    ----------
    size
        A number of bytes, or a number with a unit, in any case: ``"256MB"`` (10^6 bytes a MB),
        ``"1.5 GiB"`` (2^30 bytes a GiB), ``"100000"``.

    Raises
    ------
    ConfigError
        The size cannot be understood, or is not positive.
    """
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(?:([kmgt])(i?))?b?\s*", str(size).lower())
    n_bytes = 0
    if match:
        power = " kmgt".index(match[2] or " ")
        n_bytes = int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    if n_bytes < 1:
        msg = f"a size of {size!r} is not understood: write a number and a unit, such as 256MB"
        raise ConfigError(msg)
    return n_bytes


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
