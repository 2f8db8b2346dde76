"""A round of UMAP's layout on the GPU: the forces and random numbers of ``layout_cpu``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.kernels.build import cuda

if TYPE_CHECKING:
    from scatlas.arrays.array_types import GpuArray

_LANES = 8  # as in layout.cu
_STEP, _MASK = 0x9E3779B97F4A7C15, 2**64 - 1


def run_round(
    coordinates: GpuArray,
    out: GpuArray,
    others: GpuArray,
    edges: tuple[GpuArray, GpuArray, GpuArray],
    keys: GpuArray | None,
    curve: tuple[float, float],
    *,
    number: int,
    rate: float,
    damping: float,
    pulls: int,
    gamma: float,
    negative_sample_rate: int,
    seed: int,
) -> None:
    """As on the CPU, for all rows: sums are in another order and powers are the hardware's, so
    coordinates agree to 1e-6 of the moves. ``keys`` None stands for the numbers of the cells.
    """
    n, n_components = coordinates.shape
    # Eight threads per cell, and whole warps of them.
    threads = -(-n * _LANES // 32) * 32
    run = cuda.kernel("graphs/layout", "run_round", n_components)
    run(
        *cuda.grid_of_threads(threads),
        (
            *(coordinates, out, others, np.int64(others.shape[0]), *edges),
            *(cuda.NULL if keys is None else keys, np.int64(n)),
            *map(np.float32, (*curve, number, rate, damping, pulls, gamma)),
            *(np.int32(negative_sample_rate), hash_round(seed, number)),
        ),
    )


def hash_round(seed: int, number: int) -> np.uint64:
    """Random bits of a round: the first step of ``layout_cpu.hash_numbers``."""
    x = (seed + number * _STEP) & _MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return np.uint64(x ^ (x >> 31))
