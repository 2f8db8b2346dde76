"""The sampled cells and what each step adds to them, in h5ad files with the same cells."""

from __future__ import annotations

import os
import shutil
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import h5py
import numpy as np
import pandas as pd
from anndata.io import read_elem

from scatlas.io.files.hdf5_writing import create_hdf5, decode, read_element, write_element
from scatlas.io.zarr_writer.elements import MAPPINGS
from scatlas.matrix.communities import by_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from scatlas.arrays.array_types import Array
    from scatlas.matrix.reference_map import Sample

# Rows of the sampled cells in the atlas: a column of `obs`.
ATLAS_ROW = "atlas_row"


@dataclass
class SampledCells:
    """What the steps of the map use of an AnnData, without names: to read, hash and write these
    takes more than a second per million cells, longer than neighbours and UMAP on a GPU.
    """

    n_obs: int
    obsm: dict[str, Any] = field(default_factory=dict)
    obsp: dict[str, Any] = field(default_factory=dict)
    uns: dict[str, Any] = field(default_factory=dict)
    obs: pd.DataFrame = field(init=False)

    def __post_init__(self) -> None:
        self.obs = pd.DataFrame(index=range(self.n_obs))


def read_sample(path: Path, *, basis: str | None = None) -> SampledCells:
    """Number of cells and, if named, the components ``basis`` of ``subset.h5ad``, as ``X_pca``."""
    with h5py.File(path, "r") as file:
        found = {} if basis is None else {"X_pca": read_element(file["obsm"][basis])}
        return SampledCells(len(file["obs"][ATLAS_ROW]), found)


def write_part(path: Path, cells: SampledCells, subset: Path) -> None:
    """Write what a step has added to the sample, as an h5ad file. Its names are a link to those of
    ``subset``, relative to the folder of ``path``.
    """
    with h5py.File(subset, "r") as file:
        names = file["obs"].attrs["_index"]
    with create_hdf5(path) as file:
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        obs = file.create_group("obs")
        obs.attrs.update({"encoding-type": "dataframe", "encoding-version": "0.2.0"})
        obs.attrs.update({"_index": names, "column-order": list(cells.obs)})
        obs[names] = h5py.ExternalLink(os.path.relpath(subset, path.parent), f"/obs/{names}")
        for name, column in cells.obs.items():
            write_element(obs, name, column.values)
        write_element(file, "var", pd.DataFrame(index=pd.Index([], dtype=object)))
        for key in MAPPINGS:
            write_element(file, key, getattr(cells, key, {}))


def add_graph(cells: SampledCells, path: Path) -> None:
    """Add the weights and parameters of the neighbourhood graph in ``path`` to the same cells."""
    with h5py.File(path, "r") as file:
        cells.obsp["connectivities"] = read_element(file["obsp/connectivities"])
        cells.uns["neighbors"] = read_elem(file["uns/neighbors"])
        cells.uns["neighbors"]["params"]["use_rep"] = "X_pca"  # the steps have nothing else


def number_by_size(obs: pd.DataFrame, key: str) -> None:
    """Name clusters by their size, ``0`` the largest, which igraph does not."""
    column = obs[key].cat
    obs[key] = pd.Categorical.from_codes(by_size(column.codes.to_numpy()), column.categories)


def renumber(path: Path, numbers: Sequence[int]) -> None:
    """Give the clusters of a sample other numbers, in the order of the old ones."""
    with create_hdf5(path, append=True) as file:
        codes = file["obs/leiden/codes"]
        codes[:] = np.asarray(numbers, codes.dtype)[codes[:]]


def join_files(path: Path, subset: Path, parts: Iterable[Path]) -> None:
    """Write the sample ``subset.h5ad`` with the parts that steps have added to it. What is
    compressed is copied as it is. The files are read before, because a copy keeps damage.
    """
    read_all(subset)
    # HDF5 would copy text value by value.
    shutil.copyfile(subset, path)
    with create_hdf5(path, append=True) as out:
        columns = list(out["obs"].attrs["column-order"])
        for part in parts:
            read_all(part)
            with h5py.File(part, "r") as file:
                added = list(file["obs"].attrs["column-order"])
                columns += [name for name in added if name not in columns]
                names = [("obs", name) for name in added]
                names += [(key, name) for key in ("obsm", "obsp", "uns") for name in file[key]]
                for key, name in names:
                    if name in out[key]:
                        del out[key][name]
                    file[key].copy(name, out[key])
        out["obs"].attrs["column-order"] = columns


def read_all(path: Path) -> None:
    """Decode all chunks, which checks their checksums."""

    def read(_: str, node: h5py.Dataset | h5py.Group) -> None:
        if isinstance(node, h5py.Dataset) and node.chunks and node.size:
            deque(decode(node), maxlen=0)

    with h5py.File(path, "r") as file:
        file.visititems(read)


class SampleMap(NamedTuple):
    """The sample with its map: the components ``x`` (float32 ``[n, n_pcs]``) and the metric of its
    neighbours, the names of the clusters, and ``umap`` and ``leiden`` of ``uns``.
    """

    sample: Sample
    x: Array
    basis: str  # of x in obsm
    clusters: list[str]
    metric: str
    uns: dict[str, Any]


def read_map(subset: Path, neighbors: Path, umap: Path, leiden: Path) -> SampleMap:
    """Read coordinates, clusters and components of the sampled cells, without X and the graph."""
    from sklearn.utils import check_random_state

    from scatlas.matrix.reference_map import Sample

    with h5py.File(neighbors, "r") as file:
        params = read_elem(file["uns/neighbors/params"])
        basis = params.get("use_rep", "X_pca")
        distances = file["obsp/distances"]
        starts = distances["indptr"][:]
        sums = np.append(0, np.cumsum(distances["data"][:], dtype=np.float64))
    with h5py.File(umap, "r") as file:
        coordinates, umap_facts = file["obsm/X_umap"][:], read_elem(file["uns/umap"])
    with h5py.File(leiden, "r") as file:
        clusters, leiden_facts = read_elem(file["obs/leiden"]), read_elem(file["uns/leiden"])
    with h5py.File(subset, "r") as file:
        rows = file["obs"][ATLAS_ROW][:]
        x = file["obsm"][basis][:, : params.get("n_pcs")]
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
    return SampleMap(sample, x, basis, list(clusters.categories), params["metric"], uns)
