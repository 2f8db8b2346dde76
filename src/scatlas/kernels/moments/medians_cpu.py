"""Medians per column (Numba)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from scipy import sparse

    from scatlas.arrays.array_types import Array, Floats


def medians(x: Array | sparse.csr_matrix, n_columns: int) -> Floats:
    """Median of each column of a matrix, zeros included, float64 ``[n_columns]``.

    Parameters
    ----------
    x
        Dense, or CSR without duplicated entries, of any real dtype and index width.
    n_columns
        Number of columns.

    Returns
    -------
    The middle value, or the mean of the two middle values in float64. NaN for a column that holds a
    NaN, and for a matrix without rows.
    """
    if x.shape[0] == 0:
        return np.full(n_columns, np.nan)
    if isinstance(x, np.ndarray):
        if n_columns == 0:
            return np.empty(0)
        return np.median(x.astype(np.float64), axis=0)
    stop = x.indptr[-1]
    return _medians(x.data[:stop].astype(np.float64), x.indices[:stop], x.shape[0], n_columns)


@njit(nogil=True, cache=True)
def _medians(data: Array, indices: Array, n_rows: int, n_columns: int) -> Floats:
    ends = np.zeros(n_columns + 1, dtype=np.int64)
    for column in indices:
        ends[column + 1] += 1
    ends = np.cumsum(ends)
    starts = ends[:-1].copy()
    values = np.empty(data.size, dtype=np.float64)
    for at in range(data.size):
        column = indices[at]
        values[starts[column]] = data[at]
        starts[column] += 1
    out = np.empty(n_columns, dtype=np.float64)
    for column in range(n_columns):
        ordered = np.sort(values[ends[column] : ends[column + 1]])
        if ordered.size and np.isnan(ordered[-1]):
            out[column] = np.nan
            continue
        n_negative = np.searchsorted(ordered, 0.0)
        high = _value_of_rank(ordered, n_negative, n_rows, n_rows // 2)
        low = high if n_rows % 2 else _value_of_rank(ordered, n_negative, n_rows, n_rows // 2 - 1)
        out[column] = (low + high) / 2.0
    return out


@njit(nogil=True, cache=True)
def _value_of_rank(values: Array, n_negative: int, n_rows: int, rank: int) -> float:
    """Value of a rank among sorted nonzero values, `n_negative` of them negative, and zeros."""
    n_zeros = n_rows - values.size
    if rank < n_negative:
        return values[rank]
    if rank < n_negative + n_zeros:
        return 0.0
    return values[rank - n_zeros]
