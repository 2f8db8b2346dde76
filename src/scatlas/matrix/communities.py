"""Leiden clusters of a large graph in rounds: the same bits on any number of threads."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp

from scatlas import blocks
from scatlas.arrays.kinds import is_gpu
from scatlas.compute.threads import over_cells
from scatlas.kernels import csr_arrays, kernels_for
from scatlas.kernels.graphs.communities_cpu import Communities, Edges, sweep
from scatlas.kernels.graphs.edges_cpu import merge_nodes, positions_by_label
from scatlas.matrix.projection import over_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scatlas.arrays.array_types import Array, Floats, Ints
    from scatlas.compute.threads import Rows

_SCALE = 2**20  # of weights as whole numbers, with the heaviest edge at this number
# One of four nodes moves per round: with one of two, modularity is up to 0.6% lower.
_SHARE = 4
# Up to this many nodes move one after the other, on one thread: few moves decide which communities
# merge. More of them at once would merge too many, and in a fixed order too early.
_SWEEP_UP_TO = 1000
_MAX_ROUNDS = 40
_FEW = 1000  # rounds end if fewer than one of this many nodes moves
_MIN_GAIN = 1e-5  # of modularity, relative, of an iteration that another one follows


def leiden(
    graph: sp.csr_matrix,
    *,
    resolution: float,
    n_iterations: int,
    seed: int,
    to_device: Callable[[Ints], Array] = np.asarray,
) -> Ints:
    """Communities of a graph by the Leiden algorithm, with nodes that move at the same time.

    Traag, Waltman, van Eck (2019): local moves, refinement of each community, aggregation. In a
    round one of four nodes, chosen by a hash, moves to the best community of the round before, and
    in the refinement only nodes that are alone move, to communities that stay: these remain
    connected. Aggregated graphs of up to 1,000 nodes are optimised node by node. At the end a
    community in several parts is split, which raises modularity.

    Entries of ``graph``, at least 0, add up with their transposed ones. A negative ``n_iterations``
    repeats until modularity grows by less than 1e-5 of itself. ``to_device`` says where the rounds
    run (``pinned_copies.to_gpu``: a GPU), with the same result: weights are multiples of 2**-20 of
    the largest one, so their sums are exact.
    """
    finest = _whole_edges(graph, to_device)
    penalty = resolution / max(1, int(finest.degrees.sum()))
    search = _Search(penalty, seed, itertools.count(), to_device, is_gpu(finest.degrees))
    find_parts = kernels_for("graphs.edges", finest.degrees).find_parts
    best, highest = np.arange(graph.shape[0], like=finest.degrees), -np.inf
    for _ in itertools.count() if n_iterations < 0 else range(n_iterations):
        # A community in several parts is split.
        labels, n = find_parts(finest.edges, _iterate(finest, best, search))
        totals = blocks.on_host(_sums(finest.degrees, labels, n)).astype(np.float64)
        inside = _weight_inside(finest.edges, labels, gpu=search.gpu)
        quality = inside - penalty * float((totals**2).sum())
        gain = quality - highest
        if gain > 0:
            best, highest = labels, quality
        if not gain > _MIN_GAIN * abs(quality):
            break
    found: Ints = blocks.on_host(best)
    return found


def by_size(labels: Ints) -> Ints:
    """Clusters renumbered by size, the largest first, those of equal size by their first cell."""
    sizes = np.bincount(labels)
    first = np.empty(sizes.size, np.int64)
    first[labels[::-1]] = np.arange(labels.size - 1, -1, -1)  # the last one written stays
    used = np.flatnonzero(sizes)
    rank = np.empty(sizes.size, np.int64)
    rank[used[np.lexsort((first[used], -sizes[used]))]] = np.arange(used.size)
    return rank[labels]


class _Level(NamedTuple):
    """A graph and the sums of its rows, where the rounds run."""

    edges: Edges
    degrees: Ints


class _Search(NamedTuple):
    """What is the same in all steps; each round hashes with its number."""

    penalty: float
    seed: int
    numbers: Iterator[int]
    to_device: Callable[[Ints], Array]
    gpu: bool


def _iterate(level: _Level, labels: Ints, search: _Search) -> Ints:
    """Communities after one pass through all levels."""
    node = np.arange(labels.size, like=labels)
    while True:
        labels = _number(_optimise(level, labels, labels, search, only_single=False))
        alone = np.arange(labels.size, like=labels)
        refined = _number(_optimise(level, alone, labels, search, only_single=True))
        n = int(refined.max()) + 1 if refined.size else 0
        if n == labels.size:
            return labels[node]
        edges = _merge(level.edges, refined, n, gpu=search.gpu)
        level = _Level(edges, _sums(level.degrees, refined, n))
        node = refined[node]
        part_labels = np.empty(n, np.int64, like=labels)
        part_labels[refined] = labels
        labels = _number(part_labels)


def _optimise(
    level: _Level, labels: Ints, within: Ints, search: _Search, *, only_single: bool
) -> Ints:
    """Communities after local moves."""
    n = labels.size
    sizes = np.bincount(labels, minlength=n)
    communities = Communities(labels.copy(), _sums(level.degrees, labels, n), sizes)
    if n <= _SWEEP_UP_TO:
        communities = Communities(*map(blocks.on_host, communities))
        edges = Edges(*map(blocks.on_host, level.edges))
        degrees, within = blocks.on_host(level.degrees), blocks.on_host(within)
        for _ in range(_MAX_ROUNDS):
            state = edges, degrees, communities, within
            if not sweep(*state, penalty=search.penalty, only_single=only_single):
                break
        return search.to_device(communities.labels)
    degrees = level.degrees
    kernels = kernels_for("graphs.communities", degrees)
    out = communities.labels.copy()
    n_quiet = 0
    with over_cells(n) as call:
        for number in itertools.islice(search.numbers, _MAX_ROUNDS):
            task = partial(
                kernels.propose,
                *(level.edges, degrees, communities, within, out),
                penalty=search.penalty,
                only_single=only_single,
                share=_SHARE,
                number=number,
                seed=search.seed,
            )
            if search.gpu:
                task()
            else:
                call(task)
            is_quiet = kernels.move(degrees, communities, out) * _FEW < n
            n_quiet = n_quiet + 1 if is_quiet else 0
            if n_quiet == _SHARE:
                break
    return communities.labels


def _whole_edges(graph: sp.csr_matrix, to_device: Callable[[Array], Array] = np.asarray) -> _Level:
    """Sums of the weights in both directions, as multiples of the largest one's part; by row."""
    indptr, indices, weights = map(to_device, csr_arrays(graph)[::-1])
    n, complete = graph.shape[0], [bool(graph.nnz and graph.has_canonical_format)]
    both: Floats = np.empty_like(weights, np.float64, shape=graph.nnz)
    if complete[0]:
        parts, kernels = (indptr, indices, weights), kernels_for("graphs.edges", both)
        over_all(n, both, lambda rows: complete.append(kernels.add_transposed(parts, both, rows)))
    if not all(complete):
        graph = sp.csr_matrix(graph, dtype=np.float64)
        graph = (graph + graph.T).tocsr()
        indptr, indices, both = map(to_device, csr_arrays(graph)[::-1])
    scale = _SCALE / max(float(both.max()) if both.size else 0.0, 1e-300)
    edges = Edges(indptr, *(np.empty_like(both, np.int64) for _ in range(2)))
    degrees = np.empty_like(indptr[1:])

    def convert(rows: Rows) -> None:
        offsets = indptr[rows[0] : rows[1] + 1]
        own = slice(int(offsets[0]), int(offsets[-1]))
        edges.indices[own] = indices[own]
        edges.weights[own] = np.rint(both[own] * scale)
        sums = np.zeros_like(edges.weights, shape=own.stop - own.start + 1)
        sums[1:] = edges.weights[own]
        degrees[rows[0] : rows[1]] = np.diff(np.cumsum(sums)[offsets - own.start])

    over_all(n, both, convert)
    return _Level(edges, degrees)


