"""Values of one gene for all cells: ``sa.get.gene``."""

from __future__ import annotations

import logging
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from scatlas import blocks, elements
from scatlas.errors import InputError
from scatlas.io.files.anndata_file import Store
from scatlas.io.matrices.lazy import read_lazy, read_matrix, stored_x
from scatlas.io.products.gene_copy import NAME, GeneCopy, find_gene_copy

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)
_N_CLOSE_NAMES = 3


def gene(source: AnnData | Path | str, name: str, *, layer: str | None = None) -> NDArray[Any]:
    """Values of one gene for all cells.

    An atlas of the workflow has a gene-major copy of X beside it (``by_gene.zarr``), from which a
    gene of a million cells takes a few milliseconds. It is used if `source` is the path or address
    of the atlas, or an AnnData that :func:`scatlas.read_lazy` has opened from there and whose X has
    not been changed. Without the copy all of X is read, and a warning in the log says so.

    Parameters
    ----------
    source
        Path or address of an AnnData file; or an AnnData, in memory, on a GPU or with a Dask X.
    name
        Name of the gene in ``var_names``.
    layer
        Key of the layer to read in place of X. Layers have no gene-major copy.

    Returns
    -------
    NumPy array ``[n_cells]`` in the order of ``obs_names`` and in the type of X: of an atlas
    float32, log(1 + x) of the counts divided by the size factor of the cell.

    Raises
    ------
    InputError
        There is no such gene, layer or file, or it is damaged.

    Examples
    --------
    >>> epcam = sa.get.gene("results/atlas.zarr", "EPCAM")
    >>> adata.obs["EPCAM"] = sa.get.gene(adata, "EPCAM")
    """
    if isinstance(source, str | Path):
        return _gene_of_file(source, name, layer)
    elements.check_not_backed(source)
    position = _position(source.var_names, name, "adata")
    x = elements.get_matrix(source, layer=layer, all_floats=True)
    stored = stored_x(x) if layer is None else None
    if stored is not None and (copy := _copy_of(stored)):
        return copy.read(position)
    return _column(x, position)


def _gene_of_file(path: Path | str, name: str, layer: str | None) -> NDArray[Any]:
    if layer is not None:
        return gene(read_lazy(path), name, layer=layer)
    from scatlas.io.tables.table import open_tables

    with open_tables(path) as (_, var):
        position = _position(var.index(), name, str(path))
    if copy := _copy_of(Store.find(path)):
        return copy.read(position)
    return _column(read_matrix(path)[0], position)


def _copy_of(store: Store) -> GeneCopy | None:
    gene_copy = find_gene_copy(store)
    if isinstance(gene_copy, GeneCopy):
        return gene_copy
    logger.warning(
        "%s: all of X is read for one gene, for %s: by_gene: true in the config makes the "
        "gene-major copy %s, or scatlas.io.write_gene_copy(atlas, %r) beside the atlas",
        *(store.path, gene_copy, NAME, NAME),
    )
    return None


def _position(names: pd.Index, name: str, source: str) -> int:
    """Number of a gene; close names are named if there is none."""
    positions = np.flatnonzero(names == name)
    if len(positions) == 1:
        return int(positions[0])
    if len(positions) > 1:
        raise InputError(
            f"{source}: {len(positions)} genes have the name {name!r}: make var_names unique first"
        )
    by_upper: dict[str, str] = {}
    for known in map(str, names):
        by_upper.setdefault(known.upper(), known)
    close = get_close_matches(str(name).upper(), by_upper, _N_CLOSE_NAMES, 0.7)
    listed = ", ".join(repr(by_upper[key]) for key in close)
    hint = f"close names are {listed}" if close else "no name is close to it"
    raise InputError(f"{source}: there is no gene {name!r} among its {len(names):,} genes: {hint}")


def _column(x: Any, position: int) -> NDArray[Any]:
    """One column of a matrix in memory, on a GPU or in Dask blocks."""
    if sp.issparse(x):
        return x[:, [position]].toarray().ravel()

    def column(block: Any) -> NDArray[Any]:
        block = blocks.on_host(block)
        if sp.issparse(block):
            return block[:, [position]].toarray().ravel()
        return np.array(block[:, position])

    parts = list(blocks.stream(x, column, combine=np.concatenate))
    return np.concatenate(parts) if parts else np.zeros(0, x.dtype)
