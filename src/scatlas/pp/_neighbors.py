"""Neighbourhood graph of the cells."""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from scatlas import blocks
from scatlas.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    import scipy.sparse as sp
    from anndata import AnnData

logger = logging.getLogger(__name__)

# scanpy's settings.N_PCS: with at most this many genes, X itself is the representation.
_MAX_GENES_AS_THEY_ARE = 50


@blocks.passes(1, "the representation (X_pca, or X) is computed when it is a Dask array")
def neighbors(
    adata: AnnData,
    n_neighbors: int = 15,
    n_pcs: int | None = None,
    *,
    use_rep: str | None = None,
    knn: bool = True,
    method: Literal["umap"] | None = "umap",
    transformer: Literal["sklearn", "pynndescent"] | None = None,
    metric: str | Callable[..., float] = "euclidean",
    metric_kwds: Mapping[str, Any] = MappingProxyType({}),
    random_state: int | np.random.RandomState = 0,
    key_added: str | None = None,
    copy: bool = False,
) -> AnnData | None:
    """Find each cell's nearest neighbours and weigh them as UMAP does.

    Up to 100,000 cells the neighbours are exact, beyond they are found by NN-descent on one
    thread; which was taken is logged. The result does not depend on the number of threads.

    Parameters
    ----------
    adata
        Annotated data [cells x genes].
    n_neighbors
        Neighbours of a cell, counting the cell itself; at least 2. With fewer cells than this,
        half the cells and one more are taken, and a warning is logged.
    n_pcs
        Dimensions used of the representation; all when left out. 0 means X itself.
    use_rep
        Key of ``obsm``, or ``"X"``. By default X when there are at most 50 genes, else
        ``X_pca``.
    knn
        Only True: the graph holds nearest neighbours alone.
    method
        ``"umap"`` (McInnes, Healy, Melville 2018), or None for distances without connectivities.
    transformer
        ``"sklearn"`` for the exact search, ``"pynndescent"`` for NN-descent; by the number of
        cells when left out.
    metric, metric_kwds
        Distance, as scikit-learn and pynndescent name it, and its arguments.
    random_state
        Seed of NN-descent; the exact search draws nothing.
    key_added
        Prefix of the ``obsp`` keys and key of ``uns``, in place of scanpy's own.
    copy
        Return a changed copy and leave ``adata`` as it is.

    Returns
    -------
    None, or the copy. Written:

    ``obsp['distances']`` : csr_matrix float64 [cells x cells]
        ``n_neighbors - 1`` entries a row, by distance; identical cells keep an explicit zero.
    ``obsp['connectivities']`` : csr_matrix float32 [cells x cells]
        Symmetric weights in (0, 1].
    ``uns['neighbors']`` : dict
        ``connectivities_key``, ``distances_key`` and ``params``.

    Raises
    ------
    InputError
        No such representation, too few dimensions in it, values that are not finite, or an
        option other than those above.

    Notes
    -----
    Differs from :func:`scanpy.pp.neighbors` in this: the exact search serves up to 100,000 cells
    (scanpy: 4,096 to 8,192); PCA is not computed when ``X_pca`` is missing; a cell is always its
    own first neighbour, identical twins or not; ``uns`` holds no ``rp_forest``.
    """
    from scatlas.pp import _knn

    if n_neighbors < 2:
        msg = f"n_neighbors is {n_neighbors}, but counts the cell itself: it must be at least 2"
        raise InputError(msg)
    if method not in {"umap", None}:
        msg = f"method {method!r} is not offered: use method='umap'"
        raise InputError(msg)
    if not knn:
        msg = "knn=False belongs to method='gauss', which is not offered: use knn=True"
        raise InputError(msg)
    if transformer not in {None, "sklearn", "pynndescent"}:
        msg = f"transformer {transformer!r} is not offered: use 'sklearn', 'pynndescent' or None"
        raise InputError(msg)
    if adata.n_obs < 3:
        msg = f"a neighbourhood graph needs at least 3 cells, but there are {adata.n_obs}"
        raise InputError(msg)
    adata = adata.copy() if copy else adata
    if n_neighbors > adata.n_obs:
        n_neighbors = 1 + adata.n_obs // 2
        logger.warning("only %d cells: n_neighbors is now %d", adata.n_obs, n_neighbors)

    x = representation(adata, use_rep=use_rep, n_pcs=n_pcs)
    search: dict[str, Any] = {"metric": metric, "metric_kwds": metric_kwds}
    if transformer == "sklearn" or (transformer is None and adata.n_obs <= _knn.EXACT_UP_TO):
        logger.info("neighbours of %d cells in %d dimensions: exact search", *x.shape)
        indices, distances = _knn.exact(x, n_neighbors, **search)
    else:
        logger.info(
            "neighbours of %d cells in %d dimensions: NN-descent on one thread (%s)",
            *x.shape,
            "asked for" if transformer else f"the exact search is for up to {_knn.EXACT_UP_TO:,}",
        )
        indices, distances = _knn.approximate(x, n_neighbors, **search, random_state=random_state)

    prefix = "" if key_added is None else f"{key_added}_"
    params: dict[str, Any] = {
        "n_neighbors": n_neighbors,
        "method": method,
        "random_state": random_state,
        "metric": metric,
    }
    if metric_kwds:
        params["metric_kwds"] = dict(metric_kwds)
    if use_rep is not None:
        params["use_rep"] = use_rep
    if n_pcs is not None:
        params["n_pcs"] = n_pcs
    adata.uns[key_added or "neighbors"] = {
        "connectivities_key": f"{prefix}connectivities",
        "distances_key": f"{prefix}distances",
        "params": params,
    }
    adata.obsp[f"{prefix}distances"] = _neighbor_matrix(indices, distances)
    if method is not None:
        adata.obsp[f"{prefix}connectivities"] = connectivities(indices, distances)
    return adata if copy else None


