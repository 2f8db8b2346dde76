"""Neighbourhood graph of the cells."""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.sparse as sp

from scatlas import blocks, elements
from scatlas._util.numbers import random_state_of, whole_number
from scatlas.arrays.kinds import kind_of
from scatlas.errors import InputError
from scatlas.matrix import knn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from anndata import AnnData
    from numpy.typing import NDArray

    from scatlas.matrix.inverted_lists import InvertedLists
    from scatlas.matrix.inverted_lists_gpu import GpuInvertedLists

logger = logging.getLogger(__name__)

_CELLS_PER_PART = 512  # their weights are a millisecond of work


@blocks.passes(1, "the representation (X_pca, or X) is computed when it is a Dask array")
def neighbors(
    adata: AnnData,
    n_neighbors: int = 15,
    n_pcs: int | None = None,
    *,
    use_rep: str | None = None,
    knn: bool = True,
    method: Literal["umap"] | None = "umap",
    transformer: Literal["sklearn", "ivf", "pynndescent"] | None = None,
    metric: str | Callable[..., float] = "euclidean",
    metric_kwds: Mapping[str, Any] = MappingProxyType({}),
    recall: float = 0.99,
    random_state: int | np.random.RandomState = 0,
    key_added: str | None = None,
    copy: bool = False,
) -> AnnData | None:
    """Find each cell's nearest neighbours and weigh them as UMAP does.

    Up to 10,000 cells the neighbours are exact. Beyond, a search by inverted lists finds at least
    the share ``recall`` of them, with exact distances; the share found is measured in each run, on
    1,000 cells. The result does not depend on the number of threads, or on the blocks of a Dask
    array. A dense representation in memory or in a memory-mapped file is not copied.

    A dense representation on the GPU (a CuPy array, or Dask array of these) is searched there: with
    the CPU's lists, neighbours and distances, and no copy of it but one. Other metrics and searches
    than those of inverted lists run on the CPU, and a warning is logged.

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
        ``"sklearn"`` for the exact search, ``"ivf"`` for inverted lists, which take dense cells and
        the metrics ``"euclidean"``, ``"l2"``, ``"sqeuclidean"`` and ``"cosine"``,
        ``"pynndescent"`` for NN-descent on one thread. When left out, the exact search up to 10,000
        cells, inverted lists beyond; for sparse cells and other metrics the exact search up to
        100,000 cells, NN-descent beyond. The choice is logged.
    metric, metric_kwds
        Distance, as scikit-learn and pynndescent name it, and its arguments. The covariance
        (``VI``, inverted) of ``"mahalanobis"`` and the variances (``V``) of ``"seuclidean"`` are
        those of all cells when left out.
    recall
        Least share of the true neighbours that inverted lists find; ignored by other searches.
    random_state
        Seed of the inverted lists and of NN-descent; the exact search draws nothing.
    key_added
        Prefix of the ``obsp`` keys and key of ``uns``, in place of scanpy's own.
    copy
        Return a changed copy and leave ``adata`` as it is.

    Returns
    -------
    None, or the copy. Written:

    ``obsp['distances']`` : csr_matrix float64 [cells x cells]
        ``n_neighbors - 1`` entries per row, by distance; identical cells keep an explicit zero.
    ``obsp['connectivities']`` : csr_matrix float32 [cells x cells]
        Symmetric weights in (0, 1].
    ``uns['neighbors']`` : dict
        ``connectivities_key``, ``distances_key`` and ``params``; these hold the measured
        ``recall`` of inverted lists.

    Raises
    ------
    InputError
        No such representation, too few dimensions in it, values that are not finite, a metric that
        does not suit them, or an option other than those above.

    Notes
    -----
    Differs from :func:`scanpy.pp.neighbors` in this: the exact search serves up to 10,000 cells
    (scanpy: 4,096 to 8,192), inverted lists more (scanpy: NN-descent); PCA is not computed when
    ``X_pca`` is missing; a cell is always its own first neighbour, even if others are identical;
    ``uns`` holds no ``rp_forest``.

    Inverted lists: :mod:`scatlas.matrix.inverted_lists`.

    On the GPU the same neighbours are found on every run, with the bits of the CPU's distances;
    weights of the graph agree to the rounding of ``exp``. The graph is written to the main memory,
    as from the CPU.
    """
    n_neighbors = whole_number(n_neighbors, "n_neighbors", least=2)  # counts the cell itself
    random_state_of(random_state)  # before the search, whose errors are those of the metric
    _check_options(knn=knn, method=method, transformer=transformer, recall=recall)
    if adata.n_obs < 3:
        msg = f"a neighbourhood graph needs at least 3 cells, but there are {adata.n_obs}"
        raise InputError(msg)
    adata = adata.copy() if copy else adata
    if n_neighbors > adata.n_obs:
        n_neighbors = 1 + adata.n_obs // 2
        logger.warning("only %d cells: n_neighbors is now %d", adata.n_obs, n_neighbors)

    x = elements.get_representation(adata, use_rep, n_pcs)
    if not _suits_gpu(x, metric, metric_kwds, transformer):
        x = blocks.on_host(x)
    elements.check_finite_values(x, elements.representation_name(adata, use_rep, n_pcs))
    found: dict[str, Any] = {}
    if _take_lists(x, transformer, metric, metric_kwds):
        index = _index(x, n_neighbors, metric, recall, random_state)
        indices, distances = index.neighbors(n_neighbors)
        found["recall"] = index.recall
    else:
        indices, distances = _search(x, n_neighbors, transformer, metric, metric_kwds, random_state)
    _check_found(indices, distances, metric)
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
    params |= found
    adata.uns[key_added or "neighbors"] = {
        "connectivities_key": f"{prefix}connectivities",
        "distances_key": f"{prefix}distances",
        "params": params,
    }
    if method is not None:
        adata.obsp[f"{prefix}connectivities"] = connectivities(indices, distances)
    indices, distances = blocks.on_host(indices), blocks.on_host(distances)
    adata.obsp[f"{prefix}distances"] = _neighbor_matrix(indices, distances)
    return adata if copy else None