def _merge(edges: Edges, groups: Ints, n_groups: int, *, gpu: bool = False) -> Edges:
    """Graph of groups of nodes: sums of their edges, in any order within a row."""
    if gpu:
        from scatlas.kernels.graphs import edges_gpu

        return Edges(*edges_gpu.merge_nodes(edges, groups, n_groups))
    members = positions_by_label(groups, n_groups)
    n_edges = np.empty(n_groups, np.int64)
    merged: dict[Rows, tuple[Ints, Ints]] = {}

    def merge(rows: Rows) -> None:
        merged[rows] = merge_nodes(edges, groups, members, n_edges, rows)

    with over_cells(n_groups) as call:
        call(merge)
    parts = zip(*(merged[rows] for rows in sorted(merged)), strict=True)
    return Edges(np.concatenate([[0], np.cumsum(n_edges)]), *map(np.concatenate, parts))


def _weight_inside(edges: Edges, labels: Array, *, gpu: bool = False) -> float:
    """Sum of the weights of edges within communities, exact."""
    weigh = kernels_for("graphs.edges", labels).weigh_inside
    if gpu:
        return float(weigh(edges, labels))
    sums: list[int] = []
    with over_cells(labels.size) as call:
        call(lambda rows: sums.append(weigh(edges, labels, rows)))
    return float(sum(sums))


def _number(labels: Ints) -> Ints:
    """Labels below their number, numbered from 0, without gaps."""
    is_used = np.zeros_like(labels)
    is_used[labels] = 1
    return (np.cumsum(is_used) - 1)[labels]


def _sums(values: Ints, groups: Ints, n_groups: int) -> Ints:
    """Sum of the values of each group: whole numbers, which float64 holds up to 2**53."""
    sums: Ints = np.bincount(groups, weights=values, minlength=n_groups).astype(np.int64)
    return sums
