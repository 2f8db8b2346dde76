"""Operations on the edges of a graph: sum with its transpose, connected parts, merged nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from scatlas.arrays.array_types import Array, Floats, Ints
    from scatlas.kernels.graphs.communities_cpu import Edges

# First node of each group in a list of nodes by group, and the list.
Members: TypeAlias = tuple["Ints", "Ints"]


def add_transposed(edges: tuple[Array, Array, Array], out: Floats, rows: tuple[int, int]) -> bool:
    """Write the sum of each edge's weight and that of the edge in the other direction.

    Parameters
    ----------
    edges
        ``indptr``, ``indices`` in ascending order per row, and weights of a CSR graph ``[n, n]``.
    out
        float64, one value per edge: those of `rows` are overwritten.
    rows
        First node and the one after the last.

    Returns
    -------
    Whether each of these edges has one in the other direction; if not, ``out`` is incomplete.
    """
    return bool(_add_transposed(*edges, out, *rows))


def find_parts(edges: tuple[Array, Array, Array], labels: Ints) -> tuple[Ints, int]:
    """Find the connected parts of the nodes with the same label.

    Edges of weight zero connect nothing; those in one direction connect, as those in both.

    Parameters
    ----------
    edges
        ``indptr``, ``indices`` and weights of a CSR graph ``[n, n]``.
    labels
        Integers ``[n]``.

    Returns
    -------
    int64 ``[n]``, the part of each node, in the order of the parts' first nodes; and the number of
    parts.
    """
    parts = np.empty(labels.size, np.int64)
    return parts, int(_find_parts(*edges, labels, parts))


def weigh_inside(edges: Edges, labels: Ints, rows: tuple[int, int]) -> int:
    """Sum of the weights of edges from some nodes to nodes with the same label."""
    return int(_weigh_inside(*edges, labels, *rows))


def list_members(groups: Ints, n_groups: int) -> Members:
    """Nodes by group, ascending in each, for groups ``[n]`` from 0 to ``n_groups - 1``."""
    starts = np.zeros(n_groups + 1, np.int64)
    members = np.empty(groups.size, np.int64)
    _list_members(groups, starts, members)
    return starts, members


def count_merged(
    edges: Edges, groups: Ints, members: Members, out: Ints, rows: tuple[int, int]
) -> None:
    """Write how many groups the edges of some groups lead to; edges of weight zero do not count.

    Parameters
    ----------
    edges
        The graph ``[n, n]``.
    groups, members
        int64 ``[n]``: group of each node; and the nodes of each group.
    out
        int64 ``[n_groups]``: `rows` are overwritten.
    rows
        First group and the one after the last.
    """
    _count_merged(*edges, groups, *members, out, *rows)


def fill_merged(
    edges: Edges, groups: Ints, members: Members, merged: Edges, rows: tuple[int, int]
) -> None:
    """Write the edges of some groups to the graph of the groups: sums of the nodes' edges.

    Parameters
    ----------
    edges, groups, members, rows
        As in :func:`count_merged`.
    merged
        Graph ``[n_groups, n_groups]`` with its ``indptr``; the rest is overwritten. The edges of a
        group are in the order in which its nodes have them.
    """
    _fill_merged(*edges, groups, *members, *merged, *rows)


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
def _list_members(groups: Ints, starts: Ints, members: Ints) -> None:
    for group in groups:
        starts[group + 1] += 1
    for group in range(starts.size - 1):
        starts[group + 1] += starts[group]
    filled = starts.copy()
    for i in range(groups.size):
        members[filled[groups[i]]] = i
        filled[groups[i]] += 1


@njit(nogil=True, cache=True)
def _count_merged(
    indptr: Ints,
    indices: Ints,
    weights: Ints,
    groups: Ints,
    starts: Ints,
    members: Ints,
    out: Ints,
    first: int,
    last: int,
) -> None:
    seen_by = np.full(out.size, -1, np.int64)
    for group in range(first, last):
        n = 0
        for i in members[starts[group] : starts[group + 1]]:
            for edge in range(indptr[i], indptr[i + 1]):
                other = groups[indices[edge]]
                if weights[edge] != 0:
                    n += seen_by[other] != group
                    seen_by[other] = group
        out[group] = n


@njit(nogil=True, cache=True)
def _fill_merged(
    indptr: Ints,
    indices: Ints,
    weights: Ints,
    groups: Ints,
    starts: Ints,
    members: Ints,
    merged_indptr: Ints,
    merged_indices: Ints,
    merged_weights: Ints,
    first: int,
    last: int,
) -> None:
    # Edge to each group; those of earlier groups lie before the present group's.
    edge_to = np.full(merged_indptr.size - 1, -1, np.int64)
    for group in range(first, last):
        begin = end = merged_indptr[group]
        for i in members[starts[group] : starts[group + 1]]:
            for edge in range(indptr[i], indptr[i + 1]):
                other = groups[indices[edge]]
                if weights[edge] == 0:
                    continue
                if edge_to[other] < begin:
                    edge_to[other] = end
                    merged_indices[end], merged_weights[end] = other, 0
                    end += 1
                merged_weights[edge_to[other]] += weights[edge]
