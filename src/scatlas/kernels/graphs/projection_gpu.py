"""Cells beside their nearest cells of a reference, on the GPU, as in ``projection_cpu``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cupy as cp
import numpy as np

from scatlas.kernels.build import cuda

if TYPE_CHECKING:
    from scatlas.arrays.array_types import GpuArray


def average(reference: GpuArray, neighbours: GpuArray, weights: GpuArray) -> GpuArray:
    out = cp.empty((neighbours.shape[0], reference.shape[1]), np.float32)
    args = reference, np.int32(reference.shape[1]), neighbours, weights, *_shape(neighbours), out
    _run("average", neighbours, args)
    return out


def vote(codes: GpuArray, neighbours: GpuArray, weights: GpuArray) -> tuple[GpuArray, GpuArray]:
    """As on the CPU, for int64 ``codes``."""
    n = neighbours.shape[0]
    winners, shares = cp.empty(n, np.int64), cp.empty(n)
    _run("vote", neighbours, (codes, neighbours, weights, *_shape(neighbours), winners, shares))
    return winners, shares


def relative_distance(distances: GpuArray, neighbours: GpuArray, usual: GpuArray) -> GpuArray:
    """As on the CPU, all in float64."""
    out = cp.empty(neighbours.shape[0])
    args = distances, neighbours, usual, *_shape(neighbours), out
    _run("relative_distance", neighbours, args)
    return out


def _shape(neighbours: GpuArray) -> tuple[np.int64, np.int32]:
    return np.int64(neighbours.shape[0]), np.int32(neighbours.shape[1])


def _run(name: str, neighbours: GpuArray, args: tuple[object, ...]) -> None:
    run = cuda.kernel("graphs/projection", name, neighbours.dtype)
    run(*cuda.grid_of_threads(neighbours.shape[0]), args)
