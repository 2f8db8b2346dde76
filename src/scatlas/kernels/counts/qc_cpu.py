"""Quality-control sums of one block: per cell, per gene, per gene set, of the top genes.

Sums of counts are exact for any stored dtype: integers are summed in int64, floating-point values
in float64, which holds every integer up to 2^53. (A float32 sum is wrong above 2^24.)
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.arrays.array_types import (
    Array,
    Block,
    Bools,
    Floats,
    Ints,
    is_sparse,
    row_offsets,
)
from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.moments.group_sums_cpu import check_range
from scatlas.kernels.moments.moments_cpu import moments
from scatlas.kernels.moments.pairs_cpu import gene_at, gene_rows, pair_sum, row_of, stored_values

if TYPE_CHECKING:
    from collections.abc import Sequence

_LARGEST_EXACT = 2.0**53  # float64 holds every integer up to here
_NO_FRACTION = 2.0**52  # float64 holds no fraction from here on
_BATCH = 4096  # values tested between two checks whether one of them was no integer


def sum_dtype(dtype: np.dtype) -> type:
    """Type in which values of `dtype` are summed: int64 for integers and bool, else float64."""
    return np.int64 if np.dtype(dtype).kind in "iub" else np.float64


def is_integral(values: Array) -> bool:
    """Whether all values are integers (always, for an integer type)."""
    return values.dtype.kind in "iub" or bool(_all_integers(values.reshape(-1)))


@njit(nogil=True, cache=True)
def _all_integers(values: Array) -> bool:
    # Adding and subtracting 2^52 rounds to an integer and, unlike floor, vectorises. Values above
    # 2^52 and values that are not finite fail the test, as their sums need not be exact.
    for start in range(0, values.size, _BATCH):
        part = values[start : start + _BATCH]
        failed = np.int64(0)
        for i in range(part.size):
            v = abs(np.float64(part[i]))
            failed |= np.int64((v > _NO_FRACTION) | ((v + _NO_FRACTION) - _NO_FRACTION != v))
        if failed:
            return False
    return True


def holds_counts(x: Block) -> bool:
    """Whether all values of a block are integers and none is negative."""
    values = stored_values(x)
    if values.dtype.kind in "ub" or values.size == 0:
        return True
    return bool(values.min() >= 0) and is_integral(values)


def as_exact_int64(sums: Array, *, integral: bool) -> Array:
    """float64 sums of integers as int64, if all are small enough to be exact; else unchanged."""
    if sums.dtype == np.int64 or not integral or (np.abs(sums) > _LARGEST_EXACT).any():
        return sums
    return sums.astype(np.int64)


@njit(nogil=True, cache=True, fastmath={"reassoc"})
def _total_of_integers(values: Array) -> tuple[bool, float]:
    """Whether all values are integers whose sum is exact in any order, and that sum; the order is
    the compiler's, which vectorises it.
    """
    total, size, failed = 0.0, 0.0, np.int64(0)
    for i in range(values.size):
        v = np.float64(values[i])
        total += v
        size += abs(v)
        failed |= np.int64(np.trunc(v) != v)
    return failed == 0 and size < _LARGEST_EXACT, total


@njit(nogil=True, cache=True)
def _total_in_order(values: Array, out: Array) -> Any:
    total = out.dtype.type(0)
    for i in range(values.size):
        total += out.dtype.type(values[i])
    return total


@njit(nogil=True, cache=True)
def _row_totals_csr(data: Array, indptr: Ints, out: Array) -> None:
    integers = True
    for i in range(out.size):
        values = data[indptr[i] : indptr[i + 1]]
        if integers:
            integers, out[i] = _total_of_integers(values)
        if not integers:
            out[i] = _total_in_order(values, out)


@njit(nogil=True, cache=True)
def _row_totals_dense(x: Array, out: Array) -> None:
    start = 0
    for i in range(x.shape[0]):
        integers, out[i] = _total_of_integers(x[i])
        if not integers:
            break
        start = i + 1
    # Four rows at once: each addition to a total waits for the one before.
    in_fours = start + (x.shape[0] - start) // 4 * 4
    for i in range(start, in_fours, 4):
        a = b = c = d = out.dtype.type(0)
        for j in range(x.shape[1]):
            a += out.dtype.type(x[i, j])
            b += out.dtype.type(x[i + 1, j])
            c += out.dtype.type(x[i + 2, j])
            d += out.dtype.type(x[i + 3, j])
        out[i], out[i + 1], out[i + 2], out[i + 3] = a, b, c, d
    for i in range(in_fours, x.shape[0]):
        out[i] = _total_in_order(x[i], out)


@njit(nogil=True, cache=True)
def _row_totals_of_genes_csr(
    data: Array, indices: Array, indptr: Ints, genes: Array, out: Array
) -> None:
    for i in range(out.size):
        total = out.dtype.type(0)
        for j in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
            # A choice of two sums takes a quarter of the time of a branch, which mispredicts.
            more = total + out.dtype.type(data[j])
            total = more if genes[np.uint64(indices[j])] else total
        out[i] = total


def row_sums(x: Block, genes: Array | None = None) -> Array:
    """Total of each cell, of :func:`sum_dtype`, over the genes of a mask (None: all). Integers
    whose totals may overflow are refused.
    """
    check_range(x, x.shape[1])
    out: Array = np.zeros(x.shape[0], sum_dtype(x.dtype))
    if not is_sparse(x):
        _row_totals_dense(x if genes is None else np.asarray(x)[:, genes], out)
    elif genes is None:
        _row_totals_csr(x.data, row_offsets(x), out)
    else:
        _row_totals_of_genes_csr(x.data, x.indices, row_offsets(x), genes, out)
    return out


@njit(nogil=True, cache=True)
def _dominant_csr(data: Array, indices: Array, indptr: Ints, bounds: Floats, out: Array) -> None:
    for i in range(bounds.size):
        for j in range(indptr[i], indptr[i + 1]):
            if data[j] > bounds[i]:
                out[indices[j]] = True


def dominant_genes(x: Block, max_fraction: float) -> Array:
    """Genes with more than `max_fraction` of the total of at least one cell; bool [genes]."""
    bounds = row_sums(x) * max_fraction
    if not is_sparse(x):
        return np.asarray((np.asarray(x) > bounds[:, None]).any(axis=0))
    out = np.zeros(x.shape[1], bool)
    _dominant_csr(x.data, x.indices, row_offsets(x), bounds, out)
    return out


@njit(nogil=True, cache=True)
def _count_positive(values: Array, indices: Array | None, indptr: Ints | None, out: Ints) -> None:
    for i in range(out.size):
        of_row, _genes = row_of(values, indices, indptr, i)
        n = 0
        for k in range(of_row.size):
            n += of_row[k] > 0
        out[i] = n


def row_positive(x: Block) -> Array:
    """Number of genes above zero in each cell, int64 [cells]; explicit zeros do not count."""
    out = np.zeros(x.shape[0], np.int64)
    _count_positive(stored_values(x), *gene_rows(x), out)
    return out


@njit(nogil=True, cache=True)
def _add_to_genes(
    values: Array,
    indices: Array | None,
    indptr: Ints | None,
    n_rows: int,
    positive: bool,
    out: Array,
) -> None:
    """Add each value to that of its gene, or if `positive` one for each value above zero."""
    for i in range(n_rows):
        of_row, genes = row_of(values, indices, indptr, i)
        for k in range(of_row.size):
            value = out.dtype.type(of_row[k] > 0) if positive else out.dtype.type(of_row[k])
            out[gene_at(genes, k)] += value


def gene_totals(x: Block) -> Array:
    """Total of each gene over the block's cells; :func:`add_gene_sums` adds those of blocks. int64
    ``[n_genes]`` if all values are integers, else a pair: totals, rounding errors.
    """
    out: Array = np.zeros(x.shape[1], sum_dtype(x.dtype))
    _add_to_genes(stored_values(x), *gene_rows(x), x.shape[0], False, out)
    return _with_errors(x, out)


def gene_positive(x: Block) -> Array:
    """Number of the block's cells in which each gene is above zero, int64 [genes]."""
    out = np.zeros(x.shape[1], np.int64)
    _add_to_genes(stored_values(x), *gene_rows(x), x.shape[0], True, out)
    return out


