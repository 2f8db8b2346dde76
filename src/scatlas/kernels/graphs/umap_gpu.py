"""Fuzzy graph of UMAP on the GPU: weights and edges of ``umap_cpu`` and ``pp.neighbors``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import cupy as cp
import numpy as np

from scatlas.kernels.build import cuda

if TYPE_CHECKING:
    from scatlas.arrays.array_types import GpuArray

_LONGEST = 512  # edges of a row that a warp sorts, as in umap.cu


class Edges(NamedTuple):
    """CSR graph on the GPU."""

    indptr: GpuArray  # int64
    indices: GpuArray  # int32, ascending in each row
    weights: GpuArray  # float32


def memberships(distances: GpuArray) -> GpuArray:
    """As on the CPU, to the rounding of ``exp``."""
    return _memberships(distances, is_self_first=True)


def memberships_in_reference(distances: GpuArray) -> GpuArray:
    return _memberships(distances, is_self_first=False)


def fuzzy_union(indices: GpuArray, weights: GpuArray) -> Edges:
    """Union of each cell's edges, itself first, with those of the others to it. Weights are
    ``a + b - a * b``, in the CPU's operations: the same bits for the same :func:`memberships`.
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
