"""Totals of one block: per cell, per gene, per set of genes, of the most abundant genes.

Counts are summed exactly whatever the type they are stored in: integers in int64, floating-point
values in float64, which holds every integer up to 2^53. (A float32 sum is wrong above 2^24.)
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.moments.group_sums_cpu import check_range
from scatlas.kernels.moments.moments_cpu import moments, pair_sum

if TYPE_CHECKING:
    from collections.abc import Sequence

    Block = np.ndarray | sp.csr_matrix | sp.csr_array

_EXACT = 2.0**53  # float64 holds every integer up to here
_SHIFT = 2.0**52  # float64 holds no fraction from here on
_STRIDE = 4096  # values checked before the first that is not an integer ends the search


def sum_dtype(dtype: np.dtype) -> type:
    """Type in which values of `dtype` are summed: int64 for integers and bool, else float64."""
    return np.int64 if np.dtype(dtype).kind in "iub" else np.float64


def _pointers(x: sp.csr_matrix | sp.csr_array) -> np.ndarray:
    """`indptr` as int64: a copy of one number a cell, for one compiled variant instead of two."""
    return x.indptr.astype(np.int64, copy=False)


def is_integral(values: np.ndarray) -> bool:
    """Whether all values are integers (always, for an integer type)."""
    return values.dtype.kind in "iub" or bool(_integral(values.reshape(-1)))


@njit(nogil=True, cache=True)
def _integral(values):
    # Adding and taking away 2^52 rounds to an integer; unlike floor, it vectorises. Values past
    # 2^52 and those that are not finite do not pass: their sums need not be exact.
    for start in range(0, values.size, _STRIDE):
        part = values[start : start + _STRIDE]
        odd = np.int64(0)
        for i in range(part.size):
            v = abs(np.float64(part[i]))
            odd |= np.int64((v > _SHIFT) | ((v + _SHIFT) - _SHIFT != v))
        if odd:
            return False
    return True


def _exact(sums: np.ndarray, *, integral: bool) -> np.ndarray:
    """float64 sums of integers as int64, where they are small enough to be exact."""
    if sums.dtype == np.int64 or not integral or (np.abs(sums) > _EXACT).any():
        return sums
    return sums.astype(np.int64)


@njit(nogil=True, cache=True)
def _row_totals_csr(data, indptr, out):
    for i in range(out.size):
        total = out.dtype.type(0)
        for j in range(indptr[i], indptr[i + 1]):
            total += out.dtype.type(data[j])
        out[i] = total


@njit(nogil=True, cache=True)
def _row_totals_dense(x, out):
    for i in range(x.shape[0]):
        total = out.dtype.type(0)
        for j in range(x.shape[1]):
            total += out.dtype.type(x[i, j])
        out[i] = total


def row_totals(x: Block) -> np.ndarray:
    """Total of each cell.

    Parameters
    ----------
    x
        Block [cells x genes].

    Returns
    -------
    [cells], int64 when all values of the block are integers, whatever their type (exact); float64
    otherwise.
    """
    return _exact(
        row_sums(x), integral=is_integral(x.data if sp.issparse(x) else np.ascontiguousarray(x))
    )


@njit(nogil=True, cache=True)
def _row_totals_of_csr(data, indices, indptr, genes, out):
    for i in range(out.size):
        total = out.dtype.type(0)
        for j in range(indptr[i], indptr[i + 1]):
            if genes[indices[j]]:
                total += out.dtype.type(data[j])
        out[i] = total


def row_sums(x: Block, genes: np.ndarray | None = None) -> np.ndarray:
    """Total of each cell, in the type that the stored type alone decides.

    Parameters
    ----------
    x
        Block [cells x genes].
    genes
        bool [genes], the genes to sum over; all when None.

    Returns
    -------
    `sum_dtype` [cells].

    Raises
    ------
    InputError
        Totals of integers may not fit 64 bits.
    """
    check_range(x, x.shape[1])
    out = np.zeros(x.shape[0], sum_dtype(x.dtype))
    if not sp.issparse(x):
        _row_totals_dense(x if genes is None else x[:, genes], out)
    elif genes is None:
        _row_totals_csr(x.data, _pointers(x), out)
    else:
        _row_totals_of_csr(x.data, x.indices, _pointers(x), genes, out)
    return out


@njit(nogil=True, cache=True)
def _dominant_csr(data, indices, indptr, bounds, out):
    for i in range(bounds.size):
        for j in range(indptr[i], indptr[i + 1]):
            if data[j] > bounds[i]:
                out[indices[j]] = True


def dominant_genes(x: Block, max_fraction: float) -> np.ndarray:
    """Genes with more than `max_fraction` of the total of at least one cell; bool [genes]."""
    bounds = row_sums(x) * max_fraction
    if not sp.issparse(x):
        return (x > bounds[:, None]).any(axis=0)
    out = np.zeros(x.shape[1], bool)
    _dominant_csr(x.data, x.indices, _pointers(x), bounds, out)
    return out


@njit(nogil=True, cache=True)
def _row_positive_csr(data, indptr, out):
    for i in range(out.size):
        n = 0
        for j in range(indptr[i], indptr[i + 1]):
            n += data[j] > 0
        out[i] = n


def row_positive(x: Block) -> np.ndarray:
    """Number of genes above zero in each cell, int64 [cells]; explicit zeros do not count."""
    if not sp.issparse(x):
        return np.count_nonzero(x > 0, axis=1).astype(np.int64)
    out = np.zeros(x.shape[0], np.int64)
    _row_positive_csr(x.data, _pointers(x), out)
    return out


@njit(nogil=True, cache=True)
def _gene_totals_csr(data, indices, n_values, out):
    for j in range(n_values):
        out[indices[j]] += out.dtype.type(data[j])


@njit(nogil=True, cache=True)
def _gene_totals_dense(x, out):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[j] += out.dtype.type(x[i, j])


def gene_sums(x: Block) -> np.ndarray:
    """Total of each gene over the block's cells, to be added by :func:`add_gene_sums`.

    Returns
    -------
    int64 [genes] when all values of the block are integers; else float64 [2, genes], each total and
    the rounding error that it leaves.
    """
    out = np.zeros(x.shape[1], sum_dtype(x.dtype))
    if sp.issparse(x):
        _gene_totals_csr(x.data, x.indices, x.indptr[-1], out)
    else:
        _gene_totals_dense(x, out)
    return _with_errors(x, out)


def _with_errors(x: Block, totals: np.ndarray) -> np.ndarray:
    """The gene totals of a block as :func:`gene_sums` returns them."""
    values = x.data if sp.issparse(x) else np.ascontiguousarray(x)
    exact = _exact(totals, integral=is_integral(values))
    if exact.dtype == np.int64:
        return exact
    pairs = np.ascontiguousarray(moments(x).sums[0, :, :2].T)
    return finite_pairs(pairs, totals)


def finite_pairs(pairs: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """`pairs` [2, genes]; where `totals` [genes] are not finite these, without an error."""
    return np.where(np.isfinite(totals), pairs, [totals, np.zeros_like(totals)])


def add_gene_sums(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Sum of what :func:`gene_sums` returns for blocks that follow each other.

    Reals carry their rounding error, so that the total does not depend on where blocks begin.
    """
    return functools.reduce(_add_pair, parts)


