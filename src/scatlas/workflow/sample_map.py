"""The map of the sampled cells, from which all cells are mapped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import h5py
import numpy as np
from anndata.io import read_elem

from scatlas.matrix.cell_map import Sample
from scatlas.workflow.sample import ATLAS_ROW

if TYPE_CHECKING:
    from pathlib import Path

    from scatlas.arrays.array_types import Array


class SampleMap(NamedTuple):
    """The sample with its map.

    Attributes
    ----------
    sample
        Places and clusters.
    x
        float32 ``[n, n_pcs]``: the components in which the neighbours were found.
    clusters
        Names of the clusters.
    metric
        Metric of the neighbours.
    uns
        ``umap`` and ``leiden``, with the parameters of both.
    """

    sample: Sample
    x: Array
    clusters: list[str]
    metric: str
    uns: dict[str, Any]


def read_map(path: Path) -> SampleMap:
    """Read places, clusters and components of the sampled cells, without X and the graph.

    Parameters
    ----------
    path
        ``umap.h5ad``.
    """
    from sklearn.utils import check_random_state

    with h5py.File(path, "r") as file:
        neighbors = read_elem(file["uns/neighbors/params"])
        umap = read_elem(file["uns/umap/params"])
        distances = file["obsp/distances"]
        starts = distances["indptr"][:]
        n_neighbors = min(int(neighbors["n_neighbors"]), starts.size - 1)
        sums = np.append(0, np.cumsum(distances["data"][:], dtype=np.float64))
        leiden = read_elem(file["obs/leiden"])
        sample = Sample(
            rows=file["obs"][ATLAS_ROW][:],
            places=file["obsm/X_umap"][:],
            codes=leiden.codes.astype(np.int64),
            usual=(sums[starts[1:]] - sums[starts[:-1]]) / (n_neighbors - 1),
            curve=(float(umap["a"]), float(umap["b"])),
            n_neighbors=n_neighbors,
            seed=int(check_random_state(umap.get("random_state", 0)).randint(2**63)),
        )
        return SampleMap(
            sample,
            file["obsm/X_pca"][:, : neighbors.get("n_pcs")],
            list(leiden.categories),
            neighbors["metric"],
            {name: read_elem(file["uns"][name]) for name in ("umap", "leiden")},
        )
