"""Operations on the edges of a graph: sum with its transpose, connected parts, merged nodes, and
steps of Chebyshev filters, in which vectors are averaged over the neighbours of each cell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scatlas.arrays.array_types import Array, Floats, Ints
    from scatlas.kernels.graphs.communities_cpu import Edges

# Vectors per block of a filter: those of a cell fill one cache line of 64 bytes.
WIDTH = 8


@njit(nogil=True, cache=True)
def add_transposed(edges: tuple[Array, Array, Array], out: Floats, rows: tuple[int, int]) -> bool:
    """Write the sum of each edge's weight and that of the edge in the other direction, and return
    whether each has one; if not, ``out`` is incomplete. Indices ascend in each row.
    """
    indptr, indices, weights = edges
    for i in range(rows[0], rows[1]):
        for edge in range(indptr[i], indptr[i + 1]):
            other = indices[edge]
            low, high = indptr[other], indptr[other + 1]
            while low < high:
                middle = (low + high) // 2
                if indices[middle] < i:
                    low = middle + 1
                else:
                    high = middle
            if low == indptr[other + 1] or indices[low] != i:
                return False
            out[edge] = np.float64(weights[edge]) + np.float64(weights[low])
    return True


@njit(nogil=True, cache=True)
def _root(parts: Ints, i: int) -> int:
    while parts[i] != i:
        parts[i] = parts[parts[i]]
        i = parts[i]
    return i


@njit(nogil=True, cache=True)
def find_parts(edges: tuple[Array, Array, Array], labels: Ints) -> tuple[Ints, int]:
    """Connected part of each node among those with its label, in the order of first nodes, and the
    number of parts; edges of weight zero connect nothing, others do in both directions.
    """
    indptr, indices, weights = edges
    # Union-find (Tarjan 1975): a part is a tree whose root is its first node.
    parts = np.arange(labels.size)
    for i in range(parts.size):
        root = _root(parts, i)
        for edge in range(indptr[i], indptr[i + 1]):
            other = indices[edge]
            if labels[other] != labels[i] or weights[edge] == 0:
                continue
            its_root = _root(parts, other)
            first = min(root, its_root)
            parts[max(root, its_root)] = first
            root = first
    n_parts = 0
    for i in range(parts.size):
        # Parents come before their children, and have their numbers.
        if parts[i] == i:
            parts[i] = n_parts
            n_parts += 1
        else:
            parts[i] = parts[parts[i]]
    return parts, n_parts


@njit(nogil=True, cache=True)
def weigh_inside(edges: Edges, labels: Ints, rows: tuple[int, int]) -> int:
    """Sum of the weights of edges from some nodes to nodes with the same label."""
    total = 0
    for i in range(rows[0], rows[1]):
        for edge in range(edges.indptr[i], edges.indptr[i + 1]):
            if labels[edges.indices[edge]] == labels[i]:
                total += edges.weights[edge]
    return total


def positions_by_label(labels: NDArray[np.integer], n_labels: int) -> tuple[Ints, Ints]:
    """Positions by label, those of a label in order, and where each label begins, and the end."""
    bounds = np.zeros(n_labels + 1, np.int64)
    np.cumsum(np.bincount(labels, minlength=n_labels), out=bounds[1:])
    positions = np.empty(labels.size, np.int64)
    _sort_positions(labels, bounds[:-1].copy(), positions)
    return positions, bounds


@njit(nogil=True, cache=True)
def _sort_positions(labels: NDArray[np.integer], next_slot: Ints, positions: Ints) -> None:
    for i in range(labels.size):
        positions[next_slot[labels[i]]] = i
        next_slot[labels[i]] += 1


@njit(nogil=True, cache=True)
def merge_nodes(
    edges: Edges,
    groups: Ints,
    members: tuple[Ints, Ints],
    n_edges: Ints,
    rows: tuple[int, int],
) -> tuple[Ints, Ints]:
    """Edges of some groups of nodes: the groups they lead to, in the order in which the nodes have
    them, and the sums of their weights. Edges of weight zero do not count. `members` is
    :func:`positions_by_label` of `groups`; the numbers of edges of `rows` are written to `n_edges`.
    """
    nodes, bounds = members
    most = 0
    for i in nodes[bounds[rows[0]] : bounds[rows[1]]]:
        most += edges.indptr[i + 1] - edges.indptr[i]
    merged, sums = np.empty(most, np.int64), np.empty(most, np.int64)
    # Edge to each group; those of earlier groups lie before the present group's.
    edge_to = np.full(n_edges.size, -1, np.int64)
    end = 0
    for group in range(rows[0], rows[1]):
        begin = end
        for i in nodes[bounds[group] : bounds[group + 1]]:
            for edge in range(edges.indptr[i], edges.indptr[i + 1]):
                other = groups[edges.indices[edge]]
                if edges.weights[edge] == 0:
                    continue
                if edge_to[other] < begin:
                    edge_to[other] = end
                    merged[end], sums[end] = other, 0
                    end += 1
                sums[edge_to[other]] += edges.weights[edge]
        n_edges[group] = end - begin
    return merged[:end].copy(), sums[:end].copy()


@njit(nogil=True, cache=True, error_model="numpy")
def run_step(
    vectors: Floats,
    before: Floats,
    out: Floats,
    edges: tuple[Array, Array, Array],
    degrees: Floats,
    factors: tuple[float, float, float],
    rows: tuple[int, int],
) -> None:
    """Write ``factor * (mean of the neighbours - shift * vectors) - minus * before`` of some cells.

    The three `factors` are in this order; means are weighted, and no degree is zero. Vectors are
    ``[n_blocks, n, WIDTH]``; `out` may be `before`.
    """
    indptr, indices, weights = edges
    factor, shift, minus = factors
    total = np.empty(WIDTH)
    for block in range(vectors.shape[0]):
        for i in range(rows[0], rows[1]):
            total[:] = 0.0
            for edge in range(indptr[i], indptr[i + 1]):
                weight = np.float64(weights[edge])
                other = indices[edge]
                for k in range(WIDTH):
                    total[k] += weight * vectors[block, other, k]
            for k in range(WIDTH):
                step = factor * (total[k] / degrees[i] - shift * vectors[block, i, k])
                out[block, i, k] = step - minus * before[block, i, k]