def _add_pair(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.ndim == b.ndim == 1:
        return a + b
    (a, a_error), (b, b_error) = (v if v.ndim == 2 else (v, np.zeros(v.size)) for v in (a, b))
    with np.errstate(invalid="ignore"):
        pairs = pair_sum(a.astype(np.float64), a_error, b.astype(np.float64), b_error)
    return finite_pairs(np.array(pairs), a + b)


def rounded(sums: np.ndarray) -> np.ndarray:
    """Totals [genes] of sums with or without their rounding errors."""
    return sums if sums.ndim == 1 else sums[0] + sums[1]


@njit(nogil=True, cache=True)
def _gene_positive_csr(data, indices, n_values, out):
    for j in range(n_values):
        out[indices[j]] += data[j] > 0


def gene_positive(x: Block) -> np.ndarray:
    """Number of the block's cells in which each gene is above zero, int64 [genes]."""
    if not sp.issparse(x):
        return np.count_nonzero(x > 0, axis=0).astype(np.int64)
    out = np.zeros(x.shape[1], np.int64)
    _gene_positive_csr(x.data, x.indices, x.indptr[-1], out)
    return out


@dataclass
class QCPartial:
    """What one sweep over a run of cells gives; merges with the runs that follow it.

    The arrays per cell are kept as one entry a block, so that merging thousands of blocks copies
    nothing; the properties join them.
    """

    cells: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]
    """(totals [n], n_genes int64 [n], masked totals [n, masks], top totals float64 [n, ns])."""
    gene_sums: np.ndarray
    """As of :func:`gene_sums`."""
    n_cells: np.ndarray
    """Cells in which each gene is not zero, int64 [genes]."""

    @property
    def gene_totals(self) -> np.ndarray:
        """Total of each gene, int64 (all values integers) or float64 [genes]."""
        return rounded(self.gene_sums)

    @property
    def totals(self) -> np.ndarray:
        """Total of each cell, int64 (all values integers) or float64 [cells]."""
        return np.concatenate([part[0] for part in self.cells])

    @property
    def n_genes(self) -> np.ndarray:
        """Number of genes that are not zero in each cell, int64 [cells]."""
        return np.concatenate([part[1] for part in self.cells])

    @property
    def masked(self) -> np.ndarray:
        """Total of each cell over the genes of each mask [cells, masks]."""
        return np.concatenate([part[2] for part in self.cells])

    @property
    def top(self) -> np.ndarray:
        """Total of each cell over its n most abundant genes, float64 [cells, ns]."""
        return np.concatenate([part[3] for part in self.cells])

    @staticmethod
    def merge(parts: list[QCPartial]) -> QCPartial:
        """The partial of all cells of `parts`, which follow each other."""
        return QCPartial(
            cells=[cells for part in parts for cells in part.cells],
            gene_sums=add_gene_sums([part.gene_sums for part in parts]),
            n_cells=sum((part.n_cells for part in parts[1:]), parts[0].n_cells),
        )


