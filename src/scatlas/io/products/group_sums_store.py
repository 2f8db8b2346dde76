"""Sums of log-normalised values by group of one plate, ``group_sums.h5ad``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import anndata as ad
import h5py
import pandas as pd
from anndata.io import read_elem

from scatlas.io.files.atomic import atomic_path
from scatlas.io.files.hdf5_elements import write_h5ad
from scatlas.io.files.read_errors import reading
from scatlas.kernels.moments.group_sums_cpu import Sums

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

_LAYERS = ("sums", "errors", "squares", "square_errors", "nonzero")


class GroupSums(NamedTuple):
    """Sums of groups of cells, for one or several columns of obs."""

    groups: pd.DataFrame  # a row per group: by (name of the column), group and n_cells
    genes: pd.Index
    sums: Sums  # [n_groups, n_genes]


def write_group_sums(path: Path | str, found: GroupSums) -> None:
    """Write sums of real numbers as an AnnData [groups x genes] with a layer for each; atomic."""
    layers = {name: getattr(found.sums, name) for name in _LAYERS}
    obs = found.groups.astype({"by": "category", "group": "category"})
    obs.index = obs.index.astype(str)
    adata = ad.AnnData(layers=layers, obs=obs, var=pd.DataFrame(index=found.genes.astype(str)))
    with atomic_path(path) as partial:
        write_h5ad(partial, adata)


def read_groups(path: Path | str) -> tuple[pd.DataFrame, pd.Index]:
    """Groups and genes of such a file, without the sums."""
    with reading(str(path), "sums by group"), h5py.File(path) as file:
        groups, genes = read_elem(file["obs"]), read_elem(file["var"]).index
    text = {name: groups[name].astype(str) for name in ("by", "group")}
    return groups.assign(**text), genes


def add_group_sums(path: Path | str, rows: np.ndarray, genes: np.ndarray, total: Sums) -> None:
    """Add the sums of such a file to rows of ``total``, one per group, in place; ``genes`` are the
    positions of its genes in the file, or -1.
    """
    with reading(str(path), "sums by group"), h5py.File(path) as file:
        part = Sums(False, *(_take(file["layers"][name][:], genes) for name in _LAYERS))
    total.add(rows, part)


def _take(values: np.ndarray, genes: np.ndarray) -> np.ndarray:
    taken: np.ndarray = values[:, genes]
    if (genes < 0).any():
        taken[:, genes < 0] = 0
    return taken
