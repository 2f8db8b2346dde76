"""Random subsampling of the counts of one block (Numba), in integers.

Each cell has its own stream of random numbers, so that a seed and a cell give the same counts on
any machine and in any block. The i-th word of a cell is a function of the seed, the cell and i:
Philox4x32-10 (Salmon et al., SC '11). Numbers below a bound have no bias (Lemire, ACM TOMACS 29,
2019). Without replacement a count is kept with the probability (counts still to keep) / (counts
still to come): Knuth, The Art of Computer Programming 2, section 3.4.2, algorithm S.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from scatlas.arrays.array_types import Array, Block, Ints, UInt64Array, is_sparse, row_offsets
from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import DTypeLike

# Most counts per cell: selection uses random numbers of 32 bits.
MAX_COUNTS = 2**32 - 1

_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_ONE = np.uint64(1)
# Calls of Philox at a time, which the compiler vectorises; each gives four words.
_N_CALLS = 32
_N_WORDS = 4 * _N_CALLS
# State of a cell's random numbers: the counter of Philox, the cell, the seed.
_COUNTER, _CELL, _SEED, _STATE_SIZE = 0, 1, 2, 3


def draw_counts(
    x: Block, cells: Ints, targets: Ints, *, seed: int, replace: bool, dtype: DTypeLike
) -> Array | sparse.csr_matrix:
    """Draw `targets` counts of each cell, or all where it is negative, as a block of type `dtype`.

    How a row is stored changes nothing; it has at most :data:`MAX_COUNTS`, and without replacement
    at least its target; with it `dtype` must hold the target. `cells` select the random numbers.
    CSR results have ascending genes and no explicit zeros.
    """
    given = cells.astype(np.uint64), targets, np.uint64(seed), replace
    if not is_sparse(x):
        values = np.ascontiguousarray(x)
        out = np.zeros(values.shape, dtype)
        starts = np.arange(x.shape[0] + 1, dtype=np.int64) * x.shape[1]
        _draw_rows(
            _bool_as_uint8(values.reshape(-1)), starts, *given, _bool_as_uint8(out.reshape(-1))
        )
        return out
    drawn = np.zeros(x.data.shape, dtype)
    indptr = row_offsets(x)
    values, genes = sort_genes(x.data, x.indices, indptr, x.shape[1], np)
    _draw_rows(_bool_as_uint8(values), indptr, *given, _bool_as_uint8(drawn))
    is_kept = drawn != 0
    out = sparse.csr_matrix(x.shape, dtype=dtype)
    before = np.concatenate([[0], np.cumsum(is_kept)])
    out.data, out.indices = drawn[is_kept], genes[is_kept]
    out.indptr = before[x.indptr].astype(x.indptr.dtype)
    return out


def sort_genes(
    data: Array, indices: Array, indptr: Ints, n_genes: int, xp: ModuleType
) -> tuple[Array, Array]:
    """Values and genes of CSR rows, sorted by gene; entries of one gene keep their order, on which
    the drawn counts depend. (SciPy's ``sort_indices`` supports neither uint16 nor GPU arrays.)
    """
    descends = indices[1:] < indices[:-1]
    starts = indptr[(indptr > 0) & (indptr < indices.size)]
    descends[starts - 1] = False  # the next gene belongs to the next row
    if not descends.any():
        return data, indices
    rows = xp.searchsorted(indptr, xp.arange(indices.size), side="right")
    order = xp.argsort(rows * n_genes + indices, kind="stable")
    return data[order], indices[order]


def _bool_as_uint8(values: Array) -> Array:
    """Boolean values as uint8, because Numba does not convert booleans to uint64."""
    return values.view(np.uint8) if values.dtype == bool else values


@njit(nogil=True, cache=True)
def _philox(
    c0: np.uint64, c1: np.uint64, c2: np.uint64, c3: np.uint64, k0: np.uint64, k1: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """Four random words of 32 bits from a counter and a key, all in uint64 (Philox4x32-10)."""
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c2 = (p1 >> _HALF) ^ c1 ^ k0, (p0 >> _HALF) ^ c3 ^ k1
        c1, c3 = p1 & _MASK, p0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


@njit(nogil=True, cache=True)
def _fill(words: UInt64Array, state: UInt64Array) -> None:
    """The next random words ``[4, n_calls]`` of a cell; the i-th is at ``[i % 4, i // 4]``."""
    counter, cell, seed = state[_COUNTER], state[_CELL], state[_SEED]
    for call in range(_N_CALLS):
        at = counter + np.uint64(call)
        words[0, call], words[1, call], words[2, call], words[3, call] = _philox(
            at & _MASK, at >> _HALF, cell & _MASK, cell >> _HALF, seed & _MASK, seed >> _HALF
        )
    state[_COUNTER] = counter + np.uint64(_N_CALLS)


@njit(nogil=True, cache=True)
def _is_biased(low: np.uint64, bound: np.uint64) -> np.bool_:
    """Whether a number below a bound must be drawn again; `low` is the low half of the product."""
    return low < bound and low < ((_MASK - bound) + _ONE) % bound  # 2**32 modulo the bound


# The two loops hold the same draw of a number below a bound: as a function that takes the buffer it
# would take ten times as long.
@njit(nogil=True, cache=True)
def _draw_without_replacement(
    values: Array, target: int, words: UInt64Array, state: UInt64Array, out: Array
) -> None:
    """Draw `target` of the counts of a cell without replacement."""
    n_left = np.uint64(0)
    for at in range(values.size):
        n_left += np.uint64(values[at])
    n_wanted = np.uint64(target)
    used = _N_WORDS
    for at in range(values.size):
        n = np.uint64(values[at])
        n_kept = np.uint64(0)
        while n and n_wanted and n_wanted < n_left:
            if used == _N_WORDS:
                _fill(words, state)
                used = 0
            product = words[used & 3, used >> 2] * n_left
            used += 1
            if _is_biased(product & _MASK, n_left):
                continue
            if product >> _HALF < n_wanted:
                n_kept += _ONE
                n_wanted -= _ONE
            n_left -= _ONE
            n -= _ONE
        if n_wanted:  # as many as are n_left: keep all of them
            n_kept += n
            n_wanted -= n
            n_left -= n
        out[at] = n_kept


@njit(nogil=True, cache=True)
def _draw_with_replacement(
    values: Array, target: int, words: UInt64Array, state: UInt64Array, out: Array
) -> None:
    """Draw `target` counts of a cell with replacement."""
    ends = np.empty(values.size, np.uint64)
    total = np.uint64(0)
    for at in range(values.size):
        total += np.uint64(values[at])
        ends[at] = total
        out[at] = 0
    n_drawn, used = 0, _N_WORDS
    while total and n_drawn < target:
        if used == _N_WORDS:
            _fill(words, state)
            used = 0
        product = words[used & 3, used >> 2] * total
        used += 1
        if not _is_biased(product & _MASK, total):
            out[np.searchsorted(ends, product >> _HALF, side="right")] += 1
            n_drawn += 1


@njit(nogil=True, cache=True)
def _draw_rows(
    data: Array,
    indptr: Ints,
    cells: UInt64Array,
    targets: Ints,
    seed: np.uint64,
    replace: bool,
    out: Array,
) -> None:
    words = np.empty((4, _N_CALLS), np.uint64)
    state = np.zeros(_STATE_SIZE, np.uint64)
    for row in range(indptr.size - 1):
        values, to = data[indptr[row] : indptr[row + 1]], out[indptr[row] : indptr[row + 1]]
        if targets[row] < 0:
            for at in range(values.size):
                to[at] = values[at]
            continue
        state[_COUNTER], state[_CELL], state[_SEED] = np.uint64(0), cells[row], seed
        if replace:
            _draw_with_replacement(values, targets[row], words, state, to)
        else:
            _draw_without_replacement(values, targets[row], words, state, to)
