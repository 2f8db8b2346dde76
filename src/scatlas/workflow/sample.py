"""The sampled cells and what each step adds to them, in h5ad files with the same cells."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import anndata as ad
import h5py
import numpy as np
import pandas as pd
from anndata.io import read_elem

from scatlas.io.files.hdf5_reading import decode, read_element
from scatlas.io.files.hdf5_writing import create_hdf5
from scatlas.io.tables.column import Column

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# Rows of the sampled cells in the atlas: a column of `obs`.
ATLAS_ROW = "atlas_row"


def read_sample(path: Path, *, obsm: str | None = None) -> ad.AnnData:
    """Cell names and one element of ``obsm`` of an h5ad file, without X.

    Parameters
    ----------
    path
        ``subset.h5ad``.
    obsm
        Key of the element; None: the names alone.

    Returns
    -------
    AnnData [cells x 0 genes].
    """
    with h5py.File(path, "r") as file:
        column = Column.open(path, file["obs"], file["obs"].attrs["_index"])
        names = column.take(np.arange(column.n_rows))
        found = {} if obsm is None else {obsm: read_element(file["obsm"][obsm])}
    return ad.AnnData(obs=pd.DataFrame(index=names), obsm=found)


def add_graph(adata: ad.AnnData, path: Path) -> None:
    """Add the weights and parameters of the neighbourhood graph in ``path`` to the same cells."""
    with h5py.File(path, "r") as file:
        adata.obsp["connectivities"] = read_element(file["obsp/connectivities"])
        adata.uns["neighbors"] = read_elem(file["uns/neighbors"])


def join_files(path: Path, subset: Path, parts: Iterable[Path]) -> None:
    """Write the sample with what steps have added to it in ``obs``, ``obsm``, ``obsp`` and ``uns``.

    HDF5 copies what is compressed as it is. The files are read before, because a copy keeps damage.

    Parameters
    ----------
    path
        File to write.
    subset
        ``subset.h5ad``.
    parts
        File of each step.
    """
    with create_hdf5(path) as out:
        with h5py.File(subset, "r") as file:
            _read_all(file)
            out.attrs.update(file.attrs)
            for name in file:
                file.copy(name, out)
        columns = list(out["obs"].attrs["column-order"])
        for part in parts:
            with h5py.File(part, "r") as file:
                _read_all(file)
                added = list(file["obs"].attrs["column-order"])
                columns += [name for name in added if name not in columns]
                names = [("obs", name) for name in added]
                names += [(key, name) for key in ("obsm", "obsp", "uns") for name in file[key]]
                for key, name in names:
                    if name in out[key]:
                        del out[key][name]
                    file[key].copy(name, out[key])
        out["obs"].attrs["column-order"] = columns


def _read_all(file: h5py.File) -> None:
    """Decode all chunks, which checks their checksums."""

    def read(_: str, node: h5py.Dataset | h5py.Group) -> None:
        if isinstance(node, h5py.Dataset) and node.chunks and node.size:
            deque(decode(node), maxlen=0)

    file.visititems(read)
