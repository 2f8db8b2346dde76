"""A plate's kept cells, and the genes wanted, as lazy row blocks of the canonical store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anndata as ad
import numpy as np
import pandas as pd

from scatlas import blocks
from scatlas.errors import InputError
from scatlas.io.lazy import read_lazy, read_matrix

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def read_kept(
    path: Path | str,
    rows: Sequence[int] | np.ndarray,
    *,
    genes: Sequence[str] | None = None,
    obs: bool = True,
    block_budget: int | str = "256MB",
) -> ad.AnnData:
    """Open some cells of a store, lazily; each block is cut on its own.

    Parameters
    ----------
    path
        AnnData store or file.
    rows
        Sorted positions of the cells wanted.
    genes
        Names of the genes wanted, in the order wanted; all genes when left out.
    obs
        Whether to read obs; without it cells are named by their number.
    block_budget
        Memory for the row blocks in flight, as in :func:`scatlas.read_lazy`.

    Returns
    -------
    AnnData with a Dask X [len(rows) x genes] of CSR row blocks, and its obs and var.

    Raises
    ------
    InputError
        A gene is not in the store.
    """
    rows = np.asarray(rows)
    if obs:
        adata = read_lazy(path, block_budget=block_budget)
        x, var, table = adata.X, adata.var, adata.obs.iloc[rows]
    else:
        x, var = read_matrix(path, block_budget=block_budget)
        table = pd.DataFrame(index=pd.RangeIndex(len(rows)).astype(str))
    x = blocks.select_rows(x, rows)
    if genes is not None:
        index = var.index.get_indexer(genes)
        if (index < 0).any():
            name = list(genes)[int(np.argmin(index))]
            msg = f"{path}: gene {name!r} is not among its {len(var):,} genes"
            raise InputError(msg)
        x, var = blocks.select_genes(x, index), var.iloc[index]
    return ad.AnnData(X=x, obs=table, var=var)
