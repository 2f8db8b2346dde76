"""Steps of Chebyshev filters on a graph on the GPU: the bits of ``diffusion_cpu``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.kernels.build import cuda

if TYPE_CHECKING:
    from scatlas.arrays.array_types import GpuArray


def run_step(
    vectors: GpuArray,
    before: GpuArray,
    out: GpuArray,
    edges: tuple[GpuArray, GpuArray, GpuArray],
    degrees: GpuArray,
    factors: tuple[float, float, float],
) -> None:
    """As on the CPU, for all cells."""
    n_blocks, n, width = vectors.shape
    indptr, indices, weights = edges
    args = vectors, before, out, np.int64(n_blocks), np.int64(n), indptr, indices, weights
    run = cuda.kernel("graphs/diffusion", "run_step", indices.dtype, weights.dtype)
    grid = cuda.grid_of_threads(n_blocks * n * width)
    run(*grid, (*args, degrees, *map(np.float64, factors)))
