"""Fuzzy graph of UMAP on the GPU: weights and edges of ``umap_cpu`` and ``pp.neighbors``; cells
beside their nearest cells of a reference, as in ``umap_cpu``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import cupy as cp
import numpy as np

from scatlas.kernels.build import cuda
from scatlas.kernels.graphs.communities_cpu import Edges

if TYPE_CHECKING:
    from scatlas.arrays.array_types import GpuArray

_LONGEST = 512  # edges of a row that a warp sorts, as in umap.cu


def memberships(distances: GpuArray) -> GpuArray:
    """As on the CPU, to the rounding of ``exp``."""
    return _memberships(distances, is_self_first=True)


def memberships_in_reference(distances: GpuArray) -> GpuArray:
    return _memberships(distances, is_self_first=False)


def fuzzy_union(indices: GpuArray, weights: GpuArray) -> Edges:
    """Union of each cell's edges, itself first, with those of the others to it. Weights are
    ``a + b - a * b``, float32, in the CPU's operations: the same bits for the same
    :func:`memberships`. Indices are int32 and ascend in each row.
    """
    n, k = indices.shape
    sizes = np.int64(n), np.int32(k)
    n_own, n_foreign = cp.empty(n, np.int32), cp.zeros(n, np.int32)
    grid = cuda.grid_of_threads(n)
    cuda.kernel("graphs/umap", "count_edges")(*grid, (indices, weights, *sizes, n_own, n_foreign))
    indptr = cp.zeros(n + 1, np.int64)
    n_own += n_foreign
    cp.cumsum(n_own, dtype=np.int64, out=indptr[1:])
    n_edges = int(indptr[-1])
    edges = Edges(indptr, cp.empty(n_edges, np.int32), cp.empty(n_edges, np.float32))
    cuda.kernel("graphs/umap", "fill_edges")(
        *grid, (indices, weights, *sizes, indptr, n_foreign, *edges[1:])
    )
    sort = cuda.kernel("graphs/umap", "sort_rows")
    n_bytes = cuda.THREADS // 32 * _LONGEST * 8
    sort(*cuda.grid_of_warps(n), (indptr, np.int64(n), *edges[1:]), shared_mem=n_bytes)
    for row in cp.flatnonzero(n_own > _LONGEST).tolist():
        part = slice(*indptr[row : row + 2].tolist())
        order = cp.argsort(edges.indices[part])
        edges.indices[part] = edges.indices[part][order]
        edges.weights[part] = edges.weights[part][order]
    return edges


def _memberships(distances: GpuArray, *, is_self_first: bool) -> GpuArray:
    distances = cp.ascontiguousarray(distances)
    n, k = distances.shape
    out = cp.empty((n, k), np.float32)
    run = cuda.kernel("graphs/umap", "memberships", distances.dtype)
    args = distances, np.int64(n), np.int32(k), np.bool_(is_self_first), out
    run(*cuda.grid_of_threads(n), args)
    return out


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
    run = cuda.kernel("graphs/umap", name, neighbours.dtype)
    run(*cuda.grid_of_threads(neighbours.shape[0]), args)
