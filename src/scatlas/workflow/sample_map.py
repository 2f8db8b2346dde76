"""The map of the sampled cells, from which all cells are mapped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import h5py
import numpy as np
from anndata.io import read_elem

from scatlas.matrix.reference_map import Sample
from scatlas.workflow.sample import ATLAS_ROW

if TYPE_CHECKING:
    from pathlib import Path

    from scatlas.arrays.array_types import Array


class SampleMap(NamedTuple):
    """The sample with its map: the components ``x`` (float32 ``[n, n_pcs]``) and the metric of its
    neighbours, the names of the clusters, and ``umap`` and ``leiden`` of ``uns``.
    """

    sample: Sample
    x: Array
    clusters: list[str]
    metric: str
    uns: dict[str, Any]


def read_map(subset: Path, neighbors: Path, umap: Path, leiden: Path) -> SampleMap:
    """Read coordinates, clusters and components of the sampled cells, without X and the graph."""
    from sklearn.utils import check_random_state

    with h5py.File(neighbors, "r") as file:
        params = read_elem(file["uns/neighbors/params"])
        distances = file["obsp/distances"]
        starts = distances["indptr"][:]
        sums = np.append(0, np.cumsum(distances["data"][:], dtype=np.float64))
    with h5py.File(umap, "r") as file:
        coordinates, umap_facts = file["obsm/X_umap"][:], read_elem(file["uns/umap"])
    with h5py.File(leiden, "r") as file:
        clusters, leiden_facts = read_elem(file["obs/leiden"]), read_elem(file["uns/leiden"])
    with h5py.File(subset, "r") as file:
        rows = file["obs"][ATLAS_ROW][:]
        x = file["obsm/X_pca"][:, : params.get("n_pcs")]
    n_neighbors = min(int(params["n_neighbors"]), starts.size - 1)
    curve = umap_facts["params"]
    sample = Sample(
        rows=rows,
        coordinates=coordinates,
        codes=clusters.codes.astype(np.int64),
        usual=(sums[starts[1:]] - sums[starts[:-1]]) / (n_neighbors - 1),
        curve=(float(curve["a"]), float(curve["b"])),
        n_neighbors=n_neighbors,
        seed=int(check_random_state(curve.get("random_state", 0)).randint(2**63)),
    )
    uns = {"umap": umap_facts, "leiden": leiden_facts}
    return SampleMap(sample, x, list(clusters.categories), params["metric"], uns)
