"""New cells on the map of a reference: labels, coordinates, and their distance from what is known.

What a cell gets depends on its own components and number alone: not on the cells placed with it,
nor on blocks or threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scatlas.kernels.dispatch import kernels_for
from scatlas.matrix import inverted_lists
from scatlas.matrix.projection import novelty, novelty_ranks, project_layout, vote_labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from scatlas.arrays.array_types import Array, Float32Array, Floats, Ints, UInt64Array
    from scatlas.matrix.gene_scale import GeneScale
    from scatlas.matrix.inverted_lists import InvertedLists
    from scatlas.matrix.inverted_lists_gpu import GpuInvertedLists

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

        All neighbours vote for the labels, by their distances; if `n_voters` is given, so many of
        the nearest cells with one vote each.
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
    """Mean distance of each reference cell to its nearest others, and its :func:`novelty`.

    These are the distances that new cells are compared with.
    """
    neighbours, distances = index.neighbors(n_neighbors + 1)
    neighbours = np.ascontiguousarray(neighbours[:, 1:])  # without the cell itself
    distances = np.ascontiguousarray(distances[:, 1:])
    usual = distances.mean(axis=1)
    return usual, novelty(neighbours, distances, usual)
