"""Harmony of a block of cells on the GPU: soft clusters, their sums, and the correction."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import cupy as cp
import numpy as np

from scatlas.kernels.build import cuda

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scatlas.arrays.array_types import Floats, GpuArray

xp = cp
_CELLS_OF_A_BLOCK = 256  # CELLS of harmony.cu


def soft_clusters(
    logits: GpuArray, penalties: GpuArray, blocks: GpuArray, codes: GpuArray, levels: GpuArray
) -> float:
    """As on the CPU, to rounding."""
    n, n_clusters = logits.shape
    logs = cp.empty(n)
    sizes = map(np.int64, (n, n_clusters, penalties.shape[1], levels.shape[1]))
    run = cuda.kernel("linalg/harmony", "soft_clusters")
    run(*cuda.grid_of_warps(n), (logits, penalties, blocks, codes, levels, *sizes, logs))
    return float(logs.sum())


def unit_rows(x: GpuArray) -> None:
    """As on the CPU, to rounding."""
    run = cuda.kernel("linalg/harmony", "unit_rows")
    run(*cuda.grid_of_warps(len(x)), (x, *map(np.int64, x.shape)))


def add_shares(
    shares: GpuArray,
    codes: GpuArray,
    levels: GpuArray,
    blocks: GpuArray,
    grid: float,
    sums: GpuArray,
) -> None:
    """As on the CPU: the same bits."""
    n, n_clusters = shares.shape
    sizes = map(np.int64, (n, n_clusters, sums.shape[1], levels.shape[1]))
    run = cuda.kernel("linalg/harmony", "add_shares")
    of_grid = (-(-n // _CELLS_OF_A_BLOCK),), (min(-(-n_clusters // 32) * 32, cuda.THREADS),)
    run(*of_grid, (shares, codes, levels, blocks, *sizes, np.float64(grid), sums))


def _runs_of(codes: GpuArray) -> Iterator[tuple[int, slice]]:
    """Code and rows of neighbours with it; Harmony sorts cells whose codes take turns."""
    cuts = (cp.flatnonzero(codes[1:] != codes[:-1]) + 1).get()
    starts = np.concatenate([[0], cuts])
    numbers = codes[cp.asarray(starts)].get().tolist()
    ends = pairwise([*starts.tolist(), codes.size])
    yield from ((code, slice(*rows)) for code, rows in zip(numbers, ends, strict=True))


def add_products(
    shares: GpuArray, z: GpuArray, codes: GpuArray, grids: Floats, sums: GpuArray
) -> None:
    """As on the CPU, to rounding."""
    of_columns = cp.asarray(grids)
    for code, rows in _runs_of(codes):
        total = shares[rows].astype(cp.float64).T @ z[rows]
        total += of_columns
        total -= of_columns
        sums[code] += total


def subtract_terms(z: GpuArray, shares: GpuArray, codes: GpuArray, terms: GpuArray) -> None:
    """As on the CPU, to rounding."""
    for code, rows in _runs_of(codes):
        z[rows] -= shares[rows] @ terms[code]