def _with_errors(x: Block, totals: Array) -> Array:
    """The gene totals of a block as :func:`gene_totals` returns them."""
    values = x.data if is_sparse(x) else np.ascontiguousarray(x)
    exact = as_exact_int64(totals, integral=is_integral(values))
    if exact.dtype == np.int64:
        return exact
    pairs = np.ascontiguousarray(moments(x).sums[0, :, :2].T)
    return finite_pairs(pairs, totals)


def finite_pairs(pairs: Array, totals: Array) -> Array:
    """`pairs` [2, genes], but `totals` [genes] and no error where totals are not finite."""
    return np.where(np.isfinite(totals), pairs, [totals, np.zeros_like(totals)])


def add_gene_sums(parts: Sequence[Array]) -> Array:
    """Sum of the results of :func:`gene_totals` of blocks, wherever these begin."""
    return functools.reduce(_add_pair, parts)


def _add_pair(a: Array, b: Array) -> Array:
    if a.ndim == b.ndim == 1:
        return a + b
    (a, a_error), (b, b_error) = (v if v.ndim == 2 else (v, np.zeros(v.size)) for v in (a, b))
    with np.errstate(invalid="ignore"):
        pairs = pair_sum(a.astype(np.float64), a_error, b.astype(np.float64), b_error)
    return finite_pairs(np.array(pairs), a + b)


