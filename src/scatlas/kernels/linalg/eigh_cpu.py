"""Largest eigenvalues of a symmetric matrix by LAPACK."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def eigh_top(
    matrix: NDArray[np.float64], n: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the `n` largest eigenvalues and their eigenvectors, the largest first.

    The result depends on the matrix alone where the caller keeps BLAS to one thread.

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
    # The transpose, whose upper triangle is the lower one here, is what LAPACK takes in place.
    values, vectors = eigh(
        matrix.T,
        lower=False,
        subset_by_index=(m - n, m - 1),
        driver="evr",
        overwrite_a=True,
        check_finite=False,
    )
    return values[::-1], np.ascontiguousarray(vectors[:, ::-1])
