"""Largest eigenvalues of a symmetric matrix by cuSOLVER."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cupy as cp
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def eigh_top(
    matrix: NDArray[np.float64] | cp.ndarray, n: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """As :func:`scatlas.kernels.linalg.eigh_cpu.eigh_top`, computed on the current device.

    The matrix may be on the GPU or the host, and does not change. The result is on the host.
    """
    # All pairs, by divide and conquer: a third of a second for 2,304 genes.
    values, vectors = cp.linalg.eigh(cp.asarray(matrix))
    return values[::-1][:n].get(), np.ascontiguousarray(vectors[:, ::-1][:, :n].get())