@njit(nogil=True, cache=True)
def _qc_csr(
    data,
    indices,
    indptr,
    masks,
    flagged,
    totals,
    n_genes,
    masked,
    gene_totals,
    n_cells,
):
    for i in range(totals.size):
        total = totals.dtype.type(0)
        n = 0
        for j in range(indptr[i], indptr[i + 1]):
            value = totals.dtype.type(data[j])
            gene = indices[j]
            total += value
            gene_totals[gene] += value
            present = value != 0
            n += present
            n_cells[gene] += present
            if flagged[gene]:  # few genes are in a mask: one look-up for the others
                for m in range(masks.shape[0]):
                    if masks[m, gene]:
                        masked[i, m] += value
        totals[i] = total
        n_genes[i] = n


@njit(nogil=True, cache=True)
def _qc_dense(x, masks, flagged, totals, n_genes, masked, gene_totals, n_cells):
    for i in range(x.shape[0]):
        total = totals.dtype.type(0)
        n = 0
        for gene in range(x.shape[1]):
            value = totals.dtype.type(x[i, gene])
            total += value
            gene_totals[gene] += value
            present = value != 0
            n += present
            n_cells[gene] += present
            if flagged[gene]:
                for m in range(masks.shape[0]):
                    if masks[m, gene]:
                        masked[i, m] += value
        totals[i] = total
        n_genes[i] = n


def qc_block(x: Block, masks: np.ndarray, ns: Sequence[int] = ()) -> QCPartial:
    """All QC sums of one block.

    Parameters
    ----------
    x
        Block [cells x genes].
    masks
        bool [masks, genes]; one row for each set of genes whose totals are wanted.
    ns
        Totals of the n most abundant genes are taken for each of these n, too.

    Returns
    -------
    Totals are int64 when all values of the block are integers, float64 otherwise.
    """
    masks = np.ascontiguousarray(masks, dtype=bool).reshape(len(masks), x.shape[1])
    flagged = masks.any(axis=0)
    n_cells, n_genes = x.shape
    dtype = sum_dtype(x.dtype)
    totals = np.zeros(n_cells, dtype)
    expressed = np.zeros(n_cells, np.int64)
    masked = np.zeros((n_cells, masks.shape[0]), dtype)
    gene_totals = np.zeros(n_genes, dtype)
    gene_cells = np.zeros(n_genes, np.int64)
    sums = (masks, flagged, totals, expressed, masked, gene_totals, gene_cells)
    if sp.issparse(x):
        values = x.data
        _qc_csr(x.data, x.indices, _pointers(x), *sums)
    else:
        values = np.ascontiguousarray(x)
        _qc_dense(values, *sums)
    integral = is_integral(values)
    cells = (
        _exact(totals, integral=integral),
        expressed,
        _exact(masked, integral=integral),
        top_totals(x, ns) if len(ns) else np.zeros((n_cells, 0)),
    )
    return QCPartial([cells], _with_errors(x, gene_totals), gene_cells)


@njit(nogil=True, cache=True)
def _top_of_row(values, n_zeros, ns, out):
    """Fill out[k] with the total of the ns[k] (ascending) largest of `values` and of the zeros."""
    n = values.size
    most = min(n, ns[-1])
    top = np.sort(np.partition(values, n - most)[n - most :]) if n > most else np.sort(values)
    total = 0.0
    k = 0
    for rank in range(most):
        value = top[most - 1 - rank]
        # The zeros that are not stored rank before any negative value.
        place = rank + n_zeros if value < 0 else rank
        while k < ns.size and place >= ns[k]:
            out[k] = total
            k += 1
        if k == ns.size:
            return
        total += np.float64(value)
    out[k:] = total


@njit(nogil=True, cache=True)
def _top_csr(data, indptr, n_genes, ns, out):
    for i in range(indptr.size - 1):
        start, stop = indptr[i], indptr[i + 1]
        _top_of_row(data[start:stop], n_genes - (stop - start), ns, out[i])


@njit(nogil=True, cache=True)
def _top_dense(x, ns, out):
    for i in range(x.shape[0]):
        _top_of_row(x[i], 0, ns, out[i])


def top_totals(x: Block, ns: Sequence[int]) -> np.ndarray:
    """Total of the n most abundant genes of each cell.

    Parameters
    ----------
    x
        Block [cells x genes].
    ns
        Ascending numbers of genes, each between 1 and the number of genes.

    Returns
    -------
    float64 [cells, ns].
    """
    wanted = np.asarray(ns, dtype=np.int64)
    if wanted.size == 0 or wanted[0] < 1 or wanted[-1] > x.shape[1] or (np.diff(wanted) < 0).any():
        msg = f"numbers of genes must ascend within 1 and {x.shape[1]}, not {list(ns)}"
        raise ValueError(msg)
    out = np.zeros((x.shape[0], wanted.size))
    if sp.issparse(x):
        _top_csr(x.data, _pointers(x), x.shape[1], wanted, out)
    else:
        _top_dense(np.ascontiguousarray(x), wanted, out)
    return out
