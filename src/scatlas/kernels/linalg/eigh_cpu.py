"""Largest eigenvalues of a symmetric matrix: by LAPACK, of many rows by Lanczos iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.kernels.linalg import krylov_cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scatlas.arrays.array_types import Floats


# Rows per product, so that threads share a matrix without an effect on the bits.
_ROWS_AT_ONCE = 512


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
    if krylov_cpu.is_faster(m, n):
        parts = [matrix[i : i + _ROWS_AT_ONCE] for i in range(0, m, _ROWS_AT_ONCE)]

        def product(vectors: Floats) -> Floats:
            return np.concatenate(list(run(lambda part: part @ vectors, parts)))

        found = krylov_cpu.eigh_top(product, m, n)
        if found is not None:
            return found
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
