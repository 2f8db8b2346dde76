"""UMAP of the neighbourhood graph; ``scatlas.tl`` has the signature and the documentation."""

from __future__ import annotations

import logging
import numbers
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas.compute.threads import blas_on_one_thread
from scatlas.elements import get_host_representation
from scatlas.errors import InputError
from scatlas.kernels.build.rapids import load_library
from scatlas.kernels.graphs import umap_cpu
from scatlas.matrix.umap_rounds import lay_out
from scatlas.tl import _spectral
from scatlas.tl._graph import graph, works_on_gpu

if TYPE_CHECKING:
    from collections.abc import Callable

    import scipy.sparse as sp
    from anndata import AnnData

logger = logging.getLogger(__name__)

_INT32 = np.iinfo(np.int32)


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

    if method not in {"umap", "umap-learn"}:
        msg = f"method {method!r} is not offered: use method='umap' or 'umap-learn'"
        raise InputError(msg)
    if not (isinstance(negative_sample_rate, numbers.Integral) and negative_sample_rate >= 0):
        msg = f"negative_sample_rate is {negative_sample_rate!r}: use a whole number, at least 0"
        raise InputError(msg)
    weights, params = graph(adata, neighbors_key)
    init = _initial(adata, init_pos, n_components)
    if a is None or b is None:
        a, b = _curve(spread, min_dist)
    rounds = _rounds(adata.n_obs) if maxiter is None else maxiter
    edges = _edges(weights, rounds)
    curve = float(a), float(b)
    options: dict[str, Any] = {
        "gamma": gamma,
        "negative_sample_rate": negative_sample_rate,
        "alpha": alpha,
        "n_epochs": rounds,
    }
    gpu = method == "umap" and rounds > 0 and works_on_gpu(adata, params)
    if gpu and (cuml := load_library("cuml.manifold.umap", "UMAP")) is not None:
        from scatlas.kernels.graphs import umap_gpu

        logger.info("UMAP of %d cells: on the GPU", adata.n_obs)
        if not isinstance(init, str):
            init = _to_ten(_apart(init, check_random_state(random_state)))
        options |= {"n_components": n_components, "random_state": random_state, "cuml": cuml}
        places = umap_gpu.layout(edges, init, curve, **options)
    else:
        state = check_random_state(random_state)

        def cells() -> np.ndarray | sp.csr_matrix:
            return get_host_representation(
                adata, use_rep=params.get("use_rep"), n_pcs=params.get("n_pcs")
            )

        below = _spectral.FAST_BELOW if method == "umap" else _spectral.UMAP_LEARN_BELOW
        places = _to_ten(_start(init, edges, n_components, state, cells, arpack_below=below))
        if method == "umap":
            places = lay_out(places, edges, curve, seed=int(state.randint(2**63)), **options)
        else:
            _in_order(places, edges, curve, state, options)
    used: dict[str, Any] = dict(zip("ab", curve, strict=True))
    if random_state != 0:
        used["random_state"] = random_state
    adata.uns[key_added or "umap"] = {"params": used}
    adata.obsm[key_added or "X_umap"] = places


def _in_order(
    places: np.ndarray,
    edges: sp.csr_matrix,
    curve: tuple[float, float],
    state: np.random.RandomState,
    options: dict[str, Any],
) -> None:
    """Move the cells in place, edge by edge in the order of umap-learn."""
    seed = state.randint(_INT32.min + 1, _INT32.max - 1, 3).astype(np.int64)
    if options["n_epochs"]:
        every = _rounds_per_use(edges.data, options["n_epochs"])
        graph_of = edges.indptr, edges.indices
        umap_cpu.optimize_layout(
            places, graph_of, curve, epochs_per_edge=every, seed=seed, **options
        )


