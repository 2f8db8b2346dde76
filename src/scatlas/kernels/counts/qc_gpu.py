"""Quality-control sums of one block on the GPU, as NumPy arrays of the CPU's types.

Sums of integers are exact, also if they are stored as floats. Other floats are summed in float64 in
a fixed order within a cell, and in fixed point (two int64 per gene) over cells.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import cupy as cp
import numpy as np
from cupyx.scipy import sparse

from scatlas.kernels.build import cuda
from scatlas.kernels.counts.qc_cpu import (
    QCSums,
    as_exact_int64,
    finite_pairs,
    numbers_of_top,
    sum_dtype,
)
from scatlas.kernels.moments.group_sums_cpu import check_range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scatlas.arrays.cupy_arrays import Block

MASKS = 4  # gene sets per launch, as in qc.cu
_MIN_EXPONENT = -800  # lower exponents count as this, so that powers of two are in float64's range


class _Extent(NamedTuple):
    """Range of the values of a block."""

    max_abs: float  # largest finite absolute value
    integral: bool
    finite: bool


def _extent(x: Block) -> _Extent:
    if x.dtype.kind in "iub":
        return _Extent(0.0, integral=True, finite=True)
    if sparse.issparse(x):
        values = x.data
    else:
        values = cp.ascontiguousarray(x.T if x.flags.f_contiguous else x).reshape(-1)
    out = cp.zeros(3, cp.uint64)
    n = np.int64(values.size)
    run = cuda.kernel("counts/qc", "extent", values.dtype)
    run(*cuda.grid_of_threads(int(n)), (values, n, out))
    out = out.get()
    return _Extent(float(out[:1].view(np.float64)[0]), integral=not out[1], finite=not out[2])


def _run(name: str, x: Block, *args: Any) -> None:
    """Run a kernel of qc.cu over the rows of `x`, CSR or dense."""
    kind, types, block = cuda.rows_of(x)
    if kind == "dense":
        block = *block, np.int64(x.shape[1])
    run = cuda.kernel("counts/qc", f"{name}_{kind}", *types)
    run(*cuda.grid_of_warps(x.shape[0]), (*block, np.int64(x.shape[0]), *args))


class _Genes:
    """Fixed-point sums per gene on the device (``Genes`` of qc.cu)."""

    def __init__(self, x: Block, extent: _Extent, *, totals: bool, cells: bool) -> None:
        n_values = x.data.size if sparse.issparse(x) else x.shape[0]
        bits = int(n_values).bit_length()  # no gene has 2^bits values
        self.dtype = sum_dtype(x.dtype)
        # |value| < 2^exponent, so that |value * 2^power| < 2^62 / 2^bits: no sum can overflow.
        self.power = 62 - bits - max(math.frexp(extent.max_abs)[1], _MIN_EXPONENT)
        self.fine = 2.0 ** (62 - bits)
        n = x.shape[1]
        real = totals and self.dtype == np.float64
        self.hi = cp.zeros(n, cp.int64) if totals else cuda.NULL
        self.lo = cp.zeros(n, cp.int64) if real else cuda.NULL
        self.odd = cp.zeros(n, cp.int32) if real else cuda.NULL
        self.cells = cp.zeros(n, cp.int64) if cells else cuda.NULL
        self.finite, self.integral = extent.finite, extent.integral

    def args(self) -> tuple[Any, ...]:
        coarse = 2.0**self.power if self.dtype == np.float64 else 1.0
        return self.hi, self.lo, self.cells, self.odd, np.float64(coarse), np.float64(self.fine)

    def totals(self) -> np.ndarray:
        hi = self.hi.get()
        if self.dtype == np.int64:
            return hi
        # float64 holds 53 of the 63 bits; the other bits are added to the error.
        high = hi.astype(np.float64)
        low = (hi - high.astype(np.int64)) + self.lo.get() / self.fine
        pairs = np.ldexp([high, low], -self.power)
        sums = pairs.sum(axis=0)
        if not self.finite:
            odd = self.odd.get()
            sums[odd == 2] = np.inf
            sums[odd == 4] = -np.inf
            sums[(odd & 1 != 0) | (odd & 6 == 6)] = np.nan
        exact = as_exact_int64(sums, integral=self.integral)
        return exact if exact.dtype == np.int64 else finite_pairs(pairs, sums)


_NOTHING = (cuda.NULL, cuda.NULL, cuda.NULL, cuda.NULL, np.float64(1.0), np.float64(1.0))


def _sums(
    x: Block,
    genes: tuple[Any, ...] = _NOTHING,
    *,
    positive: bool = False,
    totals: cp.ndarray = cuda.NULL,
    n_genes: cp.ndarray = cuda.NULL,
    masks: np.ndarray | None = None,
) -> np.ndarray:
    """Fill `genes`, `totals` and `n_genes`; return totals over `masks`, :data:`MASKS` per sweep."""
    n_masks = 0 if masks is None else masks.shape[0]
    masked = cp.empty((x.shape[0], n_masks), sum_dtype(x.dtype))
    for first in range(0, max(n_masks, 1), MASKS):
        sets, totals_of_sets = cuda.NULL, cuda.NULL
        some = () if masks is None else masks[first : first + MASKS]
        if len(some):
            bits = np.zeros(x.shape[1], np.uint8)
            for k, mask in enumerate(some):
                bits |= mask.astype(np.uint8) << np.uint8(k)
            sets, totals_of_sets = cp.asarray(bits), masked[:, first:]
        set_args = sets, np.int32(len(some)), totals_of_sets, np.int64(n_masks)
        _run("sums", x, *genes, np.int32(positive), totals, n_genes, *set_args)
        genes, totals, n_genes = _NOTHING, cuda.NULL, cuda.NULL
    return masked.get()


def holds_counts(x: cp.ndarray | sparse.csr_matrix) -> bool:
    values = x.data if sparse.issparse(x) else x
    if values.dtype.kind in "ub" or values.size == 0:
        return True
    if not bool((values >= 0).all()):
        return False
    return values.dtype.kind == "i" or bool((cp.floor(values) == values).all())


def row_sums(x: Block, genes: Any = None) -> np.ndarray:
    check_range(x, x.shape[1])
    if genes is not None:
        return _sums(x, masks=cp.asnumpy(genes).astype(bool).reshape(1, -1))[:, 0]
    out = cp.empty(x.shape[0], sum_dtype(x.dtype))
    _sums(x, totals=out)
    return out.get()


def dominant_genes(x: Block, max_fraction: float) -> np.ndarray:
    out = cp.zeros(x.shape[1], bool)
    _run("dominant", x, np.float64(max_fraction), out)
    return out.get()


def row_positive(x: Block) -> np.ndarray:
    out = cp.empty(x.shape[0], cp.int64)
    _sums(x, positive=True, n_genes=out)
    return out.get()


def gene_totals(x: Block) -> np.ndarray:
    genes = _Genes(x, _extent(x), totals=True, cells=False)
    _sums(x, genes.args())
    return genes.totals()


def gene_positive(x: Block) -> np.ndarray:
    genes = _Genes(x, _Extent(0.0, integral=True, finite=True), totals=False, cells=True)
    _sums(x, genes.args(), positive=True)
    return genes.cells.get()


def qc_block(x: Block, masks: Any, ns: Sequence[int] = ()) -> QCSums:
    """As on the CPU. Integers are read once, and again for the totals of the top genes. Floats are
    read once more to find the largest, which determines the unit of the fixed-point sums.
    """
    masks = np.ascontiguousarray(cp.asnumpy(masks), dtype=bool).reshape(len(masks), x.shape[1])
    n_cells = x.shape[0]
    extent = _extent(x)
    genes = _Genes(x, extent, totals=True, cells=True)
    totals = cp.empty(n_cells, sum_dtype(x.dtype))
    expressed = cp.empty(n_cells, cp.int64)
    masked = _sums(x, genes.args(), totals=totals, n_genes=expressed, masks=masks)
    cells = (
        as_exact_int64(totals.get(), integral=extent.integral),
        expressed.get(),
        as_exact_int64(masked, integral=extent.integral),
        top_totals(x, ns) if len(ns) else np.zeros((n_cells, 0)),
    )
    return QCSums([cells], genes.totals(), genes.cells.get())


def top_totals(x: Block, ns: Sequence[int]) -> np.ndarray:
    wanted = numbers_of_top(ns, x.shape[1])
    out = cp.empty((x.shape[0], wanted.size), cp.float64)
    _run("top", x, np.int64(x.shape[1]), cp.asarray(wanted), np.int32(wanted.size), out)
    return out.get()
