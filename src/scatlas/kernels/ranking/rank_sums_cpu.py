"""Exact rank sums of groups of cells, gene by gene (Numba).

The values of some genes are gathered from all blocks, zeros left out: they are one tie that needs
no storage. A gene's values are sorted as 64-bit keys of value and group, and a walk over them adds
up integers alone. Twice the rank of a tied value is whole, and so are the cubes of the numbers of
equal values, which the correction for ties takes: nothing is rounded, no order shows.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import sparse

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    Parts = list["BlockNonzeros"]

# Sums of doubled ranks and of cubes fit 64 and 94 bits for fewer cells than this.
MOST_CELLS = 2**31
_LOW = 2**32 - 1
# Genes that a thread ranks at a time.
_GENES = 32


class BlockNonzeros(NamedTuple):
    """Nonzero values of a block, gene after gene."""

    counts: NDArray[np.int64]  # of each gene
    values: NDArray
    codes: NDArray[np.integer]


class RankSums(NamedTuple):
    """What the nonzero values of genes add up to; :func:`scores_of` has the zeros join them.

    Attributes
    ----------
    ranks
        int64 ``[n_genes, n_groups]``. Without a reference: twice the ranks of the group's values
        among those of all cells. With one: for each value of the group, twice the number of the
        reference's values below it and the number of those equal to it (zeros among them).
    ties
        int64 ``[n_genes, n_groups, 2]``, t^3 - t of the numbers t of equal values, low 32 bits
        and the rest, which are added up apart. Without a reference all in the first group. With
        one: of the values of both for the group, less those of the reference alone, which stand
        with itself.
    below
        int64 ``[n_genes]``, values below zero: of all cells, or of the reference.
    """

    ranks: NDArray[np.int64]
    ties: NDArray[np.int64]
    below: NDArray[np.int64]


def bytes_per_value(dtype: DTypeLike, n_groups: int) -> int:
    """Memory that a gathered value takes."""
    return _stored(dtype).itemsize + _code_type(n_groups)().itemsize


def most_genes(n_groups: int) -> int:  # noqa: ARG001
    """Genes that can be ranked together."""
    return 2**31


def take(
    x: NDArray | sparse.csr_matrix | sparse.csr_array,
    codes: NDArray[np.int64],
    *,
    place: NDArray[np.int64],
    n_groups: int,
) -> Parts:
    """Nonzero values of some genes and cells of a block.

    Parameters
    ----------
    x
        Block ``[n, n_genes]``, dense or CSR without duplicated entries, of any real dtype and index
        width, without NaN.
    codes
        Group of each row; rows with a negative code are left out.
    place
        Where each gene goes, int64 ``[n_genes]``; genes with -1 are left out.
    n_groups
        Number of groups.
    """
    if not sparse.issparse(x):
        genes = np.flatnonzero(place >= 0)
        values = np.asarray(x)[:, genes]
        # SciPy holds no float16.
        x, place = sparse.csr_matrix(values.astype(_stored(values.dtype), copy=False)), place[genes]
    rows = np.flatnonzero(codes >= 0)
    indptr = x.indptr.astype(np.int64, copy=False)
    values = x.data.astype(_stored(x.data.dtype), copy=False)
    counts = np.zeros(int(place.max(initial=-1)) + 1, dtype=np.int64)
    _count(values, x.indices, indptr, rows, place, counts)
    ends = np.cumsum(counts)
    out = np.empty(ends[-1] if ends.size else 0, dtype=values.dtype)
    groups = codes[rows].astype(_code_type(n_groups))
    out_codes = np.empty(out.size, dtype=groups.dtype)
    starts = ends - counts
    _take(values, x.indices, indptr, rows, groups, place, starts, out, out_codes)
    return [BlockNonzeros(counts, out, out_codes)]


class NonzerosByGene:
    """Values of some genes of all cells, gene after gene.

    Parameters
    ----------
    counts
        int64 ``[n_genes]``, values of each gene that will be added.
    dtype
        Type of the matrix.
    n_groups
        Number of groups.
    """

    def __init__(self, counts: NDArray[np.int64], dtype: DTypeLike, n_groups: int) -> None:
        ends = np.cumsum(counts)
        self._starts, self._n_groups = np.append(0, ends), n_groups
        self._next = self._starts[:-1].copy()
        self._values = np.empty(self._starts[-1], dtype=_stored(dtype))
        self._codes = np.empty(self._starts[-1], dtype=_code_type(n_groups))

    def add(self, taken: BlockNonzeros) -> None:
        """Add what was taken of a block."""
        values = taken.values.astype(self._values.dtype, copy=False)
        _append(taken.counts, values, taken.codes, self._next, self._values, self._codes)

    def rank_sums(
        self, zeros: NDArray[np.int64], reference: int | None, n_threads: int
    ) -> RankSums:
        """Rank sums of the genes, when all blocks were added.

        Parameters
        ----------
        zeros
            int64 ``[n_genes]``, zeros of the gene: of all cells, or of the reference.
        reference
            Group that each other one is ranked with; None: each is ranked among all cells.
        n_threads
            Threads that rank genes.
        """
        n_genes = self._next.size
        sums = RankSums(
            np.zeros((n_genes, self._n_groups), dtype=np.int64),
            np.zeros((n_genes, self._n_groups, 2), dtype=np.int64),
            np.zeros(n_genes, dtype=np.int64),
        )
        code = -1 if reference is None else reference

        def rank(first: int) -> None:
            for gene in range(first, min(first + _GENES, n_genes)):
                where = slice(self._starts[gene], self._starts[gene + 1])
                keys = sorted_keys(self._values[where], self._codes[where])
                ranks, ties = sums.ranks[gene], sums.ties[gene]
                sums.below[gene] = _walk(keys, zeros[gene], code, ranks, ties)

        with ThreadPoolExecutor(n_threads, "scatlas-ranks") as pool:
            list(pool.map(rank, range(0, n_genes, _GENES)))
        return sums


def sorted_keys(values: NDArray, codes: NDArray[np.unsignedinteger]) -> NDArray[np.uint64]:
    """Sorted keys of values and groups: 32 bits that order the values, then 32 of the group.

    The highest bit says that the value is above zero. Equal values have equal bits, and those bits
    alone count: values of 64 bits are numbered instead.

    Parameters
    ----------
    values
        Nonzero and no NaN, ``[n]``.
    codes
        Group of each, ``[n]``.
    """
    codes = codes.astype(np.uint64)
    if values.itemsize <= 4:
        keys = _ordered(values) << np.uint64(32) | codes
    else:
        order = np.argsort(values)
        values = values[order]
        number = np.zeros(values.size, dtype=np.uint64)
        np.cumsum(values[1:] != values[:-1], out=number[1:])
        number |= (values > 0).astype(np.uint64) << np.uint64(31)
        keys = number << np.uint64(32) | codes[order]
    keys.sort()
    return keys


def _ordered(values: NDArray) -> NDArray[np.uint64]:
    """32 bits of each value that order as the values do; the highest is set for those above 0."""
    high = np.uint32(2**31)
    if values.dtype.kind != "f":
        return (values.astype(np.int64) + 2**31).astype(np.uint64)
    raw = values.view(np.uint32)
    return np.where(raw & high, ~raw, raw | high).astype(np.uint64)


def _stored(dtype: DTypeLike) -> np.dtype:
    """Type in which values are gathered, which holds all of them and has an order of 32 or 64 bits.

    Unsigned integers above 2**63 do not come here: their sums do not fit 64 bits.
    """
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return np.dtype(np.float64 if dtype.itemsize > 4 else np.float32)
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    return np.dtype(np.int64) if dtype in (np.uint32, np.uint64) else dtype


def _code_type(n_groups: int) -> type[np.unsignedinteger]:
    return np.uint16 if n_groups <= 2**16 else np.uint32


@njit(nogil=True, cache=True)
def _count(data, indices, indptr, rows, place, counts):
    for row in rows:
        for at in range(indptr[row], indptr[row + 1]):
            to = place[indices[at]]
            if to >= 0 and data[at] != 0:
                counts[to] += 1


@njit(nogil=True, cache=True)
def _take(data, indices, indptr, rows, codes, place, starts, values, out_codes):
    for i in range(rows.size):
        for at in range(indptr[rows[i]], indptr[rows[i] + 1]):
            gene = place[indices[at]]
            if gene >= 0 and data[at] != 0:
                to = starts[gene]
                values[to] = data[at]
                out_codes[to] = codes[i]
                starts[gene] = to + 1


@njit(nogil=True, cache=True)
def _append(counts, values, codes, starts, out_values, out_codes):
    at = 0
    for gene in range(counts.size):
        to = starts[gene]
        for _ in range(counts[gene]):
            out_values[to] = values[at]
            out_codes[to] = codes[at]
            at += 1
            to += 1
        starts[gene] = to


@njit(nogil=True, cache=True)
def _cube(limbs, t, sign):
    """Add or subtract t^3 - t, of t below 2^31, by its low 32 bits and the rest."""
    square = t * t
    low = (square & 0xFFFFFFFF) * t
    limbs[0] += sign * ((low & 0xFFFFFFFF) - t)
    limbs[1] += sign * ((square >> 32) * t + (low >> 32))


@njit(nogil=True, cache=True)
def _walk(keys, zeros, reference, ranks, ties):
    """Add up the ranks and ties of a gene; returns how many values are below zero."""
    below = np.int64(0)
    seen = np.int64(0)  # of the reference
    start = 0
    while start < keys.size:
        run = keys[start] >> np.uint64(32)
        first = np.int64(zeros) if keys[start] >> np.uint64(63) else np.int64(0)
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


def scores_of(
    found: RankSums,
    nonzero: NDArray[np.int64],
    sizes: NDArray[np.int64],
    reference: int | None,
    *,
    tie_correct: bool,
) -> NDArray[np.float64]:
    """Standard scores of the rank sums of groups (Wilcoxon), by the normal approximation.

    Parameters
    ----------
    found
        Rank sums of the nonzero values of some genes.
    nonzero
        int64 ``[n_groups, n_genes]``, nonzero values of each group.
    sizes
        int64 ``[n_groups]``, cells of each group.
    reference
        Group that each other one is compared with; None: each with all other cells.
    tie_correct
        Divide by the standard deviation that tied values leave.

    Returns
    -------
    float64 ``[n_groups, n_genes]``: the rank sum less its mean, which is exact, over its standard
    deviation sqrt(c n m (n + m + 1) / 12). NaN for a gene of one value in all cells if ties are
    corrected for, and arbitrary for the reference.

    References
    ----------
    F. Wilcoxon, Biometrics Bulletin 1 (1945); c = 1 - sum(t^3 - t) / ((n + m)^3 - (n + m)) as in
    ``scipy.stats.tiecorrect``.
    """
    own_zeros = sizes[:, None] - nonzero
    n = sizes.astype(np.float64)[:, None]
    ties = np.moveaxis(found.ties, 0, 1)
    if reference is None:
        zeros, of_all = own_zeros.sum(axis=0), sizes.sum()
        doubled = found.ranks.T + own_zeros * (2 * found.below + zeros + 1)
        doubled -= sizes[:, None] * (of_all + 1)
        m, tied, all_cells = of_all - n, ties[:1] + _cubes(zeros)[None], of_all[None, None]
    else:
        zeros = own_zeros[reference]
        doubled = found.ranks.T + own_zeros * (2 * found.below + zeros)
        doubled -= sizes[:, None] * sizes[reference]
        m, all_cells = n[reference], sizes[:, None] + sizes[reference]
        tied = ties + ties[[reference]] + _cubes(own_zeros + zeros)
    variance = n * m * (all_cells + 1) / 12.0
    if tie_correct:
        most = _cubes(all_cells)
        variance = variance * _as_float(most - tied) / _as_float(most)
    with np.errstate(invalid="ignore"):
        return doubled / 2.0 / np.sqrt(variance)


def _cubes(t: NDArray[np.int64]) -> NDArray[np.int64]:
    """t^3 - t as low 32 bits and the rest, ``[..., 2]``, as :func:`_cube` has it."""
    square = t * t
    low = (square & _LOW) * t
    return np.stack([(low & _LOW) - t, (square >> 32) * t + (low >> 32)], axis=-1)


def _as_float(limbs: NDArray[np.int64]) -> NDArray[np.float64]:
    low, high = limbs[..., 0], limbs[..., 1]
    return (high + (low >> 32)) * 2.0**32 + (low & _LOW)
