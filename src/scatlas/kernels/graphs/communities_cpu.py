"""Moves of cells between communities of a graph, by modularity; sums are exact integers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.graphs.layout_cpu import hash_numbers

if TYPE_CHECKING:
    from scatlas.arrays.array_types import Ints

# Fibonacci hashing (Knuth, volume 3, section 6.4): a community's slot of a table.
_SLOT = 0x9E3779B1


class Edges(NamedTuple):
    """CSR graph, symmetric, with whole numbers as weights."""

    indptr: Ints
    indices: Ints
    weights: Ints


class Communities(NamedTuple):
    """Community of each node, and sums by community; int64 ``[n]`` each."""

    labels: Ints
    degrees: Ints  # sum of the nodes' weights, by community
    sizes: Ints  # number of nodes, by community


@njit(nogil=True, cache=True)
def propose(
    edges: Edges,
    degrees: Ints,
    communities: Communities,
    within: Ints,
    out: Ints,
    rows: tuple[int, int],
    penalty: float,
    only_single: bool,
    share: int,
    number: int,
    seed: int,
) -> None:
    """Write the best community of some nodes, as things were before the round.

    The gain of a community is the weight of the node's edges to it, less ``penalty`` (resolution
    divided by the sum of all degrees) times the product of their degrees (Newman, Girvan 2004;
    Traag, Waltman, van Eck 2019). Of equal gains the node's community wins, then the lowest number.
    With `only_single`, only nodes that are alone move, to nodes of the same number in `within` and
    to communities whose nodes stay in this round: so every community remains connected. One of
    `share` nodes may move, chosen by a hash of node, round `number` and `seed`.
    """
    indptr, indices, weights = edges
    labels, totals, sizes = communities
    draw = np.uint64(share), np.uint64(number), np.uint64(seed)
    most = 1
    for i in range(rows[0], rows[1]):
        most = max(most, indptr[i + 1] - indptr[i])
    n_slots = 2
    while n_slots < 2 * most:
        n_slots *= 2
    names, sums = np.full(n_slots, -1, np.int64), np.zeros(n_slots, np.int64)
    used = np.empty(most, np.int64)
    for i in range(rows[0], rows[1]):
        mine = labels[i]
        out[i] = mine
        if (only_single and sizes[mine] > 1) or not _may_move(i, draw):
            continue
        n_used = 0
        own = 0
        for edge in range(indptr[i], indptr[i + 1]):
            other = indices[edge]
            label = labels[other]
            if other == i or (only_single and within[other] != within[i]):
                continue
            if label == mine:
                own += weights[edge]
                continue
            is_alone = only_single and sizes[label] == 1 and draw[0] > 1
            if is_alone and _may_move(other, draw):
                continue
            slot = (label * _SLOT) & (n_slots - 1)
            while names[slot] != -1 and names[slot] != label:
                slot = (slot + 1) & (n_slots - 1)
            if names[slot] == -1:
                names[slot] = label
                used[n_used] = slot
                n_used += 1
            sums[slot] += weights[edge]
        factor = penalty * degrees[i]
        best = own - factor * (totals[mine] - degrees[i])
        for slot in used[:n_used]:
            gain = sums[slot] - factor * totals[names[slot]]
            is_equal = gain == best and out[i] != mine and names[slot] < out[i]
            if gain > best or is_equal:
                best, out[i] = gain, names[slot]
            names[slot], sums[slot] = -1, 0


@njit(nogil=True, cache=True)
def _may_move(node: int, draw: tuple[np.uint64, np.uint64, np.uint64]) -> bool:
    share, number, seed = draw
    return hash_numbers(seed, number, np.uint64(node)) % share == 0


@njit(nogil=True, cache=True)
def move(degrees: Ints, communities: Communities, proposed: Ints) -> int:
    """Move the nodes to their proposed communities, in place, and return how many moved."""
    n_moved = 0
    for i in range(proposed.size):
        if proposed[i] != communities.labels[i]:
            _move_node(i, degrees, communities, proposed[i])
            n_moved += 1
    return n_moved


@njit(nogil=True, cache=True)
def _move_node(i: int, degrees: Ints, communities: Communities, label: int) -> None:
    labels, totals, sizes = communities
    totals[labels[i]] -= degrees[i]
    sizes[labels[i]] -= 1
    totals[label] += degrees[i]
    sizes[label] += 1
    labels[i] = label


@njit(nogil=True, cache=True)
def sweep(
    edges: Edges,
    degrees: Ints,
    communities: Communities,
    within: Ints,
    penalty: float,
    only_single: bool,
) -> int:
    """Move one node after the other to its best community, in place; return how many moved."""
    n_moved = 0
    labels, out = communities.labels, communities.labels.copy()
    for i in range(labels.size):
        node = i, i + 1
        # One of one may move: all may.
        propose(edges, degrees, communities, within, out, node, penalty, only_single, 1, 0, 0)
        if out[i] != labels[i]:
            _move_node(i, degrees, communities, out[i])
            n_moved += 1
    return n_moved