def round_gene_sums(sums: Array) -> Array:
    """Totals [genes] of the sums of :func:`gene_totals`, rounded once."""
    return sums if sums.ndim == 1 else sums[0] + sums[1]


@dataclass
class QCSums:
    """QC sums of consecutive cells. Arrays per cell are kept as one entry per block, so that
    merging thousands of blocks copies nothing; the properties concatenate them.
    """

    cells: list[tuple[Array, Array, Array, Array]]
    """(totals [n], n_genes int64 [n], masked totals [n, masks], top totals float64 [n, ns])."""
    gene_sums: Array
    """As :func:`gene_totals` returns them."""
    n_cells: Array
    """Number of cells in which each gene is not zero, int64 [genes]."""

    @property
    def gene_totals(self) -> Array:
        """Total of each gene, int64 (all values integers) or float64 [genes]."""
        return round_gene_sums(self.gene_sums)

    @property
    def totals(self) -> Array:
        """Total of each cell, int64 (all values integers) or float64 [cells]."""
        return np.concatenate([part[0] for part in self.cells])

    @property
    def n_genes(self) -> Array:
        """Number of genes that are not zero in each cell, int64 [cells]."""
        return np.concatenate([part[1] for part in self.cells])

    @property
    def masked(self) -> Array:
        """Total of each cell over the genes of each mask [cells, masks]."""
        return np.concatenate([part[2] for part in self.cells])

    @property
    def top(self) -> Array:
        """Total of each cell over its n most abundant genes, float64 [cells, ns]."""
        return np.concatenate([part[3] for part in self.cells])

    @staticmethod
    def merge(parts: list[QCSums]) -> QCSums:
        """Sums of the cells of all `parts`, which are consecutive."""
        return QCSums(
            cells=[cells for part in parts for cells in part.cells],
            gene_sums=add_gene_sums([part.gene_sums for part in parts]),
            n_cells=sum((part.n_cells for part in parts[1:]), parts[0].n_cells),
        )


@njit(nogil=True, cache=True)
def _add_qc(
    values: Array,
    indices: Array | None,
    indptr: Ints | None,
    masks: Bools,
    flagged: Bools,
    totals: Array,
    n_genes: Ints,
    masked: Array,
    gene_totals: Array,
    n_cells: Ints,
) -> None:
    for i in range(totals.size):
        of_row, genes = row_of(values, indices, indptr, i)
        total = totals.dtype.type(0)
        n = 0
        for k in range(of_row.size):
            value, gene = totals.dtype.type(of_row[k]), gene_at(genes, k)
            total += value
            gene_totals[gene] += value
            present = value != 0
            n += present
            n_cells[gene] += present
            if flagged[gene]:  # few genes are in any mask: the others cost one look-up
                for m in range(masks.shape[0]):
                    if masks[m, gene]:
                        masked[i, m] += value
        totals[i] = total
        n_genes[i] = n


