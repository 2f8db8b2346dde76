"""Medians per column (Numba).

Values below zero and zeros are counted first: only if the middle is not zero are the other values
partitioned around it, which is faster than to sort them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.moments.group_sums_cpu import as_numba_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scipy import sparse

    from scatlas.arrays.array_types import Array, Floats, Ints


def medians(parts: Sequence[Array | sparse.csr_matrix], n_columns: int) -> Floats:
    """Median of each column of a matrix in parts, all dense or all CSR, zeros included: the mean of
    two middle values in float64; NaN for a column with a NaN, and without rows.
    """
    n_rows = sum(part.shape[0] for part in parts)
    if n_rows == 0:
        return np.full(n_columns, np.nan)
    blocks = [_arrays(part) for part in parts]
    dense = len(blocks[0]) == 1
    nonzero, negative, n_nan = np.zeros((3, n_columns), dtype=np.int64)
    for block in blocks:
        (_count_dense if dense else _count_csr)(*block, nonzero)
        if not block[0].min(initial=0) >= 0:  # NaN if there is one
            (_count_others_dense if dense else _count_others_csr)(*block, negative, n_nan)
    out = np.where(n_nan > 0, np.nan, 0.0)
    zeros = n_rows - nonzero
    middle_is_zero = (negative <= (n_rows - 1) // 2) & (n_rows // 2 < negative + zeros)
    columns = np.flatnonzero(~middle_is_zero & (n_nan == 0))
    if columns.size == 0:
        return out
    # One more place per column, because zeros are written, too, and the next value over them.
    starts = np.append(0, np.cumsum(nonzero[columns] + 1))
    values, ends = np.empty(starts[-1]), starts[:-1].copy()
    for block in blocks:
        (_copy_dense if dense else _copy_csr)(*block, columns, ends, values)
    out[columns] = _medians(values, starts, negative[columns], nonzero[columns], n_rows)
    return out


def _arrays(part: Array | sparse.csr_matrix) -> tuple[Array, ...]:
    """Arrays of a part that kernels read: the dense values, or stored values and their columns."""
    if isinstance(part, np.ndarray):
        return (as_numba_dtype(part),)
    stop = part.indptr[-1]
    return as_numba_dtype(part.data[:stop]), part.indices[:stop]


@njit(nogil=True, cache=True)
def _count_dense(x: Array, nonzero: Ints) -> None:
    for row in range(x.shape[0]):
        for column in range(x.shape[1]):
            nonzero[column] += x[row, column] != 0


@njit(nogil=True, cache=True)
def _count_others_dense(x: Array, negative: Ints, n_nan: Ints) -> None:
    for row in range(x.shape[0]):
        for column in range(x.shape[1]):
            negative[column] += x[row, column] < 0
            n_nan[column] += np.isnan(x[row, column])


@njit(nogil=True, cache=True)
def _count_csr(data: Array, indices: Array, nonzero: Ints) -> None:
    for at in range(data.size):
        nonzero[np.uint64(indices[at])] += data[at] != 0


@njit(nogil=True, cache=True)
def _count_others_csr(data: Array, indices: Array, negative: Ints, n_nan: Ints) -> None:
    for at in range(data.size):
        negative[np.uint64(indices[at])] += data[at] < 0
        n_nan[np.uint64(indices[at])] += np.isnan(data[at])


@njit(nogil=True, cache=True)
def _copy_dense(x: Array, columns: Ints, ends: Ints, values: Floats) -> None:
    for row in range(x.shape[0]):
        for i in range(columns.size):
            value = x[row, columns[i]]
            values[ends[i]] = value
            ends[i] += value != 0


@njit(nogil=True, cache=True)
def _copy_csr(data: Array, indices: Array, columns: Ints, ends: Ints, values: Floats) -> None:
    place = np.full(columns.max() + 1, -1)
    for i in range(columns.size):
        place[columns[i]] = i
    for at in range(data.size):
        column = np.uint64(indices[at])
        i = place[column] if column < place.size else -1
        if i >= 0:
            values[ends[i]] = data[at]
            ends[i] += data[at] != 0


@njit(nogil=True, cache=True)
def _medians(values: Floats, starts: Ints, negative: Ints, nonzero: Ints, n_rows: int) -> Floats:
    out = np.empty(nonzero.size)
    for i in range(out.size):
        of_column = values[starts[i] : starts[i] + nonzero[i]]
        n_zeros, middle = n_rows - of_column.size, n_rows // 2
        high = _value_of_rank(of_column, negative[i], n_zeros, middle)
        low = high
        if n_rows % 2 == 0:
            low = _value_below(of_column, negative[i], n_zeros, middle)
        out[i] = (low + high) / 2.0
    return out


@njit(nogil=True, cache=True)
def _value_of_rank(values: Floats, n_negative: int, n_zeros: int, rank: int) -> float:
    """Value of a rank among nonzero values, `n_negative` of them negative, and zeros."""
    if rank < n_negative:
        return _select(values, rank)
    if rank < n_negative + n_zeros:
        return 0.0
    return _select(values, rank - n_zeros)


@njit(nogil=True, cache=True)
def _value_below(values: Floats, n_negative: int, n_zeros: int, rank: int) -> float:
    """Value of the rank before `rank`, after :func:`_value_of_rank` was called for `rank`."""
    if n_negative < rank <= n_negative + n_zeros:
        return 0.0
    n_before = rank if rank <= n_negative else rank - n_zeros
    if n_zeros and rank == n_negative:  # that value was a zero, so none was selected
        return _select(values, rank - 1)
    return values[:n_before].max()


@njit(nogil=True, cache=True)
def _select(values: Floats, rank: int) -> float:
    """Value of a rank (C. A. R. Hoare's quickselect); no value before it is larger then."""
    low, high = 0, values.size
    while True:
        # The median of three values: of ordered values it halves the rest.
        a, b, c = values[low], values[(low + high) // 2], values[high - 1]
        pivot = max(min(a, b), min(max(a, b), c))
        least = low
        for at in range(low, high):
            # No branch: half of them would be predicted wrong.
            value = values[at]
            values[at] = values[least]
            values[least] = value
            least += value < pivot
        if rank < least:
            high = least
            continue
        low = least
        for at in range(low, high):
            value = values[at]
            values[at] = values[least]
            values[least] = value
            least += value <= pivot
        if rank < least:
            return pivot
        low = least