def _start(
    init: str | np.ndarray,
    edges: sp.csr_matrix,
    n_components: int,
    state: np.random.RandomState,
    cells: Callable[[], np.ndarray | sp.csr_matrix],
    *,
    arpack_below: int,
) -> np.ndarray:
    """Where the cells start: as given, by the graph's eigenvectors, or anywhere."""
    if not isinstance(init, str):
        return _apart(init, state)
    if init == "spectral":
        with blas_on_one_thread():
            return _spectral.start(edges, n_components, state, cells, arpack_below=arpack_below)
    places = state.uniform(low=-10.0, high=10.0, size=(edges.shape[0], n_components))
    return places.astype(np.float32)


def _to_ten(places: np.ndarray) -> np.ndarray:
    """Places stretched to 0 .. 10 along each axis."""
    low, high = places.min(axis=0), places.max(axis=0)
    return (10.0 * (places - low) / (high - low)).astype(np.float32, order="C")


def _curve(spread: float, min_dist: float) -> tuple[float, float]:
    """``a`` and ``b`` of ``1 / (1 + a * d**(2 * b))``, fitted as umap-learn fits them.

    The target is 1 up to ``min_dist`` and falls as ``exp(-(d - min_dist) / spread)`` beyond.
    """
    from scipy.optimize import curve_fit

    d = np.linspace(0, spread * 3, 300)
    target = np.where(d < min_dist, 1.0, np.exp(-(d - min_dist) / spread))
    # The covariance, which is not used, may not exist.
    with warnings.catch_warnings(action="ignore", category=Warning):
        found, _ = curve_fit(lambda d, a, b: 1.0 / (1.0 + a * d ** (2 * b)), d, target)
    return found[0], found[1]


def _initial(adata: AnnData, init_pos: Any, n_components: int) -> str | np.ndarray:
    if isinstance(init_pos, str) and init_pos in {"spectral", "random"}:
        return init_pos
    if isinstance(init_pos, str):
        if init_pos not in adata.obsm:
            msg = f"init_pos {init_pos!r} is neither 'spectral', 'random' nor a key of obsm"
            raise InputError(msg)
        init_pos = adata.obsm[init_pos]
    coordinates = np.asarray(blocks.on_host(init_pos), np.float32)
    if coordinates.shape != (adata.n_obs, n_components):
        msg = (
            f"init_pos has shape {coordinates.shape}, but {(adata.n_obs, n_components)} "
            "(cells x n_components) is needed"
        )
        raise InputError(msg)
    width = np.ptp(coordinates, axis=0)
    if not (np.isfinite(width).all() and width.all()):
        msg = "init_pos holds values that are not finite, or the same along an axis for all cells"
        raise InputError(msg)
    return coordinates


def _apart(places: np.ndarray, state: np.random.RandomState) -> np.ndarray:
    """Given places, with a little noise on them when some coincide, as umap-learn adds it."""
    if np.unique(places, axis=0).shape[0] == places.shape[0]:
        return places
    from sklearn.neighbors import KDTree

    nearest, _ = KDTree(places).query(places, k=2)
    noise = state.normal(scale=0.001 * np.mean(nearest[:, 1]), size=places.shape)
    return places + noise.astype(np.float32)


def _edges(weights: sp.csr_matrix, rounds: int) -> sp.csr_matrix:
    """The edges that come up in at least one round, sorted."""
    strong = weights.tocsr().copy()
    strong.sum_duplicates()
    longest = rounds if rounds > 10 else _rounds(strong.shape[0])
    strong.data[strong.data < strong.data.max(initial=0) / float(longest)] = 0
    strong.eliminate_zeros()
    return strong


def _rounds_per_use(weights: np.ndarray, rounds: int) -> np.ndarray:
    """Rounds between two uses of each edge, float64: 1 for the heaviest edge.

    umap-learn rounds the number of uses to the type of the weights, float32, before it divides. At
    the default number of rounds, the same quotient in float64 moves an edge to another round.
    """
    uses = rounds * (weights / weights.max())
    return float(rounds) / uses.astype(np.float64)


def _rounds(n_cells: int) -> int:
    return 500 if n_cells <= 10_000 else 200
