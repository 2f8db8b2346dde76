"""The store of principal components: ``pca.zarr``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from scatlas.io.atomic import atomic_path
from scatlas.io.elements import (
    ARRAY,
    DICT,
    STRING_ARRAY,
    consolidate,
    create_group,
    write_flags,
)
from scatlas.io.shards import PROJECTED, ShardedArray, encoding_pool

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path


class _Components(Protocol):
    mean: np.ndarray
    PCs: np.ndarray
    variance: np.ndarray
    variance_ratio: np.ndarray


def write_pca(
    path: Path | str,
    *,
    x_pca: Iterable[np.ndarray],
    n_cells: int,
    components: _Components,
    genes: Sequence[str],
    params: Mapping[str, bool],
) -> None:
    """Write components and the projected cells, block by block; atomic.

    The store is a mapping in AnnData's encoding (``anndata.io.read_elem`` reads it) of ``X_pca``
    (float32 [n_cells, n_comps], chunks of whole rows), ``PCs`` [n_genes, n_comps], ``mean``
    [n_genes], ``variance`` and ``variance_ratio`` [n_comps] (float64), ``genes`` and ``params``.

    Parameters
    ----------
    path
        Store to write.
    x_pca
        Blocks of projected cells in order, [rows, n_comps], which nobody changes afterwards; the
        bytes written do not depend on how many rows a block has.
    n_cells
        Rows of all blocks together.
    components
        Mean of the genes, loadings, variance of the components and its share of the whole.
    genes
        Names of the rows of ``PCs``.
    params
        What ``uns['pca']['params']`` will hold.

    Raises
    ------
    ValueError
        The blocks have more or fewer rows than ``n_cells``, or the genes do not fit.
    """
    n_genes, n_comps = components.PCs.shape
    if len(genes) != n_genes:
        msg = f"{len(genes)} gene names for loadings of {n_genes} genes"
        raise ValueError(msg)
    with atomic_path(path) as partial, encoding_pool() as pool:
        cells = ShardedArray(
            partial / "X_pca",
            np.float32,
            pool,
            compression=PROJECTED,
            row_shape=(n_comps,),
            attributes=ARRAY,
        )
        with cells:
            for block in x_pca:
                cells.append(block, lasting=True)
            if cells.n_rows != n_cells:
                msg = f"{cells.n_rows} cells were projected, {n_cells} are due"
                raise ValueError(msg)
        create_group(partial, DICT)
        for name in ("PCs", "mean", "variance", "variance_ratio"):
            values = np.asarray(getattr(components, name))
            row = values.shape[1:]
            with ShardedArray(
                partial / name, values.dtype, pool, row_shape=row, attributes=ARRAY
            ) as array:
                array.append(values)
        with ShardedArray(partial / "genes", object, pool, attributes=STRING_ARRAY) as array:
            array.append(np.asarray(genes, dtype=object))
        write_flags(partial / "params", params)
        consolidate(partial)
