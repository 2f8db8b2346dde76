"""The sampled cells and what each step adds to them, in h5ad files with the same cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anndata as ad
import h5py
import pandas as pd
from anndata.io import read_elem

if TYPE_CHECKING:
    from pathlib import Path

# Rows of the sampled cells in the atlas: a column of `obs`.
ATLAS_ROW = "atlas_row"


def read_sample(path: Path, *, obsm: str) -> ad.AnnData:
    """Cell names and one element of ``obsm`` of an h5ad file, without X.

    Parameters
    ----------
    path
        ``subset.h5ad``.
    obsm
        Key of the element.

    Returns
    -------
    AnnData [cells x 0 genes].
    """
    with h5py.File(path, "r") as file:
        names = read_elem(file["obs"][file["obs"].attrs["_index"]])
        return ad.AnnData(obs=pd.DataFrame(index=names), obsm={obsm: read_elem(file["obsm"][obsm])})


def join_sample(adata: ad.AnnData, path: Path) -> None:
    """Add the ``obs``, ``obsm``, ``obsp`` and ``uns`` of a step's file to the same cells."""
    part = ad.read_h5ad(path)
    for name in part.obs:
        adata.obs[name] = part.obs[name]
    adata.obsm.update(part.obsm)
    adata.obsp.update(part.obsp)
    adata.uns.update(part.uns)