def representation(
    adata: AnnData, *, use_rep: str | None, n_pcs: int | None
) -> np.ndarray | sp.csr_matrix:
    """The matrix that distances are taken in, in memory, chosen by scanpy's rules.

    Parameters
    ----------
    adata
        Annotated data [cells x genes].
    use_rep, n_pcs
        As in :func:`neighbors`.

    Raises
    ------
    InputError
        See :func:`neighbors`.
    """
    import numpy as np
    import scipy.sparse as sp

    if use_rep is None:
        few_genes = adata.n_vars <= _MAX_GENES_AS_THEY_ARE
        use_rep = "X" if n_pcs == 0 or few_genes else "X_pca"
        if use_rep == "X":
            n_pcs = None
    if use_rep == "X":
        x = adata.X
    elif use_rep in adata.obsm:
        x = adata.obsm[use_rep]
    else:
        mend = "run sa.pp.pca first" if use_rep == "X_pca" else f"there are {list(adata.obsm)}"
        msg = f"no {use_rep!r} in obsm: {mend}, or pass use_rep='X' for the genes as they are"
        raise InputError(msg)
    if n_pcs is not None and use_rep != "X":
        if n_pcs > x.shape[1]:
            msg = f"n_pcs is {n_pcs}, but {use_rep!r} has {x.shape[1]} dimensions: lower n_pcs"
            raise InputError(msg)
        x = x[:, :n_pcs]
    if blocks.is_dask(x):
        x = _in_memory(x)
    x = blocks.on_host(x)
    x = sp.csr_matrix(x) if sp.issparse(x) else np.ascontiguousarray(x)
    if not np.isfinite(x.data if sp.issparse(x) else x).all():
        msg = f"{use_rep!r} holds values that are not finite: remove those cells first"
        raise InputError(msg)
    return x


def _in_memory(x: Any) -> np.ndarray | sp.csr_matrix:
    """A Dask array, block by block in one pass."""
    return blocks.join([blocks.on_host(block) for block in blocks.stream(x)])


def _neighbor_matrix(indices: np.ndarray, values: np.ndarray) -> sp.csr_matrix:
    """CSR of the neighbours' values without each cell's own, in order of distance."""
    import numpy as np
    import scipy.sparse as sp

    n_cells, width = indices.shape[0], indices.shape[1] - 1
    # SciPy's graph routines want 32-bit indices; below 2^31 entries they hold everything.
    wide = np.int64 if n_cells * width > np.iinfo(np.int32).max else np.int32
    indptr = np.arange(0, n_cells * width + 1, width, dtype=wide)
    columns = indices[:, 1:].astype(wide).ravel()
    return sp.csr_matrix((values[:, 1:].ravel(), columns, indptr), shape=(n_cells, n_cells))


def connectivities(indices: np.ndarray, distances: np.ndarray) -> sp.csr_matrix:
    """Weights of the neighbour graph: UMAP's fuzzy simplicial set.

    Parameters
    ----------
    indices
        int64 [cells x neighbours], each cell first in its own row.
    distances
        float [cells x neighbours], ascending in a row.

    Returns
    -------
    csr_matrix float32 [cells x cells], symmetric.

    Notes
    -----
    McInnes, Healy, Melville (2018), section 3.1: fuzzy union of each cell's own weights, in
    umap-learn's order of operations. No sum runs over cells: nothing depends on threads.
    """
    from scatlas.kernels import umap_cpu

    own = _neighbor_matrix(indices, umap_cpu.memberships(distances))
    own.eliminate_zeros()
    own.sort_indices()
    back = own.T.tocsr()
    both = own + back - own.multiply(back)
    both.eliminate_zeros()
    return both
