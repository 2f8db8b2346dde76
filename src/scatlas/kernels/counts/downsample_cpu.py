"""Random subsampling of the counts of one block (Numba).

Each cell has its own stream of random numbers, so that a seed and a cell give the same counts on
any machine and in any block. All arithmetic is on integers. The i-th random word of a cell is a
function of the seed, the cell and i (Philox); a number below a bound is drawn without bias
(Lemire). Without replacement, each count is kept with the probability (counts still to keep) /
(counts still to come), which is Knuth's selection sampling.

References
----------
J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC '11: Philox4x32-10. D. Lemire, "Fast random integer generation in an interval", ACM TOMACS 29
(2019). D. E. Knuth, The Art of Computer Programming 2, section 3.4.2, algorithm S.
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
_ONE, _FOUR = np.uint64(1), np.uint64(4)
# State of a cell's random numbers: four words (0 to 3), how many of them are used, the counter of
# Philox, the cell, the seed.
_N_USED, _COUNTER, _CELL, _SEED, _STATE_SIZE = 4, 5, 6, 7, 8


def draw_counts(
    x: Block, cells: Ints, targets: Ints, *, seed: int, replace: bool, dtype: DTypeLike
) -> Array | sparse.csr_matrix:
    """Draw a given number of counts from each cell.

    Parameters
    ----------
    x
        Block ``[n, n_genes]`` of counts, at most :data:`MAX_COUNTS` per row; dense or CSR, of any
        real dtype and index width. The result does not depend on how a row is stored: genes in
        any order, a gene in several entries, explicit zeros.
    cells
        int64 ``[n]``: number of the cell of each row, which selects its random numbers.
    targets
        int64 ``[n]``: counts to draw, at most the total of the row unless with replacement. Rows
        with a negative target stay as they are.
    seed
        Seed of the random numbers, 0 to 2**64 - 1.
    replace
        Draw with replacement: a count may be drawn several times.
    dtype
        Type of the result. With replacement it must hold the targets.

    Returns
    -------
    A new block ``[n, n_genes]``; CSR has ascending genes and no explicit zeros.
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
    """Values and genes of CSR rows, sorted by gene within each row; no copy if they are sorted.

    The drawn counts depend on the order of the values. (SciPy's ``sort_indices`` supports neither
    uint16 indices nor GPU arrays.)

    Parameters
    ----------
    data, indices, indptr
        Arrays of a CSR block; not changed.
    n_genes
        Number of columns.
    xp
        NumPy, or CuPy for arrays on the GPU.

    Returns
    -------
    Values and genes; entries of the same gene keep their order.
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
def _random_word(state: UInt64Array) -> np.uint64:
    """Next random word of 32 bits."""
    if state[_N_USED] == _FOUR:
        counter, cell, seed = state[_COUNTER], state[_CELL], state[_SEED]
        state[0], state[1], state[2], state[3] = _philox(
            counter & _MASK,
            counter >> _HALF,
            cell & _MASK,
            cell >> _HALF,
            seed & _MASK,
            seed >> _HALF,
        )
        state[_COUNTER] = counter + _ONE
        state[_N_USED] = np.uint64(0)
    word = state[state[_N_USED]]
    state[_N_USED] += _ONE
    return word


@njit(nogil=True, cache=True)
def _random_below(state: UInt64Array, bound: np.uint64) -> np.uint64:
    """A random number below a bound of 1 to 2**32 - 1."""
    product = _random_word(state) * bound
    low = product & _MASK
    if low < bound:
        least = ((_MASK - bound) + _ONE) % bound  # 2**32 modulo the bound
        while low < least:
            product = _random_word(state) * bound
            low = product & _MASK
    return product >> _HALF


@njit(nogil=True, cache=True)
def _draw_without_replacement(values: Array, target: int, state: UInt64Array, out: Array) -> None:
    """Draw `target` of the counts of a cell without replacement."""
    n_left = np.uint64(0)
    for at in range(values.size):
        n_left += np.uint64(values[at])
    n_wanted = np.uint64(target)
    for at in range(values.size):
        n = np.uint64(values[at])
        n_kept = np.uint64(0)
        while n and n_wanted and n_wanted < n_left:
            if _random_below(state, n_left) < n_wanted:
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
def _draw_with_replacement(values: Array, target: int, state: UInt64Array, out: Array) -> None:
    """Draw `target` counts of a cell with replacement."""
    ends = np.empty(values.size, np.uint64)
    total = np.uint64(0)
    for at in range(values.size):
        total += np.uint64(values[at])
        ends[at] = total
        out[at] = 0
    if total:
        for _ in range(target):
            out[np.searchsorted(ends, _random_below(state, total), side="right")] += 1


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
    state = np.zeros(_STATE_SIZE, np.uint64)
    for row in range(indptr.size - 1):
        values, to = data[indptr[row] : indptr[row + 1]], out[indptr[row] : indptr[row + 1]]
        if targets[row] < 0:
            for at in range(values.size):
                to[at] = values[at]
            continue
        state[_N_USED], state[_COUNTER] = _FOUR, np.uint64(0)
        state[_CELL], state[_SEED] = cells[row], seed
        if replace:
            _draw_with_replacement(values, targets[row], state, to)
        else:
            _draw_without_replacement(values, targets[row], state, to)
