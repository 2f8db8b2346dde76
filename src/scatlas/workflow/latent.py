"""Components of another method for the map, such as the latent space of scvi-tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.errors import InputError
from scatlas.io import open_tables
from scatlas.io.files.anndata_file import Store
from scatlas.io.files.read_errors import reading

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from scatlas.arrays.array_types import Float32Array


def read_latent(path: Path, key: str, cells: pd.Index) -> Float32Array:
    """``obsm[key]`` of an h5ad file or a Zarr store, of these cells in this order, by their names;
    InputError where it is no matrix of finite numbers of all of them.
    """
    with open_tables(path) as (obs, _):
        names = obs.index()
    store = Store.find(path)
    with store.open() as root, reading(store.path, f"obsm[{key!r}]"):
        there = [*root["obsm"]] if "obsm" in root else []
        if key not in there:
            raise InputError(
                f"map.use: {path} has no obsm[{key!r}]; it has {', '.join(there) or 'none'}: set "
                "map.use_rep"
            )
        x: Any = root["obsm"][key]
        if len(getattr(x, "shape", ())) != 2 or x.dtype.kind not in "fiu":
            raise InputError(
                f"map.use: obsm[{key!r}] of {path} is no matrix of numbers [cells, components]: "
                "store it as an array"
            )
        values = np.asarray(x[:], np.float32)
    if not names.equals(cells):
        if not names.is_unique:
            twice = names[names.duplicated()][0]
            raise InputError(f"map.use: {path} has the cell {twice!r} twice: keep one of them")
        rows = np.asarray(names.get_indexer(cells))
        if (rows < 0).any():
            raise InputError(
                f"map.use: {path} lacks {int((rows < 0).sum()):,} of the atlas's {cells.size:,} "
                f"cells, the first of which is {cells[int((rows < 0).argmax())]!r}: compute the "
                "components of all cells of this atlas"
            )
        values = values[rows]
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        raise InputError(
            f"map.use: obsm[{key!r}] of {path} is not finite for {int((~finite).sum()):,} cells, "
            f"the first of which is {cells[int(finite.argmin())]!r}: compute it again"
        )
    return values
