"""Normalised blocks whose values are computed on first use.

Deferring saves work twice: a kernel that takes counts and scales normalises them itself, and of a
block that is restricted to a tenth of its genes only that tenth is normalised.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scatlas.arrays.array_types import Array

_local = threading.local()


@contextmanager
def defer_normalization() -> Iterator[None]:
    """Let :func:`scale_rows` and :func:`log1p` defer in this thread, for passes in which a block
    has one user: blocks that other code computes, keeps or sends must hold plain numbers.
    """
    before = getattr(_local, "on", False)
    _local.on = True
    try:
        yield
    finally:
        _local.on = before


class PendingOps(NamedTuple):
    """Deferred operations of a block."""

    counts: sp.csr_matrix
    scales: Array  # float64, factor of each cell
    log: bool  # whether values are the natural logarithm of 1 + the scaled counts


class LazyNormalizedCsr(sp.csr_matrix):  # type: ignore[misc]  # SciPy has no types
    """CSR block whose values are computed on first use, after which ``pending`` is None; threads
    may do so at the same time, because each method reads ``pending`` once.
    """

    pending: PendingOps | None = None
    _data: Array

    @classmethod
    def from_counts(cls, counts: sp.csr_matrix, scales: Array, *, log: bool) -> LazyNormalizedCsr:
        from scatlas.kernels.counts.normalize_cpu import scaled_dtype

        block = cls((0, 0), dtype=scaled_dtype(counts.dtype))
        block._shape = counts.shape
        block.indices, block.indptr = counts.indices, counts.indptr
        block.pending = PendingOps(counts, np.ascontiguousarray(scales, dtype=np.float64), log)
        return block

    @property
    def data(self) -> Array:
        """Values, computed on first use; float32, but float64 for float64 counts."""
        if (pending := self.pending) is not None:
            from scatlas.kernels.counts import normalize_cpu

            block: Any = normalize_cpu.scale_rows(pending.counts, pending.scales)
            if pending.log:
                block = normalize_cpu.log1p(block)
            self.data = block.data
        return self._data

    @data.setter
    def data(self, values: Array) -> None:
        self._data, self.pending = values, None

    @property
    def dtype(self) -> np.dtype:
        if (pending := self.pending) is None:
            return self._data.dtype
        from scatlas.kernels.counts.normalize_cpu import scaled_dtype

        return scaled_dtype(pending.counts.dtype)

    def __getitem__(self, key: Any) -> Any:
        """Rows and columns; a selection of columns alone stays lazy."""
        pending = self.pending
        if pending is None or not isinstance(key, tuple) or len(key) != 2:
            return super().__getitem__(key)
        rows, columns = key
        all_rows = isinstance(rows, slice) and rows == slice(None)
        if not all_rows or not isinstance(columns, np.ndarray) or columns.dtype == bool:
            return super().__getitem__(key)
        from scatlas.kernels.counts.select_cpu import select_genes

        # SciPy takes twice as long, but supports repeated columns.
        ascending = columns.ndim == 1 and (np.diff(columns) > 0).all() and (columns[:1] >= 0).all()
        counts, scales, log = pending
        selected = select_genes(counts, columns) if ascending else counts[:, columns]
        return LazyNormalizedCsr.from_counts(selected, scales, log=log)


def scale_rows(x: Any, scales: Array) -> Any:
    """As :func:`~scatlas.kernels.counts.normalize_cpu.scale_rows`, deferred where allowed."""
    if getattr(_local, "on", False) and type(x) is sp.csr_matrix:
        return LazyNormalizedCsr.from_counts(x, scales, log=False)
    from scatlas.kernels.counts.normalize_cpu import scale_rows

    return scale_rows(x, scales)


def log1p(x: Any, base: float | None = None) -> Any:
    """As :func:`~scatlas.kernels.counts.normalize_cpu.log1p`, deferred if `x` is."""
    pending = x.pending if isinstance(x, LazyNormalizedCsr) and base is None else None
    if pending is not None and not pending.log:
        return LazyNormalizedCsr.from_counts(pending.counts, pending.scales, log=True)
    from scatlas.kernels.counts.normalize_cpu import log1p

    return log1p(x, base)


def materialize(x: Any) -> Any:
    """The block with its values computed."""
    if isinstance(x, LazyNormalizedCsr):
        x.data  # noqa: B018
    return x
