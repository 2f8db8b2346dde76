"""Check that a block holds counts, bring it into canonical form and take its sums, in one sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scatlas.kernels import COUNT_DTYPES
from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    import scipy.sparse as sp

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
_WIDER = 8  # no problem: a count that needs a wider type
MAX_COUNT = 2**32 - 1


class Problem(NamedTuple):
    """The first value of a block that is no count.

    ``kind`` is one of ``PROBLEMS``; ``row`` counts from the block's first cell; ``index`` is the
    gene index as stored (it may be out of range).
    """

    kind: str
    row: int
    index: int
    value: float


class Checked(NamedTuple):
    """A CSR block in canonical form (sorted indices, no duplicates, no stored zeros) and its sums.

    Not valid when there is a problem.

    Attributes
    ----------
    counts
        uint8, uint16 or uint32: the narrowest that was tried and holds them.
    indices
        uint16 up to 65,536 genes, else int32.
    indptr
        int64.
    totals, masked
        int64 [cells]: total of each cell, over all genes and over the flagged ones.
    per_gene
        int64 [genes, 2]: total of each gene, and cells in which it is not zero.
    highest
        Largest count.
    n_unsorted, n_zeros
        Cells that were sorted, stored zeros that were dropped.
    problem
        The first value that is no count.
    """

    counts: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    totals: np.ndarray
    masked: np.ndarray
    per_gene: np.ndarray
    highest: int
    n_unsorted: int
    n_zeros: int
    problem: Problem | None


@njit(nogil=True, cache=True)
def _clean_row(data, indices, n_genes, limit, counts, genes):
    """Copy a row of counts up to ``limit`` with ascending indices; False when it is anything else.

    Without a branch on the values, so that the compiler turns it into vector instructions: nearly
    all rows of nearly all plates pass here, four times as fast as value by value.
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
        # What does not fit, NaN too, is not converted: the result would be undefined.
        count = np.int32(value if fits else data.dtype.type(1))
        wrong |= count != value
        counts[i] = count
        genes[i] = indices[i]
    return not wrong


@njit(nogil=True, cache=True)
def _add_row(counts, genes, flagged, per_gene):
    """Add a canonical row to the sums of the genes; return its total and that of flagged genes."""
    total = np.int64(0)
    masked = np.int64(0)
    for i in range(counts.size):
        count = np.int64(counts[i])
        gene = genes[i]
        total += count
        masked += count * flagged[gene]
        per_gene[gene, 0] += count
        per_gene[gene, 1] += 1
    return total, masked


@njit(nogil=True, cache=True)
def _add_rows(counts, genes, starts, flagged, totals, masked, per_gene):
    """Sum canonical rows.

    After all rows are clean, not after each: what they are made of would push the sums of the genes
    out of the cache, which takes half as long again.
    """
    for row in range(totals.size):
        begin = starts[row]
        end = starts[row + 1]
        totals[row], masked[row] = _add_row(counts[begin:end], genes[begin:end], flagged, per_gene)


@njit(nogil=True, cache=True)
def _check(data, indices, indptr, n_genes, counts, genes, starts):
    """Fill the arrays from ``counts`` on.

    Returns kind of problem, its row and position, cells sorted, zeros dropped.
    """
    most = np.int64(np.iinfo(counts.dtype).max)
    limit = min(most, np.int64(2147483647))
    kept = 0
    n_unsorted = 0
    n_zeros = 0
    starts[0] = 0
    for row in range(indptr.size - 1):
        begin = indptr[row]
        end = indptr[row + 1]
        after = kept + end - begin
        if _clean_row(
            data[begin:end],
            indices[begin:end],
            n_genes,
            limit,
            counts[kept:after],
            genes[kept:after],
        ):
            kept = after
            starts[row + 1] = kept
            continue
        # Stable, so that the problem found first does not depend on the sort.
        order = np.argsort(indices[begin:end], kind="mergesort")
        in_order = True
        last = np.int64(-1)
        for i in range(end - begin):
            p = begin + order[i]
            in_order &= order[i] == i
            gene = np.int64(indices[p])
            value = data[p]
            if gene < 0 or gene >= n_genes:
                return _OUT_OF_RANGE, row, p, n_unsorted, n_zeros
            if gene == last:
                return _DUPLICATE, row, p, n_unsorted, n_zeros
            last = gene
            # NaN fails every comparison, so each test is written to let only counts pass.
            if not value >= 0:
                if value != value:
                    return _NAN, row, p, n_unsorted, n_zeros
                if value < -1.7976931348623157e308:
                    return _INFINITE, row, p, n_unsorted, n_zeros
                return _NEGATIVE, row, p, n_unsorted, n_zeros
            if value > MAX_COUNT:
                if value > 1.7976931348623157e308:
                    return _INFINITE, row, p, n_unsorted, n_zeros
                return _TOO_LARGE, row, p, n_unsorted, n_zeros
            count = np.uint32(value)
            if count != value:
                return _FRACTIONAL, row, p, n_unsorted, n_zeros
            if count == 0:
                n_zeros += 1
            elif count > most:
                return _WIDER, row, p, n_unsorted, n_zeros
            else:
                counts[kept] = count
                genes[kept] = gene
                kept += 1
        n_unsorted += not in_order
        starts[row + 1] = kept
    return 0, 0, 0, n_unsorted, n_zeros


