"""Cells as lists of gene tokens and values, in any order, converted to CSR.

The Parquet release of Tahoe-100M has such lists. A cell whose tokens ascend is copied; the values
of any other are placed in one slot per gene and read back in order, at 2 ns per value where a sort
takes 30.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scatlas.kernels import gene_dtype
from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike

    from scatlas.arrays.array_types import Array, Ints

_UNKNOWN, _TOO_LARGE, _OTHER = 1, 2, 3
_PROBLEMS = ("", "unknown", "too_large")
# Types of the counts, narrowest first: each value is a whole number from 1 on. The type of the
# lists stands for all others, which check_counts looks at. Memory is what a value costs here.
_COUNTS = (np.uint8, np.uint16)
# Position of the lowest bit of a word: multiplication by this constant moves a number that only
# this bit has into the highest six bits (Leiserson, Prokop, Randall 1998).
_DEBRUIJN = np.uint64(0x03F79D71B4CB0A89)
_POSITION = np.zeros(64, np.int64)
for _bit in range(64):
    _POSITION[((int(_DEBRUIJN) << _bit) % 2**64) >> 58] = _bit


class Marker(NamedTuple):
    """First entry of each list that is no gene: its token and its value."""

    token: int
    value: float


class RaggedProblem(NamedTuple):
    """The first entry that cannot be used: ``unknown`` token, or ``too_large`` sum of parts."""

    kind: str
    row: int
    token: int
    value: float


@njit(nogil=True, cache=True)
def _copy_ascending(
    tokens: Ints, values: Array, gene_of_token: Ints, n_genes: int, limit: int, data: Array,
    indices: Array,
) -> bool:  # fmt: skip
    """Copy a cell whose genes ascend; False for any other, and for odd tokens or values."""
    last = np.int64(-1)
    odd = False
    for i in range(tokens.size):
        token = tokens[i]
        if token < 0 or token >= gene_of_token.size:
            return False
        gene = np.int64(gene_of_token[token])
        if gene <= last or gene >= n_genes:
            return False
        last = gene
        indices[i] = gene
        value = values[i]
        is_odd = _is_odd(value, limit)
        odd |= is_odd
        # The conversion of a value that does not fit would be undefined.
        data[i] = 1 if is_odd else value
    return not odd


@njit(nogil=True, cache=True)
def _is_odd(value: Any, limit: int) -> bool:
    """Whether a value is no count from 1 to ``limit``, where there is a limit."""
    return limit > 0 and not (value >= 1 and value <= limit and np.floor(value) == value)


@njit(nogil=True, cache=True)
def _place(
    tokens: Ints, values: Array, gene_of_token: Ints, n_genes: int, limit: int, slots: Array,
    taken: Array,
) -> tuple[int, int]:  # fmt: skip
    """Add the values of a cell to the slots of their genes; the problem and its position."""
    odd = False
    for i in range(tokens.size):
        token = tokens[i]
        if token < 0 or token >= gene_of_token.size:
            return _UNKNOWN, i
        gene = np.int64(gene_of_token[token])
        if gene >= n_genes:
            return _UNKNOWN, i
        value = values[i]
        word, bit = gene >> 6, np.uint64(1) << np.uint64(gene & 63)
        if taken[word] & bit:
            total = slots[gene] + value
            # Floating point of 32 bits holds each whole number up to 2^24.
            if np.float64(total) != np.float64(slots[gene]) + np.float64(value):
                return _TOO_LARGE, i
            value = total
        taken[word] |= bit
        is_odd = _is_odd(value, limit)
        odd |= is_odd
        slots[gene] = 1 if is_odd else value
    return (_OTHER, 0) if odd else (0, 0)


@njit(nogil=True, cache=True)
def _collect(slots: Array, taken: Array, data: Array, indices: Array) -> int:
    """Read the slots that are taken, in order, and free them; their number."""
    n = 0
    for word in range(taken.size):
        bits = taken[word]
        while bits:
            low = bits & (~bits + np.uint64(1))
            gene = (word << 6) + _POSITION[(low * _DEBRUIJN) >> np.uint64(58)]
            indices[n] = gene
            data[n] = slots[gene]
            n += 1
            bits ^= low
        taken[word] = 0
    return n


@njit(nogil=True, cache=True)
def _convert(
    tokens: Ints,
    values: Array,
    offsets: Ints,
    gene_of_token: Ints,
    n_genes: int,
    marker_token: int,
    marker_value: float,
    limit: int,
    slots: Array,
    taken: Array,
    data: Array,
    indices: Array,
    indptr: Ints,
    first: int,
) -> tuple[int, int, int, int]:
    """Append cells from row ``first`` on; the problem, its row and position, entries repeated."""
    n_repeated = 0
    stop = indptr[first]
    for row in range(offsets.size - 1):
        begin, end = offsets[row], offsets[row + 1]
        if begin < end and tokens[begin] == marker_token and values[begin] == marker_value:
            begin += 1
        start, stop = stop, stop + end - begin
        own, amounts = tokens[begin:end], values[begin:end]
        to_data, to_indices = data[start:stop], indices[start:stop]
        if not _copy_ascending(own, amounts, gene_of_token, n_genes, limit, to_data, to_indices):
            problem, at = _place(own, amounts, gene_of_token, n_genes, limit, slots, taken)
            if problem:
                return problem, row, begin + at, n_repeated
            n = _collect(slots, taken, to_data, to_indices)
            n_repeated += end - begin - n
            stop = start + n
        indptr[first + row + 1] = stop
    return 0, 0, 0, n_repeated


class Lists(NamedTuple):
    """Lists of several cells: int64 tokens, float32 or float64 values, and int64 offsets."""

    tokens: Ints
    values: Array
    offsets: Ints


class RaggedBlock(NamedTuple):
    """CSR arrays; indices ascend in each cell and none is there twice.

    Attributes
    ----------
    data
        uint8 or uint16 if all values are counts from 1 on that this type holds, else of the type of
        the lists.
    indices
        uint16 up to 65,536 genes, else int32.
    indptr
        int64 [cells + 1].
    n_repeated
        Entries that were added to an earlier one of the same cell and gene.
    problem
        The first entry that cannot be used, and the number of its lists; the arrays are not valid
        then.
    """

    data: Array
    indices: Array
    indptr: Ints
    n_repeated: int
    problem: tuple[int, RaggedProblem] | None


def ragged_to_csr(
    parts: Sequence[Lists],
    gene_of_token: Ints,
    n_genes: int,
    *,
    marker: Marker | None = None,
    dtype: DTypeLike = np.uint8,
) -> RaggedBlock:
    """Convert lists of tokens and values to one CSR block.

    Parameters
    ----------
    parts
        Lists of the cells, in order, with values of one type.
    gene_of_token
        uint16 or uint32 [tokens]: gene of each token; of no gene, any number from ``n_genes`` on.
    n_genes
        Number of genes.
    marker
        Entry at the beginning of a cell that is left out.
    dtype
        Type of the counts to try first. A type that is too narrow costs another pass: give that of
        earlier blocks.
    """
    kinds = [np.dtype(kind) for kind in _COUNTS]
    floats = parts[0].values.dtype
    tried = [*kinds[kinds.index(np.dtype(dtype)) :], floats] if dtype in kinds else [floats]
    n_entries = sum(part.tokens.size for part in parts)
    indices = np.empty(n_entries, gene_dtype(n_genes))
    indptr = np.zeros(sum(part.offsets.size - 1 for part in parts) + 1, np.int64)
    token, value = marker or Marker(np.iinfo(np.int64).min, 0.0)
    for kind in tried:
        data, first, n_repeated = np.empty(n_entries, kind), 0, 0
        limit = 0 if kind == floats else int(np.iinfo(kind.type).max)
        slots, taken = np.zeros(n_genes, kind), np.zeros(n_genes // 64 + 1, np.uint64)
        number, wrong = 0, 0
        for number, (tokens, values, offsets) in enumerate(parts):  # noqa: B007
            wrong, row, at, repeated = _convert(
                *(tokens, values, offsets, gene_of_token, n_genes, token, value, limit),
                *(slots, taken, data, indices, indptr, first),
            )
            if wrong:
                break
            first += offsets.size - 1
            n_repeated += repeated
        if wrong in (_UNKNOWN, _TOO_LARGE):
            problem = RaggedProblem(_PROBLEMS[wrong], row, int(tokens[at]), float(values[at]))
            return RaggedBlock(data, indices, indptr, n_repeated, (number, problem))
        if not wrong:
            break
    kept = int(indptr[-1])
    return RaggedBlock(data[:kept], indices[:kept], indptr, n_repeated, None)