def qc_block(x: Block, masks: Array, ns: Sequence[int] = ()) -> QCSums:
    """All QC sums of one block, over gene sets ``masks`` ``[n_masks, n_genes]`` and the n most
    abundant genes of each cell for n in `ns`; totals are int64 if all values are integers.
    """
    masks = np.ascontiguousarray(masks, dtype=bool).reshape(len(masks), x.shape[1])
    flagged = masks.any(axis=0)
    n_cells, n_genes = x.shape
    dtype = sum_dtype(x.dtype)
    totals: Array = np.zeros(n_cells, dtype)
    expressed = np.zeros(n_cells, np.int64)
    masked: Array = np.zeros((n_cells, masks.shape[0]), dtype)
    gene_totals: Array = np.zeros(n_genes, dtype)
    gene_cells = np.zeros(n_genes, np.int64)
    values = x.data if is_sparse(x) else np.ascontiguousarray(x)
    sums = (masks, flagged, totals, expressed, masked, gene_totals, gene_cells)
    _add_qc(values, *gene_rows(x), *sums)
    integral = is_integral(values)
    cells = (
        as_exact_int64(totals, integral=integral),
        expressed,
        as_exact_int64(masked, integral=integral),
        top_totals(x, ns) if len(ns) else np.zeros((n_cells, 0)),
    )
    return QCSums([cells], _with_errors(x, gene_totals), gene_cells)


@njit(nogil=True, cache=True)
def _move_largest(values: Array, cut: int) -> None:
    """Move the largest values to ``values[cut:]`` (Hoare's selection; NumPy's takes 5 s to compile
    for two types). As there, NaN are the largest.
    """
    first, last = 0, values.size - 1
    while first < last:
        pivot = values[(first + last) // 2]
        i, j = first, last
        while i <= j:
            while values[i] < pivot or (pivot != pivot and values[i] == values[i]):
                i += 1
            while pivot < values[j] or (values[j] != values[j] and pivot == pivot):
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if j < cut:
            first = i
        if cut < i:
            last = j


@njit(nogil=True, cache=True)
def _top_of_row(values: Array, n_zeros: int, ns: Ints, out: Array) -> None:
    """Set out[k] to the sum of the ns[k] largest of `values` and `n_zeros` zeros; ns ascend.
    `values`, whose order is changed, are int64 or float64 alone: sorting takes 1 s to compile.
    """
    n = values.size
    n_top = min(n, ns[-1])
    _move_largest(values, n - n_top)
    top = np.sort(values[n - n_top :])
    total = 0.0
    k = 0
    for stored_rank in range(n_top):
        value = top[n_top - 1 - stored_rank]
        # Zeros that are not stored rank before negative values.
        rank = stored_rank + n_zeros if value < 0 else stored_rank
        while k < ns.size and rank >= ns[k]:
            out[k] = total
            k += 1
        if k == ns.size:
            return
        total += np.float64(value)
    out[k:] = total


@njit(nogil=True, cache=True)
def _add_top(
    values: Array,
    indices: Array | None,
    indptr: Ints | None,
    n_genes: int,
    ns: Ints,
    wide: Array,
    out: Array,
) -> None:
    for i in range(out.shape[0]):
        of_row, _genes = row_of(values, indices, indptr, i)
        _top_of_row(of_row.astype(wide.dtype), n_genes - of_row.size, ns, out[i])


def numbers_of_top(ns: Sequence[int], n_genes: int) -> Ints:
    """Numbers of most abundant genes, which must ascend."""
    wanted = np.asarray(ns, dtype=np.int64)
    if wanted.size == 0 or wanted[0] < 1 or wanted[-1] > n_genes or (np.diff(wanted) < 0).any():
        raise ValueError(f"numbers of genes must ascend within 1 and {n_genes}, not {list(ns)}")
    return wanted


def top_totals(x: Block, ns: Sequence[int]) -> Array:
    """Total of the n most abundant genes of each cell for ascending n ``[n_cells, len(ns)]``."""
    wanted = numbers_of_top(ns, x.shape[1])
    out = np.zeros((x.shape[0], wanted.size))
    wide: Array = np.empty(0, sum_dtype(x.dtype))
    values = x.data if is_sparse(x) else np.ascontiguousarray(x)
    _add_top(values, *gene_rows(x), x.shape[1], wanted, wide, out)
    return out
