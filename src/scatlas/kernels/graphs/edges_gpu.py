"""Sums with the transpose, parts, weights within groups and steps of Chebyshev filters on the GPU:
the results of ``edges_cpu``, to the same bits.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import cupy as cp
import numpy as np

from scatlas.kernels.build import cuda

if TYPE_CHECKING:
    from scatlas.arrays.array_types import GpuArray
    from scatlas.kernels.graphs.communities_cpu import Edges

# Edges that are sorted at a time: 1.5 GB.
_EDGES_AT_ONCE = 2**25


def add_transposed(
    edges: tuple[GpuArray, GpuArray, GpuArray], out: GpuArray, _rows: tuple[int, int]
) -> bool:
    """As on the CPU, for all nodes: if each edge has one in the other direction, edges sorted by
    the node that they lead to are these, in the order of the rows.
    """
    indices, weights = (part[: out.size] for part in edges[1:])
    order = cp.argsort(indices)  # stable
    out[:] = weights
    out += weights[order]
    nodes = cp.searchsorted(edges[0][1:], cp.arange(out.size), side="right")  # that have the edges
    return bool((nodes[order] == indices).all())


def find_parts(
    edges: tuple[GpuArray, GpuArray, GpuArray], labels: GpuArray
) -> tuple[GpuArray, int]:
    """As on the CPU; ``indptr`` is int64."""
    n = np.int64(labels.size)
    roots = cp.arange(labels.size, dtype=np.int64)
    types = edges[1].dtype, edges[2].dtype, labels.dtype
    join = cuda.kernel("graphs/edges", "join_neighbours", *types)
    join(*cuda.grid_of_warps(labels.size), (*edges, labels, n, roots))
    cuda.kernel("graphs/edges", "find_roots")(*cuda.grid_of_threads(labels.size), (roots, n))
    number = cp.cumsum(roots == cp.arange(labels.size)) - 1
    return number[roots], int(number[-1]) + 1 if labels.size else 0


def merge_nodes(
    edges: Edges, groups: GpuArray, n_groups: int
) -> tuple[GpuArray, GpuArray, GpuArray]:
    """Offsets, groups and weights of the edges of all groups of nodes, by group: sums of those of
    ``merge_nodes`` of the CPU, whose order within a row is another.
    """
    n_edges = edges.indices.size
    own = cp.empty(n_edges, np.int64)  # group of the node that has the edge
    run = cuda.kernel("graphs/edges", "spread")
    run(*cuda.grid_of_warps(groups.size), (edges.indptr, groups, np.int64(groups.size), own))
    ends = cp.cumsum(cp.bincount(own, minlength=n_groups)).get()
    cuts = np.searchsorted(ends, np.arange(0, n_edges, _EDGES_AT_ONCE)[1:])
    found, n_merged = [], []
    for first, stop in pairwise([0, *np.unique(cuts).tolist(), n_groups]):
        at = cp.flatnonzero((own >= first) & (own < stop) & (edges.weights != 0))
        pair = own[at] * n_groups + groups[edges.indices[at]]
        order = cp.argsort(pair)
        pair, sums = pair[order], cp.cumsum(edges.weights[at[order]])
        last = cp.flatnonzero(cp.diff(pair, append=-1))
        pair, sums = pair[last], cp.diff(sums[last], prepend=0)
        found.append((pair % n_groups, sums))
        n_merged.append(cp.bincount(pair // n_groups - first, minlength=stop - first))
    indptr = cp.zeros(n_groups + 1, np.int64)
    cp.cumsum(cp.concatenate(n_merged), out=indptr[1:])
    indices, weights = map(cp.concatenate, zip(*found, strict=True))
    return indptr, indices, weights


def weigh_inside(edges: Edges, labels: GpuArray) -> int:
    """As on the CPU, for all nodes."""
    total = cp.zeros(1, np.uint64)
    run = cuda.kernel("graphs/edges", "weigh_inside")
    run(*cuda.grid_of_warps(labels.size), (*edges, labels, np.int64(labels.size), total))
    return int(total[0])


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
    run = cuda.kernel("graphs/edges", "run_step", indices.dtype, weights.dtype)
    grid = cuda.grid_of_threads(n_blocks * n * width)
    run(*grid, (*args, degrees, *map(np.float64, factors)))
