"""Sums per cell and per gene of a CSC matrix in memory, in its own order: changing it takes longer.
Sums of integers are exact, so they have the bits of row blocks; others are left to these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas.arrays.array_types import row_offsets
from scatlas.arrays.kinds import kind_of
from scatlas.blocks.compressed import line_ranges, value_ranges
from scatlas.kernels.moments.group_sums_cpu import check_range

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from scatlas.kernels.counts.qc_cpu import QCSums
    from scatlas.kernels.moments.moments_cpu import Moments

_LARGEST_EXACT = 2.0**53  # float64 holds every integer up to here


def is_by_gene(x: Any) -> bool:
    """Whether `x` is a CSC matrix of SciPy."""
    kind = kind_of(x)
    return kind.sparse and not (kind.lazy or kind.gpu) and x.format == "csc"


def exact_totals(x: Any, n_values: int) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
    """Total of each cell (int64, or float64 for floating-point values) and of each gene; None if
    not CSC, or if sums of up to `n_values` values in another order could have other bits.
    """
    from scatlas.kernels.counts.qc_by_gene_cpu import add_totals
    from scatlas.kernels.counts.qc_cpu import sum_dtype

    if not is_by_gene(x):
        return None
    check_range(x, n_values)
    if not _is_exact(x):
        return None
    dtype = sum_dtype(x.dtype)
    (cells,), (genes,) = _sum_parts(x, add_totals, (False,), [(x.shape[0],)], [dtype], [dtype])
    return cells, genes.astype(np.int64)


def numbers_above_zero(x: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Number of values above zero in each cell and in each gene of a CSC matrix."""
    from scatlas.kernels.counts.qc_by_gene_cpu import add_totals

    kinds = [np.int64], [np.int64]
    (cells,), (genes,) = _sum_parts(x, add_totals, (True,), [(x.shape[0],)], *kinds)
    return cells, genes


def exact_qc(x: Any, masks: NDArray[np.bool_]) -> QCSums | None:
    """Sums of ``qc_block`` over all cells; None, and errors, as :func:`exact_totals`."""
    from scatlas.kernels.counts.qc_by_gene_cpu import add_qc
    from scatlas.kernels.counts.qc_cpu import QCSums, sum_dtype

    if not is_by_gene(x):
        return None
    check_range(x, max(x.shape))
    if not _is_exact(x):
        return None
    n, dtype = x.shape[0], sum_dtype(x.dtype)
    shapes, dtypes = [(n,), (n,), (len(masks), n)], [dtype, np.int64, dtype]
    cells, genes = _sum_parts(x, add_qc, (masks,), shapes, dtypes, [dtype, np.int64])
    totals, n_genes, masked = cells
    per_cell = (totals.astype(np.int64), n_genes, masked.T.astype(np.int64), np.zeros((n, 0)))
    return QCSums([per_cell], genes[0].astype(np.int64), genes[1])


def exact_moments(x: Any, transform: Callable[[NDArray[Any]], NDArray[Any]]) -> Moments | None:
    """Moments per gene of the transformed values; None as :func:`exact_totals`."""
    from scatlas.arrays.numpy_arrays import aligned_zeros
    from scatlas.kernels.moments.exact_sums_cpu import add_genes, finish_sums, grid_of
    from scatlas.kernels.moments.moments_cpu import Moments

    if not is_by_gene(x) or x.dtype != np.float32:
        return None
    n_cells, n_genes = x.shape
    values = np.empty(x.indptr[-1], x.dtype)

    def fill(part: slice) -> None:
        values[part] = transform(x.data[part])

    blocks.for_each(fill, value_ranges(x.indptr))
    grid = grid_of(values, n_cells)
    if not grid:
        return None
    indptr = row_offsets(x)
    sums, expressed = aligned_zeros((1, n_genes, 4)), np.zeros((1, n_genes), np.int64)

    def work(genes: slice) -> None:
        add_genes(values, indptr, genes.start, genes.stop, grid, sums[0])
        finish_sums(sums[0, genes].reshape(-1), expressed[0, genes])

    blocks.for_each(work, line_ranges(indptr))
    return Moments(np.zeros(1, np.int64), np.array([n_cells]), sums, expressed)


def _is_exact(x: Any) -> bool:
    """Whether sums over cells or genes are exact in any order."""
    from scatlas.kernels.counts.qc_by_gene_cpu import largest_integer

    if x.dtype.kind in "iub":  # summed in int64; the caller has checked the range
        return True
    largest: list[float] = []
    parts = value_ranges(x.indptr)
    blocks.for_each(lambda part: largest.append(largest_integer(x.data[part])), parts)
    return bool(max(largest) * max(x.shape) <= _LARGEST_EXACT)


def _sum_parts(
    x: Any,
    add: Callable[..., None],
    arguments: tuple[Any, ...],
    cell_shapes: list[tuple[int, ...]],
    cell_dtypes: list[Any],
    gene_dtypes: list[Any],
) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """Arrays per cell, summed over the ranges of genes of the threads, and arrays per gene."""
    indptr = row_offsets(x)
    parts = line_ranges(indptr)
    genes = [np.zeros(x.shape[1], dtype) for dtype in gene_dtypes]
    found: list[list[NDArray[Any]]] = [[] for _ in parts]

    def work(i: int) -> None:
        found[i] = [np.zeros(*array) for array in zip(cell_shapes, cell_dtypes, strict=True)]
        own = parts[i].start, parts[i].stop
        add(x.data, x.indices, indptr, *own, *arguments, *found[i], *genes)

    blocks.for_each(work, range(len(found)))
    return [sum(parts[1:], parts[0]) for parts in zip(*found, strict=True)], genes
