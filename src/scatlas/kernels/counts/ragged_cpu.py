"""Cells as lists of gene tokens and values, in any order, as in Tahoe-100M, converted to CSR.

Values are placed in one slot per gene, at 3 ns per value where a sort takes 30.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scatlas.kernels import COUNT_DTYPES, CsrArrays, gene_dtype
from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from scatlas.arrays.array_types import Array, Ints

# Types of the values, narrowest first, as memory is what a value costs here. The last is for values
# that are no counts, or zero, which check_counts looks at.
_TYPES = [np.dtype(kind) for kind in (*COUNT_DTYPES, np.float64)]
_DONE, _OTHER = -1, -2
# Genes of a word that are written before a look at how many there are: where the processor guesses
# that number wrong, it loses the time of four.
_AT_ONCE = 4


class Marker(NamedTuple):
    """First entry of each list that is no gene: its token and its value."""

    token: int
    value: float


class Lists(NamedTuple):
    """Lists of cells: tokens of any width, float32 or float64 values, and int64 offsets."""

    tokens: Ints
    values: Array
    offsets: Ints


class RaggedBlock(NamedTuple):
    """CSR arrays, indices ascending, and how many entries were added to an earlier one; the values
    are unsigned if all are counts from 1 on, else float64.
    """

    data: Array
    indices: Array
    indptr: Ints
    n_repeated: int


@njit(nogil=True, cache=True)
def _gene(token: int, gene_of_token: Ints, n_genes: int) -> np.int64:
    """Gene of a token; -1 for none."""
    if token < 0 or token >= gene_of_token.size or gene_of_token[token] >= n_genes:
        return np.int64(-1)
    return np.int64(gene_of_token[token])


@njit(nogil=True, cache=True)
def _fill_slots(
    tokens: Ints, values: Array, gene_of_token: Ints, limit: int, slots: Array, taken: Array
) -> int:
    """Add the counts of a cell, up to ``limit``, to the slots of their genes; return the position
    of an unknown token, or whether all were added or a value is another.
    """
    is_other: Any = False
    for i in range(tokens.size):
        gene = _gene(tokens[i], gene_of_token, slots.size)
        if gene < 0:
            return i
        value = values[i]
        fits = (value >= 1) & (value <= limit) & (np.floor(value) == value)
        is_other |= not fits
        count = np.int64(value if fits else 1)  # undefined for one that does not fit
        word, bit = gene >> 6, np.uint64(1) << np.uint64(gene & 63)
        if taken[word] & bit:
            count += np.int64(slots[gene])
            is_other |= count > limit
        taken[word] |= bit
        slots[gene] = count
    return _OTHER if is_other else _DONE


@njit(nogil=True, cache=True)
def _fill_slots_with_any(
    tokens: Ints, values: Array, gene_of_token: Ints, slots: Array, taken: Array
) -> int:
    """As ``_fill_slots``, for any values; nothing is added to one that is no count."""
    for i in range(tokens.size):
        gene = _gene(tokens[i], gene_of_token, slots.size)
        if gene < 0:
            return i
        value = np.float64(values[i])
        word, bit = gene >> 6, np.uint64(1) << np.uint64(gene & 63)
        if taken[word] & bit:
            before = np.float64(slots[gene])
            if not (before >= 0 and np.floor(before) == before):
                continue
            if value >= 0 and np.floor(value) == value:
                value += before
        taken[word] |= bit
        slots[gene] = value
    return _DONE


@njit(nogil=True, cache=True)
def _n_bits(word: np.uint64) -> np.uint64:
    """Number of ones; compiled to one instruction."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    twos = np.uint64(0x3333333333333333)
    word = (word & twos) + ((word >> np.uint64(2)) & twos)
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (word * np.uint64(0x0101010101010101)) >> np.uint64(56)