def _check_options(*, knn: bool, method: Any, transformer: Any, recall: float) -> None:
    if method not in {"umap", None}:
        raise InputError(f"method {method!r} is not offered: use method='umap'")
    if not knn:
        raise InputError("knn=False belongs to method='gauss', which is not offered: use knn=True")
    if transformer not in {None, "sklearn", "ivf", "pynndescent"}:
        raise InputError(
            f"transformer {transformer!r} is not offered: use 'sklearn', 'ivf', 'pynndescent' or "
            "None"
        )
    if not 0 < recall <= 1:
        msg = f"recall is {recall}, but it is a share of the neighbours: above 0, at most 1"
        raise InputError(msg)


def _take_lists(
    x: Any, transformer: str | None, metric: Any, metric_kwds: Mapping[str, Any]
) -> bool:
    """Whether inverted lists search these cells."""
    from scatlas.matrix import inverted_lists

    suits = metric in inverted_lists.METRICS and not metric_kwds and not blocks.is_sparse(x)
    if transformer == "ivf" and not suits:
        raise InputError(
            f"transformer='ivf' takes dense cells and one of the metrics "
            f"{', '.join(inverted_lists.METRICS)} without metric_kwds: leave transformer out"
        )
    many = x.shape[0] > inverted_lists.FASTER_FROM
    return suits and (transformer == "ivf" or (transformer is None and many))


def _index(
    x: NDArray[Any],
    n_neighbors: int,
    metric: Any,
    recall: float,
    random_state: int | np.random.RandomState,
) -> InvertedLists | GpuInvertedLists:
    from scatlas.matrix import inverted_lists

    index = inverted_lists.build(
        x, n_neighbors, metric=metric, recall=recall, random_state=random_state
    )
    logger.info(
        "neighbours of %d cells in %d dimensions: inverted lists, %d of %d per cell, recall %.4f",
        *(*x.shape, index.n_probes, index.n_lists, index.recall),
    )
    return index


def _search(
    x: Any,
    n_neighbors: int,
    transformer: str | None,
    metric: Any,
    metric_kwds: Mapping[str, Any],
    random_state: int | np.random.RandomState,
) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the neighbours ``[n_cells, n_neighbors]`` and their distances."""
    if kind_of(x).gpu:
        from scatlas.matrix import inverted_lists_gpu

        logger.info("neighbours of %d cells in %d dimensions: exact search on the GPU", *x.shape)
        return inverted_lists_gpu.exact(x, n_neighbors, metric=metric)
    x = elements.to_contiguous(x)
    options: dict[str, Any] = {"metric_kwds": _with_spread(x, metric, metric_kwds)}
    find: Callable[..., tuple[np.ndarray, np.ndarray]] = knn.exact
    if transformer == "sklearn" or (transformer is None and x.shape[0] <= knn.EXACT_UP_TO):
        logger.info("neighbours of %d cells in %d dimensions: exact search", *x.shape)
    else:
        logger.info(
            "neighbours of %d cells in %d dimensions: NN-descent on one thread (%s)",
            *x.shape,
            "asked for" if transformer else f"the exact search is for up to {knn.EXACT_UP_TO:,}",
        )
        options["random_state"] = random_state
        find = knn.approximate
    try:
        return find(x, n_neighbors, metric=metric, **options)
    except InputError:
        raise
    except (TypeError, ValueError) as error:  # scikit-learn's, SciPy's or pynndescent's
        if callable(metric):
            raise
        reason = " ".join(str(error).split())[:300]
        raise InputError(
            f"metric={metric!r} with metric_kwds of {list(metric_kwds)} cannot measure cells in "
            f"{x.shape[1]} dimensions ({reason}): choose another metric or metric_kwds"
        ) from error


def _check_found(indices: Any, distances: Any, metric: Any) -> None:
    """Refuse what a search gives for distances that are NaN or infinite, neighbours -1 among it."""
    known = (distances <= np.finfo(np.float32).max) & (indices >= 0)  # weights are float32
    bad = blocks.on_host(~known.all(axis=1))
    if bad.any():
        raise InputError(
            f"metric={metric!r} gives distances that are NaN or infinite for {bad.sum():,} cells, "
            f"the first at position {int(bad.argmax())} (a dimension or cell without variance, or "
            "huge values): choose another metric, or remove such dimensions or cells"
        )


def _with_spread(x: Any, metric: Any, metric_kwds: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments of a metric that needs the spread of all cells, completed as scikit-learn would. It
    does so itself where all distances are computed at once, not in blocks of cells.
    """
    if metric not in {"mahalanobis", "seuclidean"} or metric_kwds or blocks.is_sparse(x):
        return metric_kwds
    x = x.astype(np.float64)
    if metric == "seuclidean":
        return {"V": np.var(x, axis=0, ddof=1)}
    covariance = np.atleast_2d(np.cov(x.T))
    if np.linalg.matrix_rank(covariance) < x.shape[1]:
        raise InputError(
            f"metric='mahalanobis' needs an invertible covariance, but the {x.shape[1]} dimensions "
            "depend on each other: choose fewer with n_pcs, or give metric_kwds={'VI': ...}"
        )
    return {"VI": np.linalg.inv(covariance).T}


