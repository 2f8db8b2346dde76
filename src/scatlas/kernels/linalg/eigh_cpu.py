"""Largest eigenvalues of a symmetric matrix: by LAPACK, of many rows by Lanczos iterations.

Sources: Golub, Van Loan (2013), section 10.3 (block Lanczos); Wu, Simon (2000), SIAM J. Matrix
Anal. Appl. 22 (thick restarts). They need a few products of the matrix at a time: those of the
centred cells with themselves do not need their Gram matrix.
"""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.arrays.array_types import Array, Block, Floats, is_sparse
from scatlas.kernels import CsrArrays, csr_arrays
from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

logger = logging.getLogger(__name__)

# LAPACK takes time for the cube of the rows whatever `n` is: 7 s of 4,000 rows on one core, where
# iterations take 1.5 s for 50 eigenvalues. cuSOLVER takes 1.4 s of 4,000 rows.
_MANY_ROWS, _ROWS_PER_VALUE = 2500, 20
# Vectors per product. Wider blocks read the matrix less often, and need more vectors in all.
BLOCK = 4
# A residual below this share of the gap to the next eigenvalue turns a vector by less than this
# angle.
_ANGLE = 5e-10
# Residuals cannot fall much below the rounding of the products.
_ROUNDING = 64 * np.finfo(np.float64).eps
_MAX_RESTARTS = 200
# Share of a product that has lost digits by the projections that were subtracted.
_SMALL = 1e-3
# Rows per product with a matrix, so that threads share it without an effect on the bits.
_ROWS_AT_ONCE = 512
# Parts of the cells, each with sums of all genes: 16 parts of 4 vectors of 30,000 genes take 15 MB.
# A part of fewer values takes less time than to hand it to a thread.
_MAX_PARTS, _VALUES_PER_PART = 16, 100_000
_DENSE_ROWS_AT_ONCE = 256  # that are float64 at the same time


def eigh_top(
    matrix: Floats, n: int, run: Callable[..., Iterable[Any]] = map
) -> tuple[Floats, Floats]:
    """Return the `n` largest eigenvalues, the largest first, and their eigenvectors ``[m, n]``.

    `matrix` is float64 ``[m, m]``, symmetric, of many rows also positive semidefinite, and is
    overwritten. The vectors are orthonormal columns of either sign. The bits depend on the matrix
    alone if the caller limits BLAS to one thread.
    """
    from scipy.linalg import eigh

    m = matrix.shape[0]
    if iterations_are_faster(m, n):
        parts = [matrix[i : i + _ROWS_AT_ONCE] for i in range(0, m, _ROWS_AT_ONCE)]

        def product(vectors: Floats) -> Floats:
            return np.concatenate(list(run(lambda part: part @ vectors, parts)))

        if (pairs := lanczos(product, m, n)) is not None:
            return pairs
    # LAPACK overwrites its input only in Fortran order, which the transpose has.
    values, vectors = eigh(
        matrix.T,
        lower=False,
        subset_by_index=(m - n, m - 1),
        driver="evr",
        overwrite_a=True,
        check_finite=False,
    )
    return values[::-1], np.ascontiguousarray(vectors[:, ::-1])


def iterations_are_faster(size: int, n: int) -> bool:
    """Whether iterations find `n` eigenvalues of a matrix sooner than a direct solver."""
    return size > _MANY_ROWS and size >= n * _ROWS_PER_VALUE