@njit(nogil=True, cache=True)
def _collect(slots: Array, taken: Array, data: Array, indices: Array, start: int) -> np.int64:
    """Append the slots that are taken, in order, and free them; return the end. ``indices`` has
    room for ``_AT_ONCE`` more. An index without a sign needs no test of it.
    """
    stop, one = np.int64(start), np.uint64(1)
    for word in range(taken.size):
        bits, first, at = taken[word], word << 6, stop
        taken[word] = 0
        stop += np.int64(_n_bits(bits))
        for _ in range(_AT_ONCE):
            indices[np.uint64(at)] = first + np.int64(_n_bits(~bits & (bits - one)))
            bits &= bits - one
            at += 1
        while bits:
            indices[np.uint64(at)] = first + np.int64(_n_bits(~bits & (bits - one)))
            bits &= bits - one
            at += 1
    own, out = indices[start:stop], data[start:stop]
    for i in range(own.size):
        out[i] = slots[own[i]]
    return stop


@njit(nogil=True, cache=True)
def _convert(
    lists: Lists,
    gene_of_token: Ints,
    marker: Marker,
    limit: int,
    slots: Array,
    taken: Array,
    out: CsrArrays,
) -> tuple[int, int, int]:
    """Append cells to `out` (a ``limit`` of 0: any values); return what `_fill_slots` returns, its
    row, entries repeated.
    """
    n_repeated = 0
    for row in range(lists.offsets.size - 1):
        begin, end = lists.offsets[row], lists.offsets[row + 1]
        is_first = begin < end and lists.tokens[begin] == marker.token
        if is_first and lists.values[begin] == marker.value:
            begin += 1
        own, amounts = lists.tokens[begin:end], lists.values[begin:end]
        if limit:
            at = _fill_slots(own, amounts, gene_of_token, limit, slots, taken)
        else:
            at = _fill_slots_with_any(own, amounts, gene_of_token, slots, taken)
        if at != _DONE:
            taken[:] = 0
            return (at if at < 0 else begin + at), row, 0
        start = out.indptr[row]
        stop = _collect(slots, taken, out.data, out.indices, start)
        n_repeated += end - begin - (stop - start)
        out.indptr[row + 1] = stop
    return _DONE, 0, n_repeated


class RaggedToCsr:
    """Converts lists of tokens and values to one CSR block, part by part.

    It has room for ``n_cells`` with ``n_entries``. In ``gene_of_token`` (uint16 or uint32) a token
    of no gene has any number from ``n_genes`` on. A type wider than ``dtype`` costs a copy: give
    that of earlier blocks.
    """

    def __init__(
        self,
        n_cells: int,
        n_entries: int,
        gene_of_token: Ints,
        n_genes: int,
        *,
        marker: Marker | None = None,
        dtype: DTypeLike = np.uint8,
    ) -> None:
        self._gene_of_token = gene_of_token
        self._marker = marker or Marker(np.iinfo(np.int64).min, 0.0)
        self._data = np.empty(n_entries, dtype)
        self._slots = np.empty(n_genes, dtype)
        self._taken = np.zeros(n_genes // 64 + 1, np.uint64)
        self._indices = np.empty(n_entries + _AT_ONCE, gene_dtype(n_genes))
        self._indptr = np.zeros(n_cells + 1, np.int64)
        self.n_cells = self._n_repeated = 0

    def append(self, lists: Lists) -> tuple[int, int] | None:
        """Append cells; the row and token of the first entry without a gene, if there is one."""
        while True:
            kind = self._data.dtype
            limit = int(np.iinfo(kind).max) if kind.kind == "u" else 0
            out = CsrArrays(self._data, self._indices, self._indptr[self.n_cells :])
            at, row, n_repeated = _convert(
                *(lists, self._gene_of_token, self._marker, limit, self._slots, self._taken, out)
            )
            if at >= 0:
                return row, int(lists.tokens[at])
            if at == _DONE:
                break
            wider = _TYPES[_TYPES.index(kind) + 1]
            # Those of cells before, which the next part follows.
            self._data, self._slots = self._data.astype(wider), self._slots.astype(wider)
        self.n_cells += lists.offsets.size - 1
        self._n_repeated += n_repeated
        return None

    def block(self) -> RaggedBlock:
        """The cells so far."""
        indptr = self._indptr[: self.n_cells + 1]
        kept = int(indptr[-1])
        return RaggedBlock(self._data[:kept], self._indices[:kept], indptr, self._n_repeated)
