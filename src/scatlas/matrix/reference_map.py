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
    from collections.abc import Mapping

    from scatlas.arrays.array_types import Array, Float32Array, Floats, Ints, UInt64Array
    from scatlas.matrix.gene_scale import GeneScale
    from scatlas.matrix.inverted_lists import InvertedLists
    from scatlas.matrix.inverted_lists_gpu import GpuInvertedLists

# A new cell is unlike the reference if it lies further out than this share of the reference cells.
UNLIKE_RANK = 0.99


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


class Placement(NamedTuple):
    """What :meth:`ReferenceMap.place` finds for new cells."""

    coordinates: Float32Array  # [n, n_components] on the map
    labels: dict[str, Ints]  # by column: code of each cell's label; -1 if no neighbour has one
    # by column: share of the weight of all neighbours that has this label
    shares: dict[str, Floats]
    distances: Floats  # novelty; 1 is usual
    ranks: Floats  # share of the reference cells with a smaller distance


class ReferenceMap(NamedTuple):
    """Reference cells in which the neighbours of new cells are found."""

    lists: InvertedLists | GpuInvertedLists  # of the reference cells on their components
    coordinates: Float32Array  # [n_reference, n_components] on the map
    codes: Mapping[str, Ints]  # by column: code of each cell's label; negative: none
    # float64 [n_reference] each, from usual_distances
    usual: Floats
    distances: Floats
    n_neighbors: int
    curve: tuple[float, float]  # a and b of the map, as in uns['umap']['params']
    seed: int  # of the random numbers of the coordinates

    def place(self, x: Array, keys: UInt64Array) -> Placement:
        """Place new cells, given their components; `keys` name them in the random numbers."""
        neighbours, distances = self.lists.search(x, self.n_neighbors)
        votes = {name: vote_labels(of, neighbours, distances) for name, of in self.codes.items()}
        coordinates = project_layout(
            self.coordinates, neighbours, distances, self.curve, keys=keys, seed=self.seed
        )
        found = novelty(neighbours, distances, self.usual)
        return Placement(
            coordinates,
            {name: labels for name, (labels, _) in votes.items()},
            {name: shares for name, (_, shares) in votes.items()},
            found,
            novelty_ranks(found, self.distances),
        )


def index_reference(
    cells: Float32Array, n_neighbors: int, *, seed: int = 0
) -> InvertedLists | GpuInvertedLists:
    """Index of reference cells, which finds the exact neighbours if there are few cells."""
    index = inverted_lists.build(cells, n_neighbors + 1, random_state=seed)
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
