"""Exact rank sums of groups of cells, gene by gene (Numba).

The nonzero values of a gene are sorted as 64-bit keys of value and group; zeros are one tie that
needs no storage. Twice the rank of a tied value is an integer, and so are the cubes in the tie
correction: nothing is rounded, and the order of cells changes nothing.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scatlas.arrays.array_types import Array, Block, Floats, Ints, UInt64Array, is_sparse
from scatlas.kernels import CsrArrays, csr_arrays
from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.counts.transpose_cpu import copy_segments, dense_to_csr, scatter

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray


# With fewer cells, sums of doubled ranks fit 64 bits and sums of cubes fit 94 bits.
MAX_CELLS = 2**31
_LOW = 2**32 - 1
# Values that a thread ranks at once, or those of one gene: their keys take 2 MB, so the L2 cache
# holds them. No other thread starts for less, because that takes as long.
_VALUES_PER_TASK = 2**18


class BlockNonzeros(NamedTuple):
    """Nonzero values of a block, sorted by gene."""

    counts: Ints  # number of values per gene
    values: Array
    codes: Array  # group of each value


class RankSums(NamedTuple):
    """Rank sums of the nonzero values of genes; :func:`standard_scores` adds the zeros."""

    # int64 [n_genes, n_groups]. Without a reference: twice the sum of the ranks of the group's
    # values among all cells. With a reference: sum over the values of the group of twice the number
    # of reference values below plus the number of equal ones (counting zeros).
    ranks: Ints
    # int64 [n_genes, n_groups, 2], sums of t^3 - t over ties of t values; the low 32 bits and the
    # high bits are summed separately. Without a reference: all ties, in the first group. With a
    # reference: for a group, ties among the values of both less ties in the reference; for the
    # reference, its ties.
    ties: Ints
    # int64 [n_genes], number of values below zero, of all cells or of the reference.
    below: Ints


def bytes_per_value(dtype: DTypeLike, n_groups: int) -> int:
    return _sortable_dtype(dtype).itemsize + _group_dtype(n_groups)().itemsize


def max_genes_at_once(n_groups: int) -> int:  # noqa: ARG001
    """Number of genes that can be ranked together."""
    return 2**31


def gather_nonzeros(
    x: Block, codes: Ints, *, new_column: Ints, n_groups: int
) -> list[BlockNonzeros]:
    """Nonzero values of rows with a group and genes with a `new_column` >= 0; `x` has no NaN."""
    if not is_sparse(x):
        x = np.asarray(x)
        if (new_column < 0).any():
            genes = np.flatnonzero(new_column >= 0)
            x, new_column = x[:, genes], new_column[genes]
        x = dense_to_csr(x.astype(_sortable_dtype(x.dtype), copy=False))
        assert is_sparse(x)
    rows = csr_arrays(x)
    rows = rows._replace(data=rows.data.astype(_sortable_dtype(rows.data.dtype), copy=False))
    counts = np.zeros(int(new_column.max(initial=-1)) + 1, dtype=np.int64)
    _count(rows, codes, new_column, counts)
    values = np.empty(int(counts.sum()), dtype=rows.data.dtype)
    out_codes = np.empty(values.size, dtype=_group_dtype(n_groups))
    scatter(rows, codes, new_column, np.cumsum(counts) - counts, values, out_codes)
    return [BlockNonzeros(counts, values, out_codes)]


class NonzerosByGene:
    """Nonzero values of all cells, sorted by gene; `counts` are those of each gene to be added."""

    def __init__(self, counts: Ints, dtype: DTypeLike, n_groups: int) -> None:
        ends = np.cumsum(counts)
        self._starts, self._n_groups = np.append(0, ends), n_groups
        self._next_slot = self._starts[:-1].copy()
        self._values = np.empty(self._starts[-1], dtype=_sortable_dtype(dtype))
        self._codes = np.empty(self._starts[-1], dtype=_group_dtype(n_groups))

    def add(self, block: BlockNonzeros) -> None:
        values = block.values.astype(self._values.dtype, copy=False)
        to = self._next_slot, self._values, self._codes
        copy_segments(values, block.codes, block.counts, 0, *to)
        self._next_slot += block.counts

    def rank_sums(self, zeros: Ints, reference: int | None, n_threads: int) -> RankSums:
        """Rank sums of the genes among all cells, or with a `reference` group that every other is
        compared with; `zeros` are the zeros of each gene among these.
        """
        n_genes = self._next_slot.size
        sums = RankSums(
            np.zeros((n_genes, self._n_groups), dtype=np.int64),
            np.zeros((n_genes, self._n_groups, 2), dtype=np.int64),
            np.zeros(n_genes, dtype=np.int64),
        )
        code = -1 if reference is None else reference

        def rank(genes: slice) -> None:
            starts = self._starts[genes.start : genes.stop + 1]
            entries = slice(starts[0], starts[-1])
            starts = starts - starts[0]
            keys = sorted_keys(self._values[entries], self._codes[entries], starts)
            _rank_genes(keys, starts, zeros[genes], code, RankSums(*(a[genes] for a in sums)))

        tasks = _tasks(self._starts)
        if len(tasks) == 1:
            rank(tasks[0])
            return sums
        with ThreadPoolExecutor(n_threads, "scatlas-ranks") as pool:
            list(pool.map(rank, tasks))
        return sums


def _tasks(starts: Ints) -> list[slice]:
    """Genes that a thread ranks at once, for the first value of each gene and the end."""
    tasks, first = [], 0
    while first < starts.size - 1:
        last = int(np.searchsorted(starts, starts[first] + _VALUES_PER_TASK, side="right")) - 1
        tasks.append(slice(first, max(last, first + 1)))
        first = tasks[-1].stop
    return tasks


def sorted_keys(values: Array, codes: NDArray[np.unsignedinteger], starts: Ints) -> UInt64Array:
    """Keys, sorted for each gene: 32 bits that order the values, then 32 bits of the group.

    The highest bit is set for values above zero; values of 64 bits are replaced by their dense
    ranks. Values are without zeros and NaN, those of gene i from ``starts[i]`` on.
    """
    codes = codes.astype(np.uint64)
    genes = [slice(*ends) for ends in pairwise(starts.tolist())]
    if values.itemsize <= 4:
        keys = _sortable_bits(values) << np.uint64(32) | codes
    else:
        keys = np.empty(values.size, dtype=np.uint64)
        for gene in genes:
            keys[gene] = _keys_by_rank(values[gene], codes[gene])
    for gene in genes:
        keys[gene].sort()
    return keys


def _keys_by_rank(values: Array, codes: UInt64Array) -> UInt64Array:
    """Keys of the values of one gene, with their dense ranks in place of their bits."""
    order = np.argsort(values)
    values = values[order]
    number = np.zeros(values.size, dtype=np.uint64)
    np.cumsum(values[1:] != values[:-1], out=number[1:])
    number |= (values > 0).astype(np.uint64) << np.uint64(31)
    return number << np.uint64(32) | codes[order]


def _sortable_bits(values: Array) -> UInt64Array:
    """32 bits per value that sort as the values do; the highest bit is set for values above 0."""
    high = np.uint32(2**31)
    if values.dtype.kind != "f":
        return (values.astype(np.int64) + 2**31).astype(np.uint64)
    raw = values.view(np.uint32)
    return np.where(raw & high, ~raw, raw | high).astype(np.uint64)


def _sortable_dtype(dtype: DTypeLike) -> np.dtype:
    """Type in which values are gathered: it holds all of them and sorts by 32 or 64 bits. Unsigned
    integers above 2**63 do not occur, as their sums do not fit 64 bits.
    """
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return np.dtype(np.float64 if dtype.itemsize > 4 else np.float32)
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    return np.dtype(np.int64) if dtype in (np.uint32, np.uint64) else dtype


def _group_dtype(n_groups: int) -> type[np.unsignedinteger]:
    return np.uint16 if n_groups <= 2**16 else np.uint32


@njit(nogil=True, cache=True)
def _count(rows: CsrArrays, codes: Ints, new_column: Ints, counts: Array) -> None:
    for row in range(codes.size):
        if codes[row] < 0:
            continue
        for at in range(rows.indptr[row], rows.indptr[row + 1]):
            to = new_column[rows.indices[at]]
            if to >= 0 and rows.data[at] != 0:
                counts[to] += 1


@njit(nogil=True, cache=True)
def _cube(limbs: Ints, t: int, sign: int) -> None:
    """Add or subtract t^3 - t for t below 2^31: the low 32 bits and the high bits separately."""
    square = t * t
    low = (square & 0xFFFFFFFF) * t
    limbs[0] += sign * ((low & 0xFFFFFFFF) - t)
    limbs[1] += sign * ((square >> 32) * t + (low >> 32))


@njit(nogil=True, cache=True)
def _rank_gene(
    keys: UInt64Array, n_zeros: int, reference: int, ranks: Ints, ties: Ints
) -> np.int64:
    """Add the rank sums and ties of a gene; returns the number of values below zero."""
    below = np.int64(0)
    seen = np.int64(0)  # values of the reference before this tie
    start = 0
    while start < keys.size:
        run = keys[start] >> np.uint64(32)
        first = np.int64(n_zeros) if keys[start] >> np.uint64(63) else np.int64(0)
        stop, equal = start, np.int64(0)
        while stop < keys.size and keys[stop] >> np.uint64(32) == run:
            equal += np.int64(keys[stop] & np.uint64(0xFFFFFFFF)) == reference
            stop += 1
        if reference < 0:
            n = np.int64(stop - start)
            doubled = 2 * (first + start) + n + 1
            for at in range(start, stop):
                ranks[np.int64(keys[at] & np.uint64(0xFFFFFFFF))] += doubled
            _cube(ties[0], n, 1)
            below += 0 if keys[start] >> np.uint64(63) else n
        else:
            doubled = 2 * (first + seen) + equal
            at = start
            while at < stop:
                code = np.int64(keys[at] & np.uint64(0xFFFFFFFF))
                n = np.int64(0)
                while at < stop and np.int64(keys[at] & np.uint64(0xFFFFFFFF)) == code:
                    n += 1
                    at += 1
                if code == reference:
                    _cube(ties[code], n, 1)
                else:
                    ranks[code] += n * doubled
                    _cube(ties[code], n + equal, 1)
                    _cube(ties[code], equal, -1)
            seen += equal
            below += 0 if keys[start] >> np.uint64(63) else equal
        start = stop
    return below


@njit(nogil=True, cache=True)
def _rank_genes(
    keys: UInt64Array, starts: Ints, zeros: Ints, reference: int, sums: RankSums
) -> None:
    """Fill the sums of some genes, whose keys begin at `starts`."""
    for gene in range(zeros.size):
        own, ranks, ties = keys[starts[gene] : starts[gene + 1]], sums.ranks[gene], sums.ties[gene]
        sums.below[gene] = _rank_gene(own, zeros[gene], reference, ranks, ties)


def standard_scores(
    sums: RankSums, nonzero: Ints, sizes: Ints, reference: int | None, *, tie_correct: bool
) -> Floats:
    """Standard scores of the rank sums of groups (Wilcoxon 1945), by the normal approximation: rank
    sum less expected rank sum, over sqrt(c n m (n + m + 1) / 12), ``[n_groups, n_genes]``.

    With tie correction (c = 1 - sum(t^3 - t) / ((n + m)^3 - (n + m))) a gene with one value in all
    cells gives NaN. Scores of the reference are arbitrary.
    """
    own_zeros = sizes[:, None] - nonzero
    n = sizes.astype(np.float64)[:, None]
    ties = np.moveaxis(sums.ties, 0, 1)
    if reference is None:
        zeros, n_cells = own_zeros.sum(axis=0), sizes.sum()
        doubled = sums.ranks.T + own_zeros * (2 * sums.below + zeros + 1)
        doubled -= sizes[:, None] * (n_cells + 1)
        m, tied, all_cells = n_cells - n, ties[:1] + _cubes(zeros)[None], n_cells[None, None]
    else:
        zeros = own_zeros[reference]
        doubled = sums.ranks.T + own_zeros * (2 * sums.below + zeros)
        doubled -= sizes[:, None] * sizes[reference]
        m, all_cells = n[reference], sizes[:, None] + sizes[reference]
        tied = ties + ties[[reference]] + _cubes(own_zeros + zeros)
    variance = n * m * (all_cells + 1) / 12.0
    if tie_correct:
        untied = _cubes(all_cells)
        variance = variance * _as_float(untied - tied) / _as_float(untied)
    with np.errstate(invalid="ignore"):
        return doubled / 2.0 / np.sqrt(variance)


def _cubes(t: Ints) -> Ints:
    """t^3 - t as low 32 bits and high bits, ``[..., 2]``, as in :func:`_cube`."""
    square = t * t
    low = (square & _LOW) * t
    return np.stack([(low & _LOW) - t, (square >> 32) * t + (low >> 32)], axis=-1)


def _as_float(limbs: Ints) -> Floats:
    low, high = limbs[..., 0], limbs[..., 1]
    return (high + (low >> 32)) * 2.0**32 + (low & _LOW)
