"""A map of all cells, from the map of a sample of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scatlas import blocks
from scatlas.kernels.dispatch import kernels_for
from scatlas.matrix.projection import novelty, project_layout, vote_labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scatlas.arrays.array_types import Array, Float32Array, Floats, Ints
    from scatlas.matrix.inverted_lists import InvertedLists
    from scatlas.matrix.inverted_lists_gpu import GpuInvertedLists

    MappedPart = tuple[Float32Array, dict[str, Array]]


class Sample(NamedTuple):
    """Cells whose place and cluster are known."""

    # int64 [n], ascending: number of each cell among all cells
    rows: Ints
    coordinates: Float32Array  # float32 [n, n_components]: coordinates on the map
    codes: Ints  # int64 [n]: number of each cell's cluster
    usual: Floats  # float64 [n]: mean distance of each cell to its n_neighbors - 1 nearest others
    curve: tuple[float, float]  # a and b of the map, as in uns['umap']['params']
    n_neighbors: int  # of the map's graph, counting the cell itself
    seed: int


def map_cells(
    sample: Sample, index: InvertedLists | GpuInvertedLists, parts: Iterable[Array]
) -> Iterator[MappedPart]:
    """Yield the coordinates, clusters, ``leiden_share`` and ``map_distance`` of all cells, by part.

    Sampled cells keep their place and cluster; all others take them from their nearest sampled
    cells. The shares and distances of sampled cells do not count the cell itself, so that they
    compare with those of the others. ``parts`` are components of all cells in order; their bounds
    change no result.
    """
    to_device = partial(np.asarray, like=index.order)
    coordinates, codes, usual = map(to_device, (sample.coordinates, sample.codes, sample.usual))
    sample = sample._replace(coordinates=coordinates, codes=codes, usual=usual)
    start = 0
    for x in parts:
        rows = np.arange(start, start + len(x))
        first, last = np.searchsorted(sample.rows, [start, start + len(x)])
        known = np.arange(first, last)
        yield _map_part(sample, index, x, rows, known)
        start += len(x)


def _map_part(
    sample: Sample, index: InvertedLists | GpuInvertedLists, x: Array, rows: Ints, known: Ints
) -> MappedPart:
    """Map cells of the given rows, among which are the ``known`` ones of the sample."""
    neighbours, distances = index.search(x, sample.n_neighbors)
    to_device = partial(np.asarray, like=neighbours)  # where the index is
    n = sample.n_neighbors
    own, known = to_device(sample.rows[known] - rows[0]), to_device(known)
    is_other = np.ones_like(neighbours, bool, shape=rows.size)
    is_other[own] = False
    others = np.flatnonzero(is_other)
    coordinates = np.empty_like(sample.coordinates, shape=(rows.size, sample.coordinates.shape[1]))
    coordinates[own] = sample.coordinates[known]
    coordinates[others] = project_layout(
        sample.coordinates,
        neighbours[others],
        distances[others],
        sample.curve,
        keys=to_device(rows.astype(np.uint64))[others],
        seed=sample.seed,
    )
    itself = np.full_like(others, n - 1, shape=rows.size)
    is_itself = neighbours[own] == known[:, None]
    # Among more than n_neighbors equal cells it may be missing: then any of them stands for it.
    itself[own] = np.where(is_itself.any(axis=1), is_itself.argmax(axis=1), itself[own])
    kept = np.arange(n, like=neighbours) != itself[:, None]
    neighbours, distances = (table[kept].reshape(-1, n - 1) for table in (neighbours, distances))
    codes, shares = vote_labels(sample.codes, neighbours, distances)
    codes[own] = sample.codes[known]
    kernels = kernels_for("graphs.umap", distances)
    weights = kernels.memberships_in_reference(distances[own]).astype(np.float64)
    agree = sample.codes[neighbours[own]] == codes[own][:, None]
    shares[own] = (weights * agree).sum(axis=1) / weights.sum(axis=1)
    distances = novelty(neighbours, distances, sample.usual)
    found = {"leiden": codes, "leiden_share": shares, "map_distance": distances}
    return blocks.on_host(coordinates), {name: blocks.on_host(x) for name, x in found.items()}
