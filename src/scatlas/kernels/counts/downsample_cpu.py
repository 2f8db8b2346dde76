"""Counts of a row block drawn at random, each cell by random numbers of its own (Numba).

Whole numbers throughout, so that the same seed and cell give the same counts everywhere: the i-th
word of a cell is a function of the seed, the cell and i (Philox), a number below a bound follows
without bias (Lemire), and a cell's counts are gone through one after another, each kept with the
probability that the numbers still to be kept and still to come give (Knuth's selection sampling).

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

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import DTypeLike, NDArray

# Counts of a cell that numbers of 32 bits can number.
MOST_COUNTS = 2**32 - 1

_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_ONE, _FOUR = np.uint64(1), np.uint64(4)
# Where a cell's words stand: those made last, how many are taken, those made, the cell, the seed.
_TAKEN, _MADE, _CELL, _SEED, _STATE = 4, 5, 6, 7, 8


def draw(
    x: NDArray | sparse.csr_matrix | sparse.csr_array,
    cells: NDArray[np.int64],
    targets: NDArray[np.int64],
    *,
    seed: int,
    replace: bool,
    dtype: DTypeLike,
) -> NDArray | sparse.csr_matrix:
    """Draw so many of each row's counts.

    Parameters
    ----------
    x
        Block ``[n, n_genes]`` of whole numbers from 0 on, at most :data:`MOST_COUNTS` a row; dense
        or CSR, of any real dtype and index width. How a row is stored does not matter: its genes in
        any order, a gene in several entries, explicit zeros.
    cells
        int64 ``[n]``: what names the random numbers of each row, beside the seed.
    targets
        int64 ``[n]``: how many to draw, at most as many as there are unless with replacement; rows
        with a negative target stay as they are.
    seed
        0 to 2**64 - 1.
    replace
        Each count may be drawn several times.
    dtype
        Type of the result, which has to hold the targets with replacement.

    Returns
    -------
    A new block, of CSR with ascending genes and without explicit zeros.
    """
    given = cells.astype(np.uint64), targets, np.uint64(seed), replace
    if not sparse.issparse(x):
        values = np.ascontiguousarray(x)
        out = np.zeros(values.shape, dtype)
        starts = np.arange(x.shape[0] + 1, dtype=np.int64) * x.shape[1]
        _draw_rows(_plain(values.reshape(-1)), starts, *given, _plain(out.reshape(-1)))
        return out
    drawn = np.zeros(x.data.shape, dtype)
    indptr = x.indptr.astype(np.int64, copy=False)
    values, genes = sort_genes(x.data, x.indices, indptr, x.shape[1], np)
    _draw_rows(_plain(values), indptr, *given, _plain(drawn))
    kept = drawn != 0
    out = sparse.csr_matrix(x.shape, dtype=dtype)
    before = np.concatenate([[0], np.cumsum(kept)])
    out.data, out.indices = drawn[kept], genes[kept]
    out.indptr = before[x.indptr].astype(x.indptr.dtype)
    return out


def sort_genes(
    data: NDArray, indices: NDArray, indptr: NDArray[np.int64], n_genes: int, xp: ModuleType
) -> tuple[NDArray, NDArray]:
    """Values and genes of CSR rows, sorted by gene within each row; as given where they are.

    Counts are drawn one after another: in another order the same random numbers draw others.
    (SciPy's ``sort_indices`` takes neither uint16 indices nor GPU arrays.)

    Parameters
    ----------
    data, indices, indptr
        A CSR block, left as it is.
    n_genes
        Columns.
    xp
        NumPy, or CuPy for arrays on the GPU.

    Returns
    -------
    Values and genes; entries of one gene stay in their order.
    """
    descends = indices[1:] < indices[:-1]
    starts = indptr[(indptr > 0) & (indptr < indices.size)]
    descends[starts - 1] = False  # the next gene belongs to the next row
    if not descends.any():
        return data, indices
    rows = xp.searchsorted(indptr, xp.arange(indices.size), side="right")
    order = xp.argsort(rows * n_genes + indices, kind="stable")
    return data[order], indices[order]


def _plain(values: NDArray) -> NDArray:
    """Numba's integers are no truth values."""
    return values.view(np.uint8) if values.dtype == bool else values


@njit(nogil=True, cache=True)
def _philox(c0, c1, c2, c3, k0, k1):
    """Four words of 32 bits of a counter and a key, all in uint64."""
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c2 = (p1 >> _HALF) ^ c1 ^ k0, (p0 >> _HALF) ^ c3 ^ k1
        c1, c3 = p1 & _MASK, p0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


@njit(nogil=True, cache=True)
def _word(state):
    if state[_TAKEN] == _FOUR:
        made, cell, seed = state[_MADE], state[_CELL], state[_SEED]
        state[0], state[1], state[2], state[3] = _philox(
            made & _MASK, made >> _HALF, cell & _MASK, cell >> _HALF, seed & _MASK, seed >> _HALF
        )
        state[_MADE] = made + _ONE
        state[_TAKEN] = np.uint64(0)
    word = state[state[_TAKEN]]
    state[_TAKEN] += _ONE
    return word


@njit(nogil=True, cache=True)
def _below(state, bound):
    """A random number below a bound of 1 to 2**32 - 1."""
    product = _word(state) * bound
    low = product & _MASK
    if low < bound:
        least = ((_MASK - bound) + _ONE) % bound  # 2**32 modulo the bound
        while low < least:
            product = _word(state) * bound
            low = product & _MASK
    return product >> _HALF


@njit(nogil=True, cache=True)
def _keep(values, target, state, out):
    """Without replacement."""
    left = np.uint64(0)
    for at in range(values.size):
        left += np.uint64(values[at])
    wanted = np.uint64(target)
    for at in range(values.size):
        n = np.uint64(values[at])
        kept = np.uint64(0)
        while n and wanted and wanted < left:
            if _below(state, left) < wanted:
                kept += _ONE
                wanted -= _ONE
            left -= _ONE
            n -= _ONE
        if wanted:  # as many as are left: all of them
            kept += n
            wanted -= n
            left -= n
        out[at] = kept


@njit(nogil=True, cache=True)
def _redraw(values, target, state, out):
    """With replacement."""
    ends = np.empty(values.size, np.uint64)
    total = np.uint64(0)
    for at in range(values.size):
        total += np.uint64(values[at])
        ends[at] = total
        out[at] = 0
    if total:
        for _ in range(target):
            out[np.searchsorted(ends, _below(state, total), side="right")] += 1


@njit(nogil=True, cache=True)
def _draw_rows(data, indptr, cells, targets, seed, replace, out):
    state = np.zeros(_STATE, np.uint64)
    for row in range(indptr.size - 1):
        values, to = data[indptr[row] : indptr[row + 1]], out[indptr[row] : indptr[row + 1]]
        if targets[row] < 0:
            for at in range(values.size):
                to[at] = values[at]
            continue
        state[_TAKEN], state[_MADE] = _FOUR, np.uint64(0)
        state[_CELL], state[_SEED] = cells[row], seed
        if replace:
            _redraw(values, targets[row], state, to)
        else:
            _keep(values, targets[row], state, to)
