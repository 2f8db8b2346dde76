"""Exact medians by group: a pass holds all cells of as many groups as fit the memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas.compute.memory import available_memory
from scatlas.compute.threads import n_threads
from scatlas.errors import TooLargeError
from scatlas.kernels.counts.select_cpu import select_rows
from scatlas.kernels.moments.medians_cpu import medians

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Share of the available memory for rows; sorting copies them once more, one group per thread.
_MEMORY_SHARE = 0.4
_NO_BOUND = 2**62
# Bytes of rows whose medians one thread finds in the time that others take to start.
_BYTES_OF_ONE_THREAD = 2**22


def medians_by_row_group(
    x: Any, codes: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Median per group of rows (code -1: none), float64 ``[n_groups, n_columns]``, on the host."""
    out = np.full((sizes.size, x.shape[1]), np.nan)
    available = available_memory()
    max_bytes = _NO_BOUND if available is None else int(_MEMORY_SHARE * available)
    first = 0
    while first < sizes.size:
        rows_of_groups = _GroupRows(first, sizes, max_bytes, x.shape[1])
        # The function takes `first` by value: a cluster must not be sent the rows held here.
        sort = partial(_sort_rows, first=first)
        for pieces in blocks.stream(x, sort, codes, combine=blocks.join_lists):
            for piece in pieces:
                rows_of_groups.add(*piece)
        with ThreadPoolExecutor(n_threads(), "scatlas-medians") as pool:
            groups = range(first, rows_of_groups.stop)
            run = map if rows_of_groups.n_bytes() <= _BYTES_OF_ONE_THREAD else pool.map
            for group, values in zip(groups, run(rows_of_groups.median, groups), strict=True):
                out[group] = values
        first = rows_of_groups.stop
    return out


def medians_by_column_group(
    block: Any, codes: NDArray[np.int64], n_groups: int
) -> NDArray[np.float64]:
    """Median per row and group of columns of a block on the host ``[n_rows, n_groups]``."""
    transposed = block.T
    if blocks.is_sparse(block):
        # SciPy cannot transpose a matrix with uint16 indices.
        wide = block.indices.astype(np.int64), block.indptr.astype(np.int64)
        transposed = type(block)((block.data, *wide), shape=block.shape).T.tocsr()
    out = np.full((block.shape[0], n_groups), np.nan)
    for group in range(n_groups):
        out[:, group] = medians([transposed[np.flatnonzero(codes == group)]], block.shape[0])
    return out


class _GroupRows:
    """Rows of the groups from `first` up to `stop`, which decreases when the memory is full."""

    def __init__(
        self, first: int, sizes: NDArray[np.int64], max_bytes: int, n_columns: int
    ) -> None:
        self.first, self.stop = first, sizes.size
        self._max_bytes, self._n_columns = max_bytes, n_columns
        self._sizes = sizes
        self._bytes = np.zeros(sizes.size, dtype=np.int64)
        self._pieces: list[tuple[NDArray[np.int64], Any]] = []

    def add(self, codes: NDArray[np.int64], rows: Any) -> None:
        """Add rows, sorted by group; if they do not fit, drop the last groups."""
        self._pieces.append(_rows_below(codes, rows, self.stop))
        np.add.at(self._bytes, codes, _row_bytes(rows))
        total = np.cumsum(self._bytes[self.first : self.stop])
        if not total.size or total[-1] <= self._max_bytes:
            return
        # Keep half of the bytes, so that not every block copies the rows.
        n_groups = max(1, int(np.searchsorted(total, self._max_bytes // 2, side="right")))
        if total[n_groups - 1] > self._max_bytes:
            raise TooLargeError(
                f"a median needs all cells of a group at once, and the {self._sizes[self.first]:,} "
                f"of one take more than {self._max_bytes / 1e9:,.1f} GB, {_MEMORY_SHARE:.0%} of "
                "the memory left: use mean, or smaller groups"
            )
        self.stop = self.first + n_groups
        self._pieces = [_rows_below(*piece, self.stop) for piece in self._pieces]

    def n_bytes(self) -> int:
        """Bytes of the rows of all groups."""
        return int(self._bytes[self.first : self.stop].sum())

    def median(self, group: int) -> NDArray[np.float64]:
        """Median per column over the rows of a group."""
        found = []
        for codes, rows in self._pieces:
            lo, hi = np.searchsorted(codes, [group, group + 1])
            if lo < hi:
                found.append(rows[lo:hi])
        return medians(found, self._n_columns)


def _row_bytes(rows: Any) -> NDArray[np.int64]:
    if not blocks.is_sparse(rows):
        return np.full(rows.shape[0], rows.shape[1] * rows.dtype.itemsize, dtype=np.int64)
    return np.diff(rows.indptr).astype(np.int64) * (rows.dtype.itemsize + rows.indices.itemsize) + 8


def _rows_below(codes: NDArray[np.int64], rows: Any, stop: int) -> tuple[NDArray[np.int64], Any]:
    n = int(np.searchsorted(codes, stop))
    return (codes, rows) if n == codes.size else (codes[:n].copy(), rows[:n].copy())


def _sort_rows(
    block: Any, codes: NDArray[np.int64], *, first: int
) -> list[tuple[NDArray[np.int64], Any]]:
    """Rows of the groups from `first` on, sorted by group, on the host."""
    block = blocks.on_host(block)
    rows = np.flatnonzero(codes >= first)
    rows = rows[np.argsort(codes[rows], kind="stable")]
    if blocks.is_sparse(block):
        # SciPy cannot select rows of a matrix with uint16 indices.
        wide = block.indices.astype(np.int32, copy=False)
        block = blocks.csr(block.data, wide, block.indptr, block.shape[1])
    return [(codes[rows], select_rows(block, rows))]
