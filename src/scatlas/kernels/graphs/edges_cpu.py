"""Operations on the edges of a graph: sum with its transpose, connected parts, merged nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scatlas.arrays.array_types import Array, Floats, Ints
    from scatlas.kernels.graphs.communities_cpu import Edges


def add_transposed(edges: tuple[Array, Array, Array], out: Floats, rows: tuple[int, int]) -> bool:
    """Write the sum of each edge's weight and that of the edge in the other direction, and return
    whether each has one; if not, ``out`` is incomplete. Indices ascend in each row.
    """
    return bool(_add_transposed(*edges, out, *rows))


def find_parts(edges: tuple[Array, Array, Array], labels: Ints) -> tuple[Ints, int]:
    """Connected part of each node among those with its label, in the order of the parts' first
    nodes, and the number of parts. Edges of weight zero connect nothing; those in one direction
    connect, as those in both.
    """
    parts = np.empty(labels.size, np.int64)
    return parts, int(_find_parts(*edges, labels, parts))


def weigh_inside(edges: Edges, labels: Ints, rows: tuple[int, int]) -> int:
    """Sum of the weights of edges from some nodes to nodes with the same label."""
    return int(_weigh_inside(*edges, labels, *rows))


def positions_by_label(labels: NDArray[np.integer], n_labels: int) -> tuple[Ints, Ints]:
    """Positions by label, those of a label in order, and where each label begins, and the end."""
    bounds = np.zeros(n_labels + 1, np.int64)
    np.cumsum(np.bincount(labels, minlength=n_labels), out=bounds[1:])
    positions = np.empty(labels.size, np.int64)
    _sort_positions(labels, bounds[:-1].copy(), positions)
    return positions, bounds


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
    return _merge_nodes(*edges, groups, *members, n_edges, *rows)


@njit(nogil=True, cache=True)
def _add_transposed(
    indptr: Array, indices: Array, weights: Array, out: Floats, start: int, stop: int
) -> bool:
    for i in range(start, stop):
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
def _find_parts(indptr: Array, indices: Array, weights: Array, labels: Ints, parts: Ints) -> int:
    # Union-find (Tarjan 1975): a part is a tree whose root is its first node.
    for i in range(parts.size):
        parts[i] = i
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
    return n_parts


@njit(nogil=True, cache=True)
def _weigh_inside(
    indptr: Ints, indices: Ints, weights: Ints, labels: Ints, start: int, stop: int
) -> int:
    total = 0
    for i in range(start, stop):
        for edge in range(indptr[i], indptr[i + 1]):
            if labels[indices[edge]] == labels[i]:
                total += weights[edge]
    return total


@njit(nogil=True, cache=True)
def _sort_positions(labels: NDArray[np.integer], places: Ints, positions: Ints) -> None:
    for i in range(labels.size):
        positions[places[labels[i]]] = i
        places[labels[i]] += 1


@njit(nogil=True, cache=True)
def _merge_nodes(
    indptr: Ints,
    indices: Ints,
    weights: Ints,
    groups: Ints,
    members: Ints,
    bounds: Ints,
    n_edges: Ints,
    first: int,
    last: int,
) -> tuple[Ints, Ints]:
    most = 0
    for i in members[bounds[first] : bounds[last]]:
        most += indptr[i + 1] - indptr[i]
    merged, sums = np.empty(most, np.int64), np.empty(most, np.int64)
    # Edge to each group; those of earlier groups lie before the present group's.
    edge_to = np.full(n_edges.size, -1, np.int64)
    end = 0
    for group in range(first, last):
        begin = end
        for i in members[bounds[group] : bounds[group + 1]]:
            for edge in range(indptr[i], indptr[i + 1]):
                other = groups[indices[edge]]
                if weights[edge] == 0:
                    continue
                if edge_to[other] < begin:
                    edge_to[other] = end
                    merged[end], sums[end] = other, 0
                    end += 1
                sums[edge_to[other]] += weights[edge]
        n_edges[group] = end - begin
    return merged[:end].copy(), sums[:end].copy()
