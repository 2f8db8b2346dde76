"""Normalised blocks whose values are worked out when somebody asks for them, and not before.

Within one pass over a lazy array a block of counts is normalised, logarithmised, perhaps cut to
some genes, and handed to a kernel. One that knows the counts and their scales does the first two
in passing, and of a block that is cut to a tenth of its genes only that tenth has to be normalised.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp

if TYPE_CHECKING:
    from collections.abc import Iterator

_local = threading.local()


@contextmanager
def defer_normalization() -> Iterator[None]:
    """Let :func:`scale_rows` and :func:`log1p` defer in this thread.

    For passes of our own, where a block's maker and its only user are known. Blocks that others
    compute, keep or send are made of plain numbers.
    """
    before = getattr(_local, "on", False)
    _local.on = True
    try:
        yield
    finally:
        _local.on = before


class Pending(NamedTuple):
    """What the values of a block are to be made of.

    Attributes
    ----------
    counts
        Plain CSR block [cells x genes].
    scales
        float64 [cells], what to multiply each cell by.
    log
        Whether the natural logarithm of 1 + that is meant.
    """

    counts: sp.csr_matrix
    scales: np.ndarray
    log: bool


class LazyNormalizedCsr(sp.csr_matrix):
    """A CSR block like any other, but for when its values are computed.

    Its structure is that of the counts and belongs to them. Threads may share a block, and each
    compute its values: so ``pending`` is read once wherever it is used.

    Attributes
    ----------
    pending
        None once the values are there.
    """

    pending: Pending | None = None

    @classmethod
    def from_counts(
        cls, counts: sp.csr_matrix, scales: np.ndarray, *, log: bool
    ) -> LazyNormalizedCsr:
        """Block of these counts; nothing is computed."""
        from scatlas.kernels.counts.normalize_cpu import scaled_dtype

        block = cls((0, 0), dtype=scaled_dtype(counts.dtype))
        block._shape = counts.shape
        block.indices, block.indptr = counts.indices, counts.indptr
        block.pending = Pending(counts, np.ascontiguousarray(scales, dtype=np.float64), log)
        return block

    @property
    def data(self) -> np.ndarray:
        """Values, float32, but float64 for float64 counts."""
        if (pending := self.pending) is not None:
            from scatlas.kernels.counts import normalize_cpu

            values = normalize_cpu.scale_rows(pending.counts, pending.scales).data
            self.data = normalize_cpu.log1p(values) if pending.log else values
        return self._data

    @data.setter
    def data(self, values: np.ndarray) -> None:
        self._data, self.pending = values, None

    @property
    def dtype(self) -> np.dtype:
        """Type of the values."""
        if (pending := self.pending) is None:
            return self._data.dtype
        from scatlas.kernels.counts.normalize_cpu import scaled_dtype

        return scaled_dtype(pending.counts.dtype)

    def __getitem__(self, key: Any) -> Any:
        """Rows and columns; where it is columns alone, only those will be normalised."""
        pending = self.pending
        if pending is None or not isinstance(key, tuple) or len(key) != 2:
            return super().__getitem__(key)
        rows, columns = key
        whole = isinstance(rows, slice) and rows == slice(None)
        if not whole or not isinstance(columns, np.ndarray) or columns.dtype == bool:
            return super().__getitem__(key)
        return _columns(*pending, columns)


def _columns(
    counts: sp.csr_matrix, scales: np.ndarray, log: bool, columns: np.ndarray
) -> LazyNormalizedCsr:
    from scatlas.kernels.counts.select_cpu import select_genes

    # Else as SciPy does it, which takes twice as long: columns that are wanted twice.
    ascending = columns.ndim == 1 and (np.diff(columns) > 0).all() and (columns[:1] >= 0).all()
    cut = select_genes(counts, columns) if ascending else counts[:, columns]
    return LazyNormalizedCsr.from_counts(cut, scales, log=log)


def scale_rows(x: Any, scales: np.ndarray) -> Any:
    """As :func:`~scatlas.kernels.counts.normalize_cpu.scale_rows`, where it may be deferred."""
    if getattr(_local, "on", False) and type(x) is sp.csr_matrix:
        return LazyNormalizedCsr.from_counts(x, scales, log=False)
    from scatlas.kernels.counts.normalize_cpu import scale_rows

    return scale_rows(x, scales)


def log1p(x: Any, base: float | None = None) -> Any:
    """As :func:`scatlas.kernels.counts.normalize_cpu.log1p`, where it may be deferred later."""
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
