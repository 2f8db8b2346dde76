"""Exact medians by group: each group's cells are in memory at once, some groups after others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas.compute.memory import available_memory
from scatlas.compute.threads import n_threads
from scatlas.errors import TooLargeError
from scatlas.kernels.moments.medians_cpu import medians

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Of the memory that is left. What is held is copied once more, a group at a time, to be sorted.
_PART = 0.4
_NO_BOUND = 2**62


def of_cells(x: Any, codes: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Median of each group of rows and column, float64 ``[n_groups, n_columns]``, on the host.

    A pass over `x` holds the rows of as many groups as fit the memory.

    Parameters
    ----------
    x
        Matrix ``[n_cells, n_genes]``, in memory or Dask, on the CPU or a GPU.
    codes
        Group of each row, -1: none.
    sizes
        Rows of each group.

    Raises
    ------
    TooLargeError
        One group's rows do not fit.
    """
    out = np.full((sizes.size, x.shape[1]), np.nan)
    left = available_memory()
    budget = _NO_BOUND if left is None else int(_PART * left)
    first = 0
    while first < sizes.size:
        held = _HeldGroups(first, sizes, budget, x.shape[1])
        # By value: workers of a cluster must not be sent what is held.
        for pieces in blocks.stream(x, partial(_sorted_rows, first=first), codes, combine=_joined):
            for piece in pieces:
                held.add(*piece)
        with ThreadPoolExecutor(n_threads(), "scatlas-medians") as pool:
            groups = range(first, held.last)
            for group, values in zip(groups, pool.map(held.median, groups), strict=True):
                out[group] = values
        first = held.last
    return out


def of_columns(block: Any, codes: NDArray[np.int64], n_groups: int) -> NDArray[np.float64]:
    """Median of each row and group of columns of a block on the host ``[n_rows, n_groups]``."""
    turned = block.T
    if blocks.is_sparse(block):
        # SciPy turns no matrix of uint16 indices.
        wide = block.indices.astype(np.int64), block.indptr.astype(np.int64)
        turned = type(block)((block.data, *wide), shape=block.shape).T.tocsr()
    out = np.full((block.shape[0], n_groups), np.nan)
    for group in range(n_groups):
        out[:, group] = medians(turned[np.flatnonzero(codes == group)], block.shape[0])
    return out


class _HeldGroups:
    """Rows of the groups from `first` to `last`, which comes down when the memory is full."""

    def __init__(self, first: int, sizes: NDArray[np.int64], budget: int, n_columns: int) -> None:
        self.first, self.last = first, sizes.size
        self._budget, self._n_columns = budget, n_columns
        self._sizes = sizes
        self._bytes = np.zeros(sizes.size, dtype=np.int64)
        self._pieces: list[tuple[NDArray[np.int64], Any]] = []

    def add(self, codes: NDArray[np.int64], rows: Any) -> None:
        """Take rows in the order of their groups."""
        self._pieces.append(_below(codes, rows, self.last))
        np.add.at(self._bytes, codes, _row_bytes(rows))
        held = np.cumsum(self._bytes[self.first : self.last])
        if not held.size or held[-1] <= self._budget:
            return
        # Half of the budget, so that it is not for every block that rows are copied.
        fits = max(1, int(np.searchsorted(held, self._budget // 2, side="right")))
        if held[fits - 1] > self._budget:
            msg = (
                f"a median needs all cells of a group at once, and the {self._sizes[self.first]:,} "
                f"of one take more than the {self._budget / 1e9:,.1f} GB that may be used of the "
                "memory left: use mean, or smaller groups"
            )
            raise TooLargeError(msg)
        self.last = self.first + fits
        self._pieces = [_below(*piece, self.last) for piece in self._pieces]

    def median(self, group: int) -> NDArray[np.float64]:
        """Median of each column over the rows of a group."""
        found = []
        for codes, rows in self._pieces:
            lo, hi = np.searchsorted(codes, [group, group + 1])
            if lo < hi:
                found.append(rows[lo:hi])
        if not found:
            return np.full(self._n_columns, np.nan)
        return medians(blocks.join(found), self._n_columns)


def _row_bytes(rows: Any) -> NDArray[np.int64]:
    if not blocks.is_sparse(rows):
        return np.full(rows.shape[0], rows.shape[1] * rows.dtype.itemsize, dtype=np.int64)
    return np.diff(rows.indptr).astype(np.int64) * (rows.dtype.itemsize + rows.indices.itemsize) + 8


def _below(codes: NDArray[np.int64], rows: Any, last: int) -> tuple[NDArray[np.int64], Any]:
    n = int(np.searchsorted(codes, last))
    return (codes, rows) if n == codes.size else (codes[:n].copy(), rows[:n].copy())


def _sorted_rows(
    block: Any, codes: NDArray[np.int64], *, first: int
) -> list[tuple[NDArray[np.int64], Any]]:
    """Rows of the groups from `first` on, in their order, copied to the host."""
    block = blocks.on_host(block)
    rows = np.flatnonzero(codes >= first)
    rows = rows[np.argsort(codes[rows], kind="stable")]
    if blocks.is_sparse(block):
        # SciPy takes no rows of uint16 indices.
        wide = block.indices.astype(np.int32, copy=False)
        block = blocks.csr(block.data, wide, block.indptr, block.shape[1])
    return [(codes[rows], block[rows])]


def _joined(parts: list[list]) -> list:
    return [piece for half in parts for piece in half]
