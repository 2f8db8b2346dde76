"""The sampled cells and what each step adds to them: Zarr stores of :func:`write_parts`, which hold
what the map needs and no names, obs columns or counts.

``subset.zarr`` has the rows of the cells in the atlas and, if these are not all cells, their
components.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from anndata.io import read_elem

from scatlas.io.files.local_zarr import open_store, open_with_zarr_python
from scatlas.io.matrices.subset import take_csr, take_rows
from scatlas.io.tables.column import Column
from scatlas.matrix.communities import by_size

if TYPE_CHECKING:
    from pathlib import Path

    from scatlas.matrix.reference_map import Sample

# Rows of the sampled cells in the atlas: a column of `obs`.
ATLAS_ROW = "atlas_row"


@dataclass
class SampledCells:
    """What the steps of the map use of an AnnData, without names."""

    n_obs: int
    obsm: dict[str, Any] = field(default_factory=dict)
    obsp: dict[str, Any] = field(default_factory=dict)
    uns: dict[str, Any] = field(default_factory=dict)
    obs: pd.DataFrame = field(init=False)

    def __post_init__(self) -> None:
        self.obs = pd.DataFrame(index=range(self.n_obs))


def rows_of_sample(subset: Path) -> np.ndarray:
    return take_rows(subset, f"obs/{ATLAS_ROW}")


def components_of_sample(subset: Path, components: Path, basis: str) -> np.ndarray:
    """Components of the sampled cells, float32 [cells, n_comps]; ``components`` are all cells'."""
    if f"obsm/{basis}" in open_store(subset):
        return take_rows(subset, f"obsm/{basis}")
    return take_rows(components, basis)


def cells_with_graph(neighbors: Path) -> SampledCells:
    weights = take_csr(neighbors, "obsp/connectivities")
    found = read_uns(neighbors)
    found["neighbors"]["params"]["use_rep"] = "X_pca"  # the steps have nothing else
    return SampledCells(weights.shape[0], obsp={"connectivities": weights}, uns=found)


def read_uns(store: Path) -> dict[str, Any]:
    return read_elem(open_with_zarr_python(store)["uns"])


def read_column(store: Path, name: str, rows: np.ndarray | None = None) -> Any:
    """An obs column as pandas keeps it, of all cells or of ``rows``, which ascend."""
    return Column.open(store, open_store(store)["obs"], name).take(rows)


def number_by_size(obs: pd.DataFrame, key: str) -> None:
    """Name clusters by their size, ``0`` the largest, which igraph does not."""
    column = obs[key].cat
    obs[key] = pd.Categorical.from_codes(by_size(column.codes.to_numpy()), column.categories)


class SampleMap(NamedTuple):
    """The sample with its map: parameters of its neighbours, which were found in the components
    ``basis``, and ``umap`` and ``leiden`` of ``uns``.
    """

    rows: np.ndarray
    coordinates: np.ndarray
    clusters: pd.Categorical
    params: dict[str, Any]
    uns: dict[str, Any]

    @property
    def basis(self) -> str:
        return self.params.get("use_rep", "X_pca")

    @property
    def n_pcs(self) -> int:
        return int(self.params["n_pcs"])

    @property
    def n_neighbors(self) -> int:
        return min(int(self.params["n_neighbors"]), self.rows.size)


def read_map(subset: Path, neighbors: Path, umap: Path, leiden: Path) -> SampleMap:
    """Read coordinates and clusters of the sampled cells, without components and graph."""
    return SampleMap(
        rows_of_sample(subset),
        take_rows(umap, "obsm/X_umap"),
        read_column(leiden, "leiden"),
        read_uns(neighbors)["neighbors"]["params"],
        {**read_uns(umap), **read_uns(leiden)},
    )


def sample_to_place_by(found: SampleMap, neighbors: Path) -> Sample:
    """The sample as other cells are placed by it, with the usual distances of its neighbours."""
    from sklearn.utils import check_random_state

    from scatlas.matrix.reference_map import Sample

    starts = take_rows(neighbors, "obsp/distances/indptr")
    distances = take_rows(neighbors, "obsp/distances/data")
    sums = np.append(0, np.cumsum(distances, dtype=np.float64))
    curve = found.uns["umap"]["params"]
    return Sample(
        rows=found.rows,
        coordinates=found.coordinates,
        codes=found.clusters.codes.astype(np.int64),
        usual=(sums[starts[1:]] - sums[starts[:-1]]) / (found.n_neighbors - 1),
        curve=(float(curve["a"]), float(curve["b"])),
        n_neighbors=found.n_neighbors,
        seed=int(check_random_state(curve.get("random_state", 0)).randint(2**63)),
    )
