"""Cells on the map of a reference, by their nearest cells there: those of new plates, with labels
and their distance from what is known, and all cells of an atlas whose sample has a map. What a cell
gets depends on its own components and number alone, not on other cells, blocks or threads.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from scatlas import blocks
from scatlas.kernels import kernels_for
from scatlas.matrix import inverted_lists
from scatlas.matrix.group_sums import aggregate_rows
from scatlas.matrix.projection import novelty, novelty_ranks, project_layout, vote_labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from scatlas.arrays.array_types import Array, Float32Array, Floats, Ints, UInt64Array
    from scatlas.matrix.gene_scale import GeneScale
    from scatlas.matrix.inverted_lists import InvertedLists
    from scatlas.matrix.inverted_lists_gpu import GpuInvertedLists

    MappedPart = tuple[Float32Array, dict[str, Array]]

# A new cell is unlike the reference if it lies further out than this share of the reference cells.
UNLIKE_RANK = 0.99
# Cells placed at a time, with some 0.1 GB of neighbours and distances on the way; four times as
# many take 0.1 GB more and no less time.
CELLS_AT_ONCE = 65_536


class Projection(NamedTuple):
    """Projection of blocks of log-normalised cells on components that stay as they are."""

    PCs: Floats  # [n_genes, n_comps]
    offset: Floats  # [n_comps]: projected mean, or minus the projected zeros of scaled genes
    scale: GeneScale | None = None  # of the genes before the projection

    def __call__(self, block: Any) -> Float32Array:
        """Cells on the components, float32 ``[n, n_comps]``, of a CSR block ``[n, n_genes]``."""
        shifted = self.scale.shift_block(block) if self.scale else block
        kernels = kernels_for("linalg.project", shifted)
        out: Float32Array = kernels.project(
            shifted, kernels.prepare_components(self.PCs), self.offset, dtype=np.float32
        )
        return out


class Layout(NamedTuple):
    """The map of the reference cells."""

    coordinates: Float32Array  # [n_reference, n_components]
    curve: tuple[float, float]  # a and b of the map, as in uns['umap']['params']
    seed: int  # of the random numbers of the coordinates


class Placement(NamedTuple):
    """What :meth:`ReferenceMap.place` finds for new cells."""

    labels: dict[str, Ints]  # by column: code of each cell's label; -1 if no neighbour has one
    # by column: share of the weight of all neighbours that has this label
    shares: dict[str, Floats]
    coordinates: Float32Array | None  # [n, n_components] on the map, if it is known
    # If usual distances are known:
    distances: Floats | None  # novelty; 1 is usual
    ranks: Floats | None  # share of the reference cells with a smaller distance


class ReferenceMap(NamedTuple):
    """Reference cells in which the neighbours of new cells are found."""

    lists: InvertedLists | GpuInvertedLists  # of the reference cells on their components
    n_neighbors: int
    codes: Mapping[str, Ints]  # by column: code of each cell's label; negative: none
    layout: Layout | None
    usual: tuple[Floats, Floats] | None = None  # of usual_distances, float64 [n_reference] each

    def place(self, x: Array, keys: UInt64Array, *, n_voters: int | None = None) -> Placement:
        """Place new cells, given their components; `keys` name them in the random numbers.

        All neighbours vote for the labels with weights, or the nearest `n_voters` with one vote
        each.
        """
        n = self.n_neighbors
        neighbours, distances = self.lists.search(x, max(n, n_voters or n))
        voters, weighted = neighbours, distances
        if n_voters is not None:
            voters = np.ascontiguousarray(neighbours[:, :n_voters])
            weighted = np.zeros(voters.shape)  # distances of zero give one vote to each
        votes = {name: vote_labels(of, voters, weighted) for name, of in self.codes.items()}
        near, lengths = (np.ascontiguousarray(part[:, :n]) for part in (neighbours, distances))
        coordinates = distance = ranks = None
        if self.layout is not None:
            known, curve, seed = self.layout
            coordinates = project_layout(known, near, lengths, curve, keys=keys, seed=seed)
        if self.usual is not None:
            distance = novelty(near, lengths, self.usual[0])
            ranks = novelty_ranks(distance, self.usual[1])
        return Placement(
            {name: labels for name, (labels, _) in votes.items()},
            {name: shares for name, (_, shares) in votes.items()},
            coordinates,
            distance,
            ranks,
        )


def join_parts(parts: Iterable[Array], n_rows: int = CELLS_AT_ONCE) -> Iterator[Array]:
    """Join neighbouring parts of the new cells up to the number that is placed at a time."""
    waiting: list[Array] = []
    for part in parts:
        if waiting and sum(map(len, waiting)) + len(part) > n_rows:
            yield np.concatenate(waiting)
            waiting = []
        waiting.append(part)
    if waiting:
        yield np.concatenate(waiting)


def index_reference(
    cells: Floats | Float32Array,
    n_neighbors: int,
    *,
    metric: str = "euclidean",
    seed: int | np.random.RandomState = 0,
) -> InvertedLists | GpuInvertedLists:
    """Index of reference cells, which finds the exact neighbours if there are few cells."""
    index = inverted_lists.build(cells, n_neighbors, metric=metric, random_state=seed)
    assert isinstance(index, inverted_lists.InvertedLists), "the cells are in main memory"
    if len(cells) <= inverted_lists.FASTER_FROM:
        index = index._replace(n_probes=index.n_lists, recall=1.0)
    return index


def usual_distances(
    index: InvertedLists | GpuInvertedLists, n_neighbors: int
) -> tuple[Floats, Floats]:
    """Mean distance of each reference cell to its nearest others, with which new cells are
    compared, and its :func:`novelty`.
    """
    neighbours, distances = index.neighbors(n_neighbors + 1)
    neighbours = np.ascontiguousarray(neighbours[:, 1:])  # without the cell itself
    distances = np.ascontiguousarray(distances[:, 1:])
    usual = distances.mean(axis=1)
    return usual, novelty(neighbours, distances, usual)


# Shares that differ by this part of the smallest are taken for equal, however alike the plates of
# the atlas are: a plate's depth and its mix of cells change the share by as much.
_TOLERANCE = 0.1


class ColumnMomentsByPlate(NamedTuple):
    """Moments of the columns of a matrix by plate, the same whatever its blocks."""

    # int64 [n_plates]: cells
    sizes: Ints
    # float64 [n_plates, n_columns]; the variance (n - 1) of a plate of one cell is 0
    mean: Floats
    variance: Floats

    @classmethod
    def read(cls, x: Any, codes: Ints, n_plates: int) -> ColumnMomentsByPlate:
        """Compute the moments in one pass; `codes` has the plate of each cell, negative: none."""
        sizes = np.bincount(codes[codes >= 0], minlength=n_plates)
        found = aggregate_rows(x, codes, sizes, ("mean", "var"), 1)
        return cls(sizes, *(np.nan_to_num(found[name]) for name in ("mean", "var")))

    @property
    def mean_of_all(self) -> Floats:
        """Mean of the cells of all plates, float64 ``[n_columns]``."""
        return (self.sizes[:, None] * self.mean).sum(axis=0) / self.sizes.sum()

    @property
    def std_of_all(self) -> Floats:
        """Standard deviation (n - 1) of the cells of all plates; 1 for a constant column."""
        n, mean = self.sizes.sum(), self.mean_of_all
        within = ((self.sizes - 1).clip(min=0)[:, None] * self.variance).sum(axis=0)
        between = (self.sizes[:, None] * (self.mean - mean) ** 2).sum(axis=0)
        variance = (within + between) / max(n - 1, 1)
        constant = variance <= np.finfo(np.float64).eps * n * (variance + mean**2)
        return np.where(constant, 1.0, np.sqrt(variance))


def held_variance(
    genes: ColumnMomentsByPlate, components: ColumnMomentsByPlate, names: list[str]
) -> pd.DataFrame:
    """Table of the variance of each plate around its own mean, and the share that components hold.

    ``genes`` are moments of the values from which the components were computed, ``components``
    those of the same cells on orthonormal components. The share is NaN for a plate without
    variance.
    """
    total, held = (moments.variance.sum(axis=1) for moments in (genes, components))
    share = np.divide(held, total, out=np.full(len(names), np.nan), where=total > 0)
    columns = {"n_cells": genes.sizes, "variance": total, "held": held, "share": share}
    return pd.DataFrame(columns, index=pd.Index(names, name="plate"))


def count_leading(variance: Floats) -> int:
    """Count the components with at least twice the variance of the last one; all if there are none.

    The last ones hold noise, most of it of the cells that they come from (Marchenko, Pastur 1967):
    with them every new plate would seem to fit badly where components are many and cells few.
    """
    return int((variance >= 2 * variance[-1]).sum()) or variance.size


def smallest_usual_share(shares: Floats) -> float:
    """Share of variance below which a new plate asks for new components: the smallest of the
    atlas's plates, less the larger of their range and a tenth of it; NaN without finite shares.

    The components were fitted to these plates, so a new one of the same kind has a smaller share.
    """
    known = shares[np.isfinite(shares)]
    if not known.size:
        return float("nan")
    smallest = known.min()
    return float(smallest - max(known.max() - smallest, _TOLERANCE * smallest))


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
    """Yield the coordinates, clusters, ``leiden_share`` and ``map_distance`` of all cells, in parts
    of any bounds; sampled cells keep their place and cluster, and are not their own neighbours.
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
