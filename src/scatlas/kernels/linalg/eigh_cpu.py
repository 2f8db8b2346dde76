"""Largest eigenvalues of a symmetric matrix by LAPACK."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scatlas.arrays.array_types import Floats


def eigh_top(matrix: Floats, n: int) -> tuple[Floats, Floats]:
    """Return the `n` largest eigenvalues and their eigenvectors, the largest first.

    The bits depend on the matrix alone if the caller limits BLAS to one thread.

    Parameters
    ----------
    matrix
        float64 ``[m, m]``, symmetric, in C order. It is overwritten.
    n
        1 to m.

    Returns
    -------
    float64 ``[n]``, and float64 ``[m, n]`` in C order, orthonormal columns of either sign.
    """
    from scipy.linalg import eigh

    m = matrix.shape[0]
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
