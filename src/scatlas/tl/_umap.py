"""UMAP of the neighbourhood graph; signature and documentation stand in ``scatlas.tl``."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.compute.threads import blas_on_one_thread
from scatlas.errors import InputError
from scatlas.pp._knn import import_umap, numba_on_one_thread
from scatlas.pp._neighbors import representation
from scatlas.tl._graph import graph
from scatlas.tl._spectral import start as _spectral_start

if TYPE_CHECKING:
    import scipy.sparse as sp
    from anndata import AnnData


def umap(
    adata: AnnData,
    *,
    min_dist: float,
    spread: float,
    n_components: int,
    maxiter: int | None,
    alpha: float,
    gamma: float,
    negative_sample_rate: int,
    init_pos: str | np.ndarray | None,
    random_state: int | np.random.RandomState,
    a: float | None,
    b: float | None,
    method: str,
    key_added: str | None,
    neighbors_key: str,
) -> None:
    """See :func:`scatlas.tl.umap`."""
    from sklearn.utils import check_random_state

    if method != "umap":
        msg = f"method {method!r} is not offered: use method='umap'"
        raise InputError(msg)
    weights, params = graph(adata, neighbors_key)
    init = _initial(adata, init_pos, n_components)
    library = import_umap()
    with _quiet_curve_fit():
        if a is None or b is None:
            a, b = library.find_ab_params(spread, min_dist)
    rounds = _rounds(adata.n_obs) if maxiter is None else maxiter
    state = check_random_state(random_state)
    # BLAS: the eigenvectors of the start. Numba: the rounds are not parallel, but the library's
    # helpers may be.
    with blas_on_one_thread(), numba_on_one_thread():
        if isinstance(init, str) and init == "spectral":
            init = _spectral(adata, weights, params, rounds, n_components, state)
        embedding, _ = library.simplicial_set_embedding(
            data=None,
            graph=weights.tocoo(),
            n_components=n_components,
            initial_alpha=alpha,
            a=a,
            b=b,
            gamma=gamma,
            negative_sample_rate=negative_sample_rate,
            n_epochs=rounds,
            init=init,
            random_state=state,
            metric=params.get("metric", "euclidean"),
            metric_kwds=params.get("metric_kwds", {}),
            densmap=False,
            densmap_kwds={},
            output_dens=False,
            parallel=False,
        )
    used = {"a": float(a), "b": float(b)}
    if random_state != 0:
        used["random_state"] = random_state
    adata.uns[key_added or "umap"] = {"params": used}
    adata.obsm[key_added or "X_umap"] = embedding


def _quiet_curve_fit() -> warnings.catch_warnings:
    """Context for the fit of a and b, whose covariance, which is not used, may not exist."""
    return warnings.catch_warnings(action="ignore", category=Warning)


def _initial(adata: AnnData, init_pos: Any, n_components: int) -> str | np.ndarray:
    if isinstance(init_pos, str) and init_pos in {"spectral", "random"}:
        return init_pos
    if isinstance(init_pos, str):
        if init_pos not in adata.obsm:
            msg = f"init_pos {init_pos!r} is neither 'spectral', 'random' nor a key of obsm"
            raise InputError(msg)
        init_pos = adata.obsm[init_pos]
    coordinates = np.asarray(init_pos, np.float32)
    if coordinates.shape != (adata.n_obs, n_components):
        msg = (
            f"init_pos has shape {coordinates.shape}, but {(adata.n_obs, n_components)} "
            "(cells x n_components) is needed"
        )
        raise InputError(msg)
    return coordinates


def _spectral(
    adata: AnnData,
    weights: sp.csr_matrix,
    params: dict[str, Any],
    rounds: int,
    n_components: int,
    state: np.random.RandomState,
) -> np.ndarray:
    """Spectral start of the edges that UMAP draws: those that come up in at least one round."""
    strong = weights.tocsr().copy()
    longest = rounds if rounds > 10 else _rounds(adata.n_obs)
    strong.data[strong.data < strong.data.max() / float(longest)] = 0
    strong.eliminate_zeros()

    def cells() -> np.ndarray | sp.csr_matrix:
        return representation(adata, use_rep=params.get("use_rep"), n_pcs=params.get("n_pcs"))

    return _spectral_start(strong, n_components, state, cells)


def _rounds(n_cells: int) -> int:
    return 500 if n_cells <= 10_000 else 200
