"""Gram matrix of one row block: pairs of stored values, or BLAS on dense rows.

Both ways sum float64 products in a fixed order. A sparse row of k values costs k**2 / 2 scattered
additions, a dense one n_genes**2 / 2 multiply-adds at BLAS speed: the block's own values decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit
from scipy import sparse

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A scattered addition (2 to 3 ns) costs as much as this many multiply-adds of dsyrk (0.015 ns,
# scattering the rows included): measured on one AVX-512 core for 2,000 and 4,000 genes, where it
# puts the crossing at 180 and 365 values a row. With few genes either way is quick.
_PAIR_COST = 120.0
# Bytes of dense rows in flight: within a core's share of the last-level cache.
_DENSE_BYTES = 8_000_000


def gram(
    x: NDArray | sparse.csr_matrix | sparse.csr_array,
) -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
    """Sums and products over the rows of a block.

    Parameters
    ----------
    x
        Block ``[n, n_genes]``, dense or CSR, of any real dtype and index width.

    Returns
    -------
    n, the sum per gene (float64 ``[n_genes]``) and ``x.T @ x`` (float64 ``[n_genes, n_genes]``,
    both triangles).
    """
    n_rows, n_genes = x.shape
    sums = np.zeros(n_genes)
    upper = np.zeros((n_genes, n_genes))
    if not sparse.issparse(x):
        _syrk_dense(np.asarray(x), sums, upper)
    else:
        indptr = x.indptr.astype(np.int64, copy=False)
        per_row = np.diff(indptr).astype(np.float64)
        few = _PAIR_COST * (per_row @ per_row) < float(n_rows) * n_genes * n_genes
        if few and _strictly_sorted(x.indices, indptr):
            _add_pairs(x.data, x.indices, indptr, sums, upper)
        else:
            _syrk_csr(x.data, x.indices, indptr, sums, upper)
    _mirror(upper)
    return n_rows, sums, upper


def _syrk_dense(x: NDArray, sums: NDArray[np.float64], upper: NDArray[np.float64]) -> None:
    step = _rows_at_once(x.shape[1])
    for start in range(0, x.shape[0], step):
        rows = np.ascontiguousarray(x[start : start + step], dtype=np.float64)
        _add_rows(rows, sums)
        _syrk(rows, upper)


def _syrk_csr(data, indices, indptr, sums, upper) -> None:
    n_rows = indptr.size - 1
    step = _rows_at_once(sums.size)
    for start in range(0, n_rows, step):
        stop = min(start + step, n_rows)
        rows = np.zeros((stop - start, sums.size))
        _scatter(data, indices, indptr, start, rows)
        _add_rows(rows, sums)
        _syrk(rows, upper)


def _rows_at_once(n_genes: int) -> int:
    return max(64, _DENSE_BYTES // (8 * max(1, n_genes)))


def _syrk(rows: NDArray[np.float64], upper: NDArray[np.float64]) -> None:
    from scipy.linalg.blas import dsyrk

    if rows.size:
        # Fortran's lower triangle of the transpose is C's upper triangle, written in place.
        dsyrk(1.0, rows.T, beta=1.0, c=upper.T, lower=1, overwrite_c=1)


@njit(nogil=True, cache=True)
def _strictly_sorted(indices, indptr):
    for row in range(indptr.size - 1):
        for at in range(indptr[row] + 1, indptr[row + 1]):
            if indices[at] <= indices[at - 1]:
                return False
    return True


@njit(nogil=True, cache=True)
def _add_pairs(data, indices, indptr, sums, upper):
    for row in range(indptr.size - 1):
        stop = indptr[row + 1]
        for at in range(indptr[row], stop):
            v = np.float64(data[at])
            gene = indices[at]
            sums[gene] += v
            products = upper[gene]
            for other in range(at, stop):
                products[indices[other]] += v * np.float64(data[other])


@njit(nogil=True, cache=True)
def _scatter(data, indices, indptr, start, rows):
    for row in range(rows.shape[0]):
        for at in range(indptr[start + row], indptr[start + row + 1]):
            rows[row, indices[at]] += np.float64(data[at])


@njit(nogil=True, cache=True)
def _add_rows(rows, sums):
    for row in range(rows.shape[0]):
        for gene in range(rows.shape[1]):
            sums[gene] += rows[row, gene]


@njit(nogil=True, cache=True)
def _mirror(upper):
    # In tiles, so that both the rows read and the rows written stay in cache.
    n = upper.shape[0]
    tile = 64
    for top in range(0, n, tile):
        for left in range(top, n, tile):
            for i in range(top, min(top + tile, n)):
                for j in range(max(left, i + 1), min(left + tile, n)):
                    upper[j, i] = upper[i, j]
