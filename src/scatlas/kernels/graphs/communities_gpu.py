"""Moves of cells between communities of a graph on the GPU: the results of ``communities_cpu``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.kernels.build import cuda
from scatlas.kernels.graphs.layout_gpu import hash_round

if TYPE_CHECKING:
    from scatlas.arrays.array_types import GpuArray
    from scatlas.kernels.graphs.communities_cpu import Communities, Edges


def propose(
    edges: Edges,
    degrees: GpuArray,
    communities: Communities,
    within: GpuArray,
    out: GpuArray,
    *,
    penalty: float,
    only_single: bool,
    share: int,
    number: int,
    seed: int,
) -> None:
    """As on the CPU, for all nodes."""
    rules = np.float64(penalty), np.bool_(only_single), np.uint64(share), hash_round(seed, number)
    args = *edges, degrees, *communities, within, out, np.int64(out.size), *rules
    cuda.kernel("graphs/communities", "propose")(*cuda.grid_of_warps(out.size), args)


def move(degrees: GpuArray, communities: Communities, proposed: GpuArray) -> int:
    n_moved = int((communities.labels != proposed).sum())
    args = degrees, *communities, proposed, np.int64(proposed.size)
    cuda.kernel("graphs/communities", "move")(*cuda.grid_of_threads(proposed.size), args)
    return n_moved