def check_counts(
    block: sp.csr_matrix, flagged: np.ndarray | None = None, *, dtype: np.dtype | type = np.uint8
) -> Checked:
    """Check a raw CSR block, convert it to integer counts and sum them.

    Parameters
    ----------
    block
        [cells x genes], any integer or float values, any integer indices, offsets that are
        monotone and agree with the values (``scatlas.io.matrices.layout.describe`` sees to it). Not
        changed. Indices may be anything: they are checked before they are used.
    flagged
        bool [genes]: genes over which each cell's total is taken as well; none when left out.
    dtype
        Type of the counts to try first. Where another block of the plate needed a wider one, this
        one hardly ever does without, and would be read twice.

    Returns
    -------
    The canonical block, or the first problem: an index outside the genes, a gene twice in a cell,
    or a value that is negative, fractional, NaN, infinite or above 2^32 - 1.
    """
    data = _as_compiled(block.data)
    indices = block.indices
    if indices.dtype not in (np.int32, np.int64):
        indices = indices.astype(np.int64)
    indptr = block.indptr.astype(np.int64, copy=False)
    n_cells, n_genes = block.shape
    flagged = np.zeros(n_genes, bool) if flagged is None else flagged
    genes = np.empty(data.size, np.uint16 if n_genes <= 2**16 else np.int32)
    starts = np.empty(indptr.size, np.int64)
    for width in COUNT_DTYPES[COUNT_DTYPES.index(np.dtype(dtype).type) :]:
        counts = np.empty(data.size, width)
        kind, row, p, n_unsorted, n_zeros = _check(
            data, indices, indptr, n_genes, counts, genes, starts
        )
        if kind != _WIDER:
            break
    totals, masked = np.zeros(n_cells, np.int64), np.zeros(n_cells, np.int64)
    per_gene = np.zeros((n_genes, 2), np.int64)
    sums = (totals, masked, per_gene)
    if kind:
        problem = Problem(PROBLEMS[kind], row, int(block.indices[p]), block.data[p].item())
        return Checked(counts, genes, starts, *sums, 0, n_unsorted, n_zeros, problem)
    kept = int(starts[-1])
    counts, genes = counts[:kept], genes[:kept]
    _add_rows(counts, genes, starts, flagged, *sums)
    highest = int(counts.max(initial=0))
    return Checked(counts, genes, starts, *sums, highest, n_unsorted, n_zeros, None)


def _as_compiled(data: np.ndarray) -> np.ndarray:
    """Values in one of four types, so that only four versions of the kernel are compiled."""
    if data.dtype in (np.float32, np.float64, np.int32, np.int64):
        return data
    if data.dtype.kind == "f":
        return data.astype(np.float32 if data.dtype.itemsize < 4 else np.float64)
    if data.dtype.kind == "u" and data.dtype.itemsize == 8:
        # Beyond int64 there are no counts either way: keep them too large, not negative.
        return np.minimum(data, np.uint64(2**63 - 1)).astype(np.int64)
    return data.astype(np.int64)