def lanczos(product: Callable[[Floats], Floats], size: int, n: int) -> tuple[Floats, Floats] | None:
    """Return the `n` largest eigenvalues, the largest first, and their eigenvectors ``[size, n]``.

    `product` multiplies vectors ``[size, BLOCK]`` with a symmetric positive semidefinite operator;
    `n` is at most a tenth of `size`. The vectors are orthonormal columns of either sign, exact to
    an angle of 1e-9, or to the rounding of the products over the gap to the next eigenvalue. The
    bits depend on the products alone if the caller limits BLAS to one thread: the first vectors are
    random with a fixed seed. None if the iterations do not converge.
    """
    rng = np.random.default_rng(0)
    # The vectors kept at a restart, and those of the whole basis. Keeping 32 more than wanted takes
    # a fifth fewer products for 30 eigenvalues, and a tenth fewer for 50, than keeping 8 or 12.
    n_kept = n + max(32, n // 4)
    n_basis = BLOCK * -(-max(2 * n + 16, n + 64) // BLOCK)
    n_kept, n_basis = min(n_kept, size // 3), min(n_basis, size // 2)
    basis = np.empty((n_basis + BLOCK, size))  # vectors are rows
    projected = np.zeros((n_basis + BLOCK, n_basis + BLOCK))
    basis[:BLOCK] = np.linalg.qr(rng.standard_normal((size, BLOCK)))[0].T
    n_done = 0
    for _ in range(_MAX_RESTARTS):
        while n_done + BLOCK <= n_basis:
            last = slice(n_done, n_done + BLOCK)
            rest = np.ascontiguousarray(product(np.ascontiguousarray(basis[last].T)).T)
            n_done += BLOCK
            overlap = _orthogonalise(rest, basis[:n_done])
            projected[:n_done, last] = overlap.T
            projected[last, :n_done] = overlap
            following, coupling = _orthonormal(rest, basis[:n_done], np.abs(overlap).max(), rng)
            basis[n_done : n_done + BLOCK] = following
        values, vectors = np.linalg.eigh(projected[:n_done, :n_done])
        values, vectors = values[::-1], vectors[:, ::-1]
        residuals = np.linalg.norm(coupling @ vectors[-BLOCK:], axis=0)
        gaps = np.abs(np.diff(values[: n + 1]))
        gaps = np.minimum(gaps, np.concatenate([[np.inf], gaps[:-1]]))
        if (residuals[:n] <= np.maximum(_ANGLE * gaps, _ROUNDING * abs(values[0]))).all():
            largest = vectors[:, :n].T @ basis[:n_done]
            return values[:n].copy(), np.ascontiguousarray(largest.T)
        # The best vectors, and the block that follows, span the next basis.
        basis[:n_kept] = vectors[:, :n_kept].T @ basis[:n_done]
        basis[n_kept : n_kept + BLOCK] = basis[n_done : n_done + BLOCK]
        projected[:] = 0
        projected[np.arange(n_kept), np.arange(n_kept)] = values[:n_kept]
        n_done = n_kept
    logger.warning("%d eigenvalues of %d did not converge by Lanczos iterations", n, size)
    return None


def _orthogonalise(rows: Floats, basis: Floats) -> Floats:
    """Subtract from rows their projections on a basis, and return these ``[n_rows, n_basis]``."""
    overlap = rows @ basis.T
    rows -= overlap @ basis
    again = rows @ basis.T  # the second time removes what rounding left
    rows -= again @ basis
    return overlap + again


def _orthonormal(
    rows: Floats, basis: Floats, largest: float, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Orthonormal rows that span the given ones, and how these are made of them.

    Rows much smaller than `largest`, their size before projections were subtracted, have errors of
    these, and are orthogonalised again. Rows that vanish are replaced by random ones.
    """
    q, r = np.linalg.qr(rows.T)
    sizes = np.abs(np.diagonal(r))
    lost = sizes <= 1e-14 * max(1e-300, float(sizes.max(initial=0)))
    q[:, lost] = rng.standard_normal((q.shape[0], int(lost.sum())))
    r[lost] = 0
    if lost.any() or sizes.min() < _SMALL * largest:
        for _ in range(2):
            q -= basis.T @ (basis @ q)
            q, again = np.linalg.qr(q)
            r = again @ r
    return np.ascontiguousarray(q.T), r


def centred_product(
    x: Block, mean: Floats, run: Callable[..., Iterable[Any]] = map
) -> Callable[[Floats], Floats]:
    """Function that multiplies vectors ``[n_genes, n]`` with the Gram matrix of ``x - mean``, in
    parts of cells that are added in order: no bit depends on the number of threads.
    """
    n_cells = x.shape[0]
    n_values = x.data.size if is_sparse(x) else n_cells * x.shape[1]
    n_parts = min(_MAX_PARTS, max(1, n_values // _VALUES_PER_PART))
    if not is_sparse(x):
        dense = np.asarray(x)
        bounds = np.linspace(0, n_cells, n_parts + 1).astype(np.int64)
    else:
        sparse = csr_arrays(x)
        bounds = np.searchsorted(sparse.indptr, np.linspace(0, sparse.indptr[-1], n_parts + 1))
        bounds[0], bounds[-1] = 0, n_cells
    parts = [(int(a), int(b)) for a, b in pairwise(bounds) if a < b]

    def product(vectors: Floats) -> Floats:
        shift = mean @ vectors

        def add_part(rows: tuple[int, int]) -> tuple[Floats, Floats]:
            totals = np.zeros_like(vectors)
            projected = np.zeros(vectors.shape[1])
            if is_sparse(x):
                part = sparse._replace(indptr=sparse.indptr[rows[0] : rows[1] + 1])
                _add_rows(part, vectors, shift, totals, projected)
            else:
                _add_dense(dense[rows[0] : rows[1]], vectors, shift, totals, projected)
            return totals, projected

        total, sums = np.zeros_like(vectors), np.zeros(vectors.shape[1])
        for totals, projected in run(add_part, parts):
            total += totals
            sums += projected
        total -= mean[:, None] * sums
        return total

    return product


def _add_dense(x: Array, vectors: Floats, shift: Floats, totals: Floats, projected: Floats) -> None:
    for start in range(0, x.shape[0], _DENSE_ROWS_AT_ONCE):
        rows = np.asarray(x[start : start + _DENSE_ROWS_AT_ONCE], np.float64)
        scores = rows @ vectors - shift
        totals += rows.T @ scores
        projected += scores.sum(axis=0)


@njit(nogil=True, cache=True)
def _add_rows(
    rows: CsrArrays, vectors: Floats, shift: Floats, totals: Floats, projected: Floats
) -> None:
    data, indices, indptr = rows
    # Four variables in place of an array: they stay in registers. Subscripts without a sign need no
    # test for counting from the end, which takes a fifth of the time.
    for row in range(indptr.size - 1):
        a, b, c, d = -shift[0], -shift[1], -shift[2], -shift[3]
        for at in range(np.uint64(indptr[row]), np.uint64(indptr[row + 1])):
            gene, value = np.uint64(indices[at]), np.float64(data[at])
            a += value * vectors[gene, 0]
            b += value * vectors[gene, 1]
            c += value * vectors[gene, 2]
            d += value * vectors[gene, 3]
        projected[0] += a
        projected[1] += b
        projected[2] += c
        projected[3] += d
        for at in range(np.uint64(indptr[row]), np.uint64(indptr[row + 1])):
            gene, value = np.uint64(indices[at]), np.float64(data[at])
            totals[gene, 0] += value * a
            totals[gene, 1] += value * b
            totals[gene, 2] += value * c
            totals[gene, 3] += value * d
