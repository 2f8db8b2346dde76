"""Check that a block holds counts, convert it to canonical form and sum it, in one sweep; round
expected counts, which tools such as alevin and RSEM write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scatlas.kernels import COUNT_DTYPES, CsrArrays, csr_arrays, gene_dtype
from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from scatlas.arrays.array_types import Array, Bools, Ints, SparseBlock

PROBLEMS = (
    "",
    "out_of_range",
    "duplicate",
    "negative",
    "fractional",
    "nan",
    "infinite",
    "too_large",
)
_OUT_OF_RANGE, _DUPLICATE, _NEGATIVE, _FRACTIONAL, _NAN, _INFINITE, _TOO_LARGE = range(1, 8)
_WIDER = 8  # not an error: the count needs a wider type
MAX_COUNT = 2**32 - 1
_LARGEST_FLOAT64 = 1.7976931348623157e308  # beyond lies infinity alone


class Problem(NamedTuple):
    """The first value of a block that is no count."""

    kind: str  # one of `PROBLEMS`
    row: int  # from the block's first cell
    gene_index: int  # as stored, maybe out of range
    value: float


class CheckedCounts(NamedTuple):
    """A CSR block in canonical form (sorted indices, no duplicates, no stored zeros) and its sums,
    which are not valid if there is a problem.
    """

    counts: Array  # the narrowest of COUNT_DTYPES that was tried and holds them
    indices: Array  # uint16 up to 65,536 genes, else int32
    indptr: Ints
    totals: Ints  # of each cell over all genes
    masked: Ints  # of each cell over the flagged genes
    per_gene: Ints  # [genes, 2]: total of each gene, and number of cells in which it is not zero
    highest: int
    n_unsorted: int  # cells that were not sorted
    n_zeros: int  # stored zeros that were dropped
    problem: Problem | None


@njit(nogil=True, cache=True)
def _copy_canonical_row(
    data: Array, indices: Array, n_genes: int, limit: int, counts: Array, genes: Array
) -> bool:
    """Copy a row that is canonical, with counts up to ``limit``; False for any other row.

    Nearly all rows are. Without a branch on the values the loop is vectorised, four times as fast.
    """
    n = data.size
    if n == 0:
        return True
    wrong = (indices[0] < 0) | (indices[n - 1] >= n_genes)
    for i in range(1, n):
        wrong |= indices[i] <= indices[i - 1]
    if wrong:
        return False
    for i in range(n):
        value = data[i]
        fits = (value >= 1) & (value <= limit)
        # Replace a value that does not fit, or NaN: its conversion would be undefined.
        count = np.int32(value if fits else data.dtype.type(1))
        wrong |= count != value
        counts[i] = count
        genes[i] = indices[i]
    return not wrong


@njit(nogil=True, cache=True)
def _is_canonical(rows: CsrArrays, n_genes: int) -> bool:
    """Whether all rows are canonical; of unsigned counts."""
    wrong = False
    for row in range(rows.indptr.size - 1):
        own = rows.indices[
            rows.indptr[row] : rows.indptr[row + 1]
        ]  # of a slice the compiler sees the length
        if own.size:
            wrong |= (own[0] < 0) | (own[own.size - 1] >= n_genes)
        for i in range(1, own.size):
            wrong |= own[i] <= own[i - 1]
    for i in range(rows.data.size):
        wrong |= rows.data[i] == 0
    return not wrong


@njit(nogil=True, cache=True)
def _add_row(
    counts: Array, genes: Array, flagged: Bools, per_gene: Ints
) -> tuple[np.int64, np.int64]:
    """Add a canonical row to the sums of the genes; return its total and that of flagged genes."""
    total = np.int64(0)
    for i in range(counts.size):  # vectorised, unlike the next: saves 0.3 of 1.9 ns per value
        total += np.int64(counts[i])
    masked = np.int64(0)
    for i in range(counts.size):
        count = np.int64(counts[i])
        gene = genes[i]
        masked += count * flagged[gene]
        per_gene[gene, 0] += count
        per_gene[gene, 1] += 1
    return total, masked


@njit(nogil=True, cache=True)
def _add_rows(rows: CsrArrays, flagged: Bools, totals: Ints, masked: Ints, per_gene: Ints) -> None:
    """Sum canonical rows, after the check: sums during it take half as long again, because the raw
    values evict the sums of the genes from the cache.
    """
    for row in range(totals.size):
        begin, end = rows.indptr[row], rows.indptr[row + 1]
        counts, genes = rows.data[begin:end], rows.indices[begin:end]
        totals[row], masked[row] = _add_row(counts, genes, flagged, per_gene)


@njit(nogil=True, cache=True)
def _problem_of_value(value: Any) -> int:
    """Number of the problem of a value that is no count; 0 for a count."""
    # NaN fails every comparison, so each test is written to let only counts pass.
    if not value >= 0:
        if value != value:
            return _NAN
        return _INFINITE if value < -_LARGEST_FLOAT64 else _NEGATIVE
    if value > MAX_COUNT:
        return _INFINITE if value > _LARGEST_FLOAT64 else _TOO_LARGE
    return 0 if np.uint32(value) == value else _FRACTIONAL


@njit(nogil=True, cache=True)
def _stable_order(indices: Ints) -> Ints:
    """By itself, because the sort takes a second to compile: once, not for all types of values."""
    order: Ints = np.argsort(indices, kind="mergesort")
    return order


@njit(nogil=True, cache=True)
def _copy_any_row(
    data: Array, indices: Array, n_genes: int, counts: Array, genes: Array
) -> tuple[int, int, int, bool]:
    """Copy a row sorted by gene and without its zeros; return the problem, its position in the row,
    the number of values copied, and whether the row was sorted.
    """
    max_count = np.int64(np.iinfo(counts.dtype).max)
    # A stable sort, so that the problem found first does not depend on the sort.
    order = _stable_order(indices)
    in_order = True
    last = np.int64(-1)
    n_copied = 0
    for i in range(data.size):
        at = order[i]
        in_order &= at == i
        gene = np.int64(indices[at])
        if gene < 0 or gene >= n_genes:
            return _OUT_OF_RANGE, at, n_copied, in_order
        if gene == last:
            return _DUPLICATE, at, n_copied, in_order
        last = gene
        problem = _problem_of_value(data[at])
        if problem:
            return problem, at, n_copied, in_order
        count = np.uint32(data[at])
        if count > max_count:
            return _WIDER, at, n_copied, in_order
        if count:
            counts[n_copied] = count
            genes[n_copied] = gene
            n_copied += 1
    return 0, 0, n_copied, in_order


@njit(nogil=True, cache=True)
def _check_rows(rows: CsrArrays, n_genes: int, out: CsrArrays) -> tuple[int, int, int, int, int]:
    """Fill `out` with the canonical rows; return the problem, its row, its position in the data,
    the number of rows that were not sorted, and the number of zeros dropped.
    """
    limit = min(np.int64(np.iinfo(out.data.dtype).max), np.int64(2147483647))
    n_unsorted = 0
    n_zeros = 0
    stop = np.int64(0)
    out.indptr[0] = 0
    for row in range(rows.indptr.size - 1):
        begin, end = rows.indptr[row], rows.indptr[row + 1]
        start, stop = stop, stop + end - begin
        from_data, from_indices = rows.data[begin:end], rows.indices[begin:end]
        to_counts, to_genes = out.data[start:stop], out.indices[start:stop]
        if not _copy_canonical_row(from_data, from_indices, n_genes, limit, to_counts, to_genes):
            problem, at, n_copied, in_order = _copy_any_row(
                from_data, from_indices, n_genes, to_counts, to_genes
            )
            if problem:
                return problem, row, begin + at, n_unsorted, n_zeros
            stop = start + n_copied
            n_unsorted += not in_order
            n_zeros += end - begin - n_copied
        out.indptr[row + 1] = stop
    return 0, 0, 0, n_unsorted, n_zeros


def check_counts(
    block: SparseBlock, flagged: Bools | None = None, *, dtype: DTypeLike = np.uint8
) -> CheckedCounts:
    """Check a raw CSR block of any integer or float values, convert it to integer counts and sum
    them; or find the first of its :data:`PROBLEMS`.

    The caller has checked the offsets (:func:`scatlas.io.matrices.layout.describe`). `flagged`,
    bool ``[genes]``, are genes of the second total of each cell. A `dtype` that is too narrow costs
    a second sweep.
    """
    n_cells, n_genes = block.shape
    genes_type = gene_dtype(n_genes)
    flagged = np.zeros(n_genes, bool) if flagged is None else flagged
    rows = csr_arrays(block)
    is_ready = rows.data.dtype in COUNT_DTYPES and rows.indices.dtype == genes_type
    if is_ready and _is_canonical(rows, n_genes):
        return _sums(rows, flagged)
    rows = rows._replace(data=_with_compiled_dtype(rows.data))
    if rows.indices.dtype not in (np.int32, np.int64):
        rows = rows._replace(indices=rows.indices.astype(np.int64))
    genes, starts = np.empty(rows.data.size, genes_type), np.empty(n_cells + 1, np.int64)
    for width in COUNT_DTYPES[COUNT_DTYPES.index(np.dtype(dtype).type) :]:
        out = CsrArrays(np.empty(rows.data.size, width), genes, starts)
        kind, row, at, n_unsorted, n_zeros = _check_rows(rows, n_genes, out)
        if kind != _WIDER:
            break
    if kind:
        problem = Problem(PROBLEMS[kind], row, int(block.indices[at]), block.data[at].item())
        none = CsrArrays(out.data[:0], genes[:0], np.zeros(n_cells + 1, np.int64))
        return _sums(none, flagged)._replace(problem=problem)
    kept = int(starts[-1])
    sums = _sums(CsrArrays(out.data[:kept], genes[:kept], starts), flagged)
    return sums._replace(n_unsorted=n_unsorted, n_zeros=n_zeros)


def _sums(rows: CsrArrays, flagged: Bools) -> CheckedCounts:
    """A canonical block with its sums."""
    n_cells = rows.indptr.size - 1
    totals, masked = np.zeros(n_cells, np.int64), np.zeros(n_cells, np.int64)
    per_gene = np.zeros((flagged.size, 2), np.int64)
    _add_rows(rows, flagged, totals, masked, per_gene)
    highest = int(rows.data.max(initial=0))
    return CheckedCounts(*rows, totals, masked, per_gene, highest, 0, 0, None)


def _with_compiled_dtype(data: Array) -> Array:
    """Values in one of four types, so that the kernel is compiled for four types only."""
    if data.dtype in (np.float32, np.float64, np.int32, np.int64):
        return data
    if data.dtype.kind == "f":
        return data.astype(np.float32 if data.dtype.itemsize < 4 else np.float64)
    if data.dtype.kind == "u" and data.dtype.itemsize == 8:
        # Clip: a value above int64 must stay too large, and not wrap to a negative number.
        return np.minimum(data, np.uint64(2**63 - 1)).astype(np.int64)
    return data.astype(np.int64)


class RoundedCounts(NamedTuple):
    """Values of a block with fractional ones rounded, in the type that they had."""

    values: Array
    n_changed: int  # how many were fractional
    n_counts: int  # what these are together, rounded


def round_counts(values: Array) -> RoundedCounts:
    """Round positive fractional values as :func:`numpy.rint`; negative, infinite and missing
    values, which are no expected counts, stay for :func:`check_counts` to report.
    """
    if values.dtype.kind != "f":
        return RoundedCounts(values, 0, 0)
    rounded = np.rint(values)
    changed = (rounded != values) & (values > 0)
    if not changed.any():
        return RoundedCounts(values, 0, 0)
    n_counts = int(rounded[changed].sum(dtype=np.float64))
    return RoundedCounts(np.where(changed, rounded, values), int(changed.sum()), n_counts)
