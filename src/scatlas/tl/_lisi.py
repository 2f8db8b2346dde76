"""LISI: the effective number of values of a column among a cell's neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from scatlas.errors import InputError

if TYPE_CHECKING:
    import scipy.sparse as sp
    from anndata import AnnData
    from numpy.typing import NDArray

# Neighbours whose values are counted at once.
_AT_ONCE = 2**22


def neighbors_of(adata: AnnData, neighbors_key: str | None) -> sp.csr_matrix:
    """Distances [cells x cells] under ``uns[neighbors_key]``: an entry for each neighbour.

    Raises
    ------
    InputError
        When the neighbours were not computed.
    """
    key = "neighbors" if neighbors_key is None else neighbors_key
    where = adata.uns.get(key, {}).get("distances_key", "distances")
    if key not in adata.uns or where not in adata.obsp:
        msg = f"no neighbours in uns[{key!r}] and obsp[{where!r}]: run sa.pp.neighbors first"
        raise InputError(msg)
    return adata.obsp[where].tocsr()


def lisi(neighbors: sp.csr_matrix, labels: pd.Series | pd.Categorical) -> NDArray[np.float64]:
    """Inverse Simpson's index of the labels of each cell's neighbours.

    Parameters
    ----------
    neighbors
        [cells x cells], an entry for each neighbour of a cell, whatever its value.
    labels
        Value of each cell [cells]; neighbours without one are not counted.

    Returns
    -------
    float64 [cells]: ``k**2 / sum(n_b**2)`` of the k neighbours that have a label, n_b of them b.
    Integers up to the division, so exact. NaN for a cell without such neighbours.
    """
    values = pd.Categorical(labels)
    codes, n_values = values.codes.astype(np.int64), len(values.categories)
    indptr = neighbors.indptr.astype(np.int64)
    out = np.full(codes.size, np.nan)
    first = 0
    while first < codes.size:
        # At least one cell, at most the cells that have _AT_ONCE neighbours together.
        stop = int(np.searchsorted(indptr, indptr[first] + _AT_ONCE, side="right")) - 1
        stop = min(max(stop, first + 1), codes.size)
        near = codes[neighbors.indices[indptr[first] : indptr[stop]]]
        cells = np.repeat(np.arange(stop - first), np.diff(indptr[first : stop + 1]))
        pairs, times = np.unique(cells[near >= 0] * n_values + near[near >= 0], return_counts=True)
        of_cell = pairs // max(n_values, 1)
        n = np.bincount(of_cell, times, stop - first)
        squares = np.bincount(of_cell, times.astype(np.float64) ** 2, stop - first)
        np.divide(n**2, squares, out=out[first:stop], where=n > 0)
        first = stop
    return out