def _suits_gpu(
    x: Any, metric: Any, metric_kwds: Mapping[str, Any], transformer: str | None
) -> bool:
    """Whether the GPU searches these cells, which may lie there; why not is logged."""
    from scatlas.matrix import inverted_lists

    if not kind_of(x).gpu:
        return False
    if transformer == "pynndescent":
        logger.warning("transformer='pynndescent' has no GPU kernels: neighbours on the CPU")
    elif blocks.is_sparse(x):
        logger.warning("the GPU takes dense cells, these are sparse: neighbours on the CPU")
    elif metric not in inverted_lists.METRICS or metric_kwds:
        logger.warning(
            "on the GPU the metric is one of %s without metric_kwds, not %r: neighbours on the CPU",
            ", ".join(inverted_lists.METRICS),
            metric,
        )
    else:
        return True
    return False


def _neighbor_matrix(indices: np.ndarray, values: np.ndarray) -> sp.csr_matrix:
    """CSR of the neighbours' values without each cell's own, in order of distance."""
    n_cells, width = indices.shape[0], indices.shape[1] - 1
    # SciPy's graph routines want 32-bit indices; below 2^31 entries they hold everything.
    wide = np.int64 if n_cells * width > np.iinfo(np.int32).max else np.int32
    indptr = np.arange(0, n_cells * width + 1, width, dtype=wide)
    columns = indices[:, 1:].astype(wide).ravel()
    return sp.csr_matrix((values[:, 1:].ravel(), columns, indptr), shape=(n_cells, n_cells))


def connectivities(indices: np.ndarray, distances: np.ndarray) -> sp.csr_matrix:
    """Weights of the neighbour graph, UMAP's fuzzy simplicial set: float32 [cells x cells],
    symmetric, in the main memory. ``indices`` [cells x neighbours] have each cell first in its own
    row, and ``distances`` are ascending in a row; NumPy, or CuPy with int32.

    McInnes, Healy, Melville (2018), section 3.1: fuzzy union of each cell's own weights, in
    umap-learn's order of operations. No sum runs over cells: nothing depends on threads.
    """
    if kind_of(indices).gpu:
        from scatlas.kernels.graphs import umap_gpu

        edges = umap_gpu.fuzzy_union(indices, umap_gpu.memberships(distances))
        indptr, columns, weights = map(blocks.on_host, edges)
        # As from SciPy: 32-bit offsets where they hold everything.
        wide = np.int32 if columns.size <= np.iinfo(np.int32).max else np.int64
        parts = weights, columns.astype(wide, copy=False), indptr.astype(wide)
        return sp.csr_matrix(parts, shape=(indices.shape[0],) * 2)
    from scatlas.kernels.graphs import umap_cpu

    weights = np.empty(distances.shape, np.float32)

    def weigh(cells: slice) -> None:
        weights[cells] = umap_cpu.memberships(distances[cells])

    starts = range(0, distances.shape[0], _CELLS_PER_PART)
    blocks.for_each(weigh, [slice(start, start + _CELLS_PER_PART) for start in starts])
    own = _neighbor_matrix(indices, weights)
    own.eliminate_zeros()
    own.sort_indices()
    back = own.T.tocsr()
    both = own + back - own.multiply(back)
    both.eliminate_zeros()
    return both
