"""Largest eigenvalues of a symmetric operator by block Lanczos iterations with thick restarts.

Full reorthogonalisation keeps the basis orthonormal to rounding. Sources: Golub, Van Loan (2013),
section 10.3 (block Lanczos); Wu, Simon (2000), SIAM J. Matrix Anal. Appl. 22 (thick restarts).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from scatlas.arrays.array_types import Floats

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


def is_faster(size: int, n: int) -> bool:
    """Whether iterations find `n` eigenvalues of a matrix sooner than a direct solver."""
    return size > _MANY_ROWS and size >= n * _ROWS_PER_VALUE


def eigh_top(
    product: Callable[[Floats], Floats], size: int, n: int
) -> tuple[Floats, Floats] | None:
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
            found = vectors[:, :n].T @ basis[:n_done]
            return values[:n].copy(), np.ascontiguousarray(found.T)
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

    Rows much smaller than `largest`, the size of their projections before these were subtracted,
    have errors of them, and are orthogonalised again. Rows that vanish, because the operator has no
    other directions, are replaced by random ones.
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
