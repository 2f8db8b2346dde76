"""UMAP of the neighbourhood graph."""

from __future__ import annotations

import logging
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from scatlas import blocks, columns
from scatlas._util.imports import from_extra
from scatlas._util.numbers import check_positive, random_state_of, whole_number
from scatlas.compute.threads import blas_on_one_thread
from scatlas.elements import get_finite_representation, get_obsm
from scatlas.errors import InputError
from scatlas.kernels import csr_arrays
from scatlas.matrix.projection import lay_out
from scatlas.tl import _spectral
from scatlas.tl._graph import check_not_negative, graph, works_on_gpu

if TYPE_CHECKING:
    from collections.abc import Callable

    import scipy.sparse as sp
    from anndata import AnnData

logger = logging.getLogger(__name__)

_SHAPE = ("min_dist", "spread", "alpha")


@blocks.passes(1, "only when the graph falls into many parts, and X_pca (or X) is a Dask array")
def umap(
    adata: AnnData,
    *,
    min_dist: float = 0.5,
    spread: float = 1.0,
    n_components: int = 2,
    maxiter: int | None = None,
    alpha: float = 1.0,
    gamma: float = 1.0,
    negative_sample_rate: int = 5,
    init_pos: str | np.ndarray | None = "spectral",
    random_state: int | np.random.RandomState = 0,
    a: float | None = None,
    b: float | None = None,
    method: Literal["umap", "umap-learn"] = "umap",
    key_added: str | None = None,
    neighbors_key: str = "neighbors",
    copy: bool = False,
) -> AnnData | None:
    """Embed the neighbourhood graph in a plane (UMAP).

    McInnes, Healy, Melville (2018). Cells move in rounds, all at the same time and on all threads:
    the same graph and seed give the same coordinates on any number of threads.

    Where the representation that the neighbours were found in lies on the GPU
    (``adata.obsm['X_pca']`` is a CuPy array, or Dask array of these), the rounds run there.

    Parameters
    ----------
    adata
        Annotated data with the graph of :func:`scatlas.pp.neighbors`.
    min_dist, spread
        How tightly points may lie together, and the scale of the picture.
    n_components
        Dimensions of the embedding.
    maxiter
        Rounds of optimisation; 500 up to 10,000 cells and 200 beyond when left out.
    alpha, gamma, negative_sample_rate
        First learning rate, weight of repulsion, repelling cells drawn for each edge.
    init_pos
        ``"spectral"``, ``"random"``, a key of ``obsm``, or coordinates [cells x n_components].
    random_state
        Seed. None draws one.
    a, b
        Shape of the low-dimensional kernel; fitted to ``min_dist`` and ``spread`` when either is
        left out.
    method
        ``"umap"``: in rounds. ``"umap-learn"``: by that library, one edge after the other on one
        thread of the CPU; several times slower, after 10 s of compilation.
    key_added
        Key of ``obsm`` and ``uns``, in place of ``X_umap`` and ``umap``.
    neighbors_key
        Key of ``uns`` that names the graph.
    copy
        Return a changed copy and leave ``adata`` as it is.

    Returns
    -------
    None, or the copy. Written: ``obsm['X_umap']``, float32 [cells x n_components], and
    ``uns['umap']['params']`` with ``a``, ``b`` and, unless it is 0, ``random_state``.

    Raises
    ------
    InputError
        No graph there, coordinates that cannot be scaled, or an option other than those above
        (scanpy's ``"paga"`` among them).

    Notes
    -----
    In a round each cell moves by the forces of its edges and of its random cells at the coordinates
    of the round before. Forces and edges per round are umap-learn's; its order of moves, in which a
    cell's forces follow one another, is not, so that coordinates differ and neighbourhoods are kept
    as well: with 100,000 simulated cells a trustworthiness of 0.943 where umap-learn's order gives
    0.944. In the last quarter of the rounds, steps turn into those of an implicit scheme, in
    which cells come to rest. Forces are limited by their length where umap-learn limits them along
    each axis: tight groups of few cells are round, and not crosses along the diagonals. A cell
    moves by 40 at most in a round, ten times the longest push of one cell: in a crowd all pushes
    together would throw it far away.

    The start of graphs with 4,000 cells and more are the same eigenvectors by Chebyshev filters on
    all threads (Zhou, Saad, Tiago, Chelikowsky 2006), where umap-learn takes ARPACK.

    With ``"umap-learn"`` the coordinates are those of umap-learn, up to 2,000,000 cells. The last
    bits belong to the processor: the optimisation amplifies them, so that another one gives a
    picture that differs in its details.

    With both methods, a graph in more than ``2 * n_components`` parts, whose start umap-learn
    leaves to chance, starts from the PCA of the parts' mean cells.

    On the GPU the start and a round are the CPU's to rounding, which the next rounds amplify: the
    picture differs in its details, and is the same on every run.
    """
    if method not in {"umap", "umap-learn"}:
        raise InputError(f"method {method!r} is not offered: use method='umap' or 'umap-learn'")
    negative_sample_rate = whole_number(negative_sample_rate, "negative_sample_rate")
    n_components = whole_number(n_components, "n_components", least=1)
    for name, value in zip(_SHAPE, (min_dist, spread, alpha), strict=True):
        check_positive(value, name)
    state = random_state_of(random_state)
    adata = adata.copy() if copy else adata
    weights, params = graph(adata, neighbors_key)
    check_not_negative(weights, "umap")
    init = _initial(adata, init_pos, n_components)
    if a is None or b is None:
        a, b = _curve(spread, min_dist)
    rounds = _rounds(adata.n_obs) if maxiter is None else whole_number(maxiter, "maxiter")
    edges = _edges(weights, rounds)
    curve = float(a), float(b)
    options: dict[str, Any] = {
        "gamma": gamma,
        "negative_sample_rate": negative_sample_rate,
        "alpha": alpha,
        "n_epochs": rounds,
    }

    def cells() -> Any:
        return get_finite_representation(
            adata, use_rep=params.get("use_rep"), n_pcs=params.get("n_pcs")
        )

    to_device: Callable[[Any], Any] = blocks.on_host
    below = _spectral.UMAP_LEARN_BELOW
    if method == "umap":
        below = _spectral.FAST_BELOW
        if works_on_gpu(adata, params):
            from scatlas.arrays.cupy_arrays import on_gpu

            logger.info("UMAP of %d cells: on the GPU", adata.n_obs)
            to_device = on_gpu
            edges.indices = edges.indices.astype(np.int32, copy=False)
    there = to_device(edges)
    start = partial(
        _spectral.start, cells=cells, arpack_below=below, there=there, to_device=to_device
    )
    coordinates = _start(init, edges, n_components, state, start)
    if method == "umap":
        seed = int(state.randint(2**63))
        low, high = coordinates.min(axis=0), coordinates.max(axis=0)
        scaled = (10.0 * (coordinates - low) / (high - low)).astype(np.float32, order="C")
        moved = lay_out(to_device(scaled), csr_arrays(there)[::-1], curve, seed=seed, **options)
        coordinates = blocks.on_host(moved)
    else:
        coordinates = _by_umap_learn(coordinates, edges, curve, state, options)
    used: dict[str, Any] = dict(zip("ab", curve, strict=True))
    if random_state != 0:
        used["random_state"] = random_state
    adata.uns[key_added or "umap"] = {"params": used}
    adata.obsm[key_added or "X_umap"] = coordinates
    return adata if copy else None


def _by_umap_learn(
    start: np.ndarray,
    edges: sp.csr_matrix,
    curve: tuple[float, float],
    state: np.random.RandomState,
    options: dict[str, Any],
) -> np.ndarray:
    """Coordinates by umap-learn itself, whose functions compile for some 10 s in each process."""
    # It warns that Tensorflow is not installed, which only its other models need.
    with from_extra(), warnings.catch_warnings(action="ignore", category=ImportWarning):
        from umap.umap_ import simplicial_set_embedding

    coordinates, _ = simplicial_set_embedding(
        None,
        edges.tocoo(),
        start.shape[1],
        options["alpha"],
        *curve,
        options["gamma"],
        options["negative_sample_rate"],
        options["n_epochs"],
        start,
        state,
        "euclidean",
        {},
        densmap=False,
        densmap_kwds={},
        output_dens=False,
    )
    return coordinates


def _start(
    init: str | np.ndarray,
    edges: sp.csr_matrix,
    n_components: int,
    state: np.random.RandomState,
    spectral: Callable[..., np.ndarray],
) -> np.ndarray:
    """Where the cells start: as given, by the graph's eigenvectors, or anywhere."""
    if not isinstance(init, str):
        return _separate(init, state)
    if init == "spectral":
        with blas_on_one_thread():
            return spectral(edges, n_components, state)
    coordinates = state.uniform(low=-10.0, high=10.0, size=(edges.shape[0], n_components))
    return coordinates.astype(np.float32)


def _curve(spread: float, min_dist: float) -> tuple[float, float]:
    """``a`` and ``b`` of ``1 / (1 + a * d**(2 * b))``, fitted as umap-learn fits them to 1 up to
    ``min_dist`` and ``exp(-(d - min_dist) / spread)`` beyond.
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
        init_pos = get_obsm(adata, init_pos, "init_pos", all_floats=True)
    init_pos = columns.in_order(init_pos, adata.obs_names, "init_pos")
    start = blocks.on_host(blocks.to_memory(init_pos))
    coordinates = np.asarray(start.toarray() if blocks.is_sparse(start) else start, np.float32)
    if coordinates.shape != (adata.n_obs, n_components):
        raise InputError(
            f"init_pos has shape {coordinates.shape}, but {(adata.n_obs, n_components)} "
            "(cells x n_components) is needed"
        )
    width = np.ptp(coordinates, axis=0)
    if not (np.isfinite(width).all() and width.all()):
        msg = "init_pos holds values that are not finite, or the same along an axis for all cells"
        raise InputError(msg)
    return coordinates


def _separate(coordinates: np.ndarray, state: np.random.RandomState) -> np.ndarray:
    """Given coordinates, with a little noise on them when some coincide, as umap-learn adds it."""
    if np.unique(coordinates, axis=0).shape[0] == coordinates.shape[0]:
        return coordinates
    with from_extra():
        from sklearn.neighbors import KDTree

    nearest, _ = KDTree(coordinates).query(coordinates, k=2)
    noise = state.normal(scale=0.001 * np.mean(nearest[:, 1]), size=coordinates.shape)
    return coordinates + noise.astype(np.float32)


def _edges(weights: sp.csr_matrix, rounds: int) -> sp.csr_matrix:
    """The edges that come up in at least one round, sorted."""
    strong = weights.tocsr().sorted_indices()
    longest = rounds if rounds > 10 else _rounds(strong.shape[0])
    strong.data[strong.data < strong.data.max(initial=0) / float(longest)] = 0
    strong.eliminate_zeros()
    return strong


def _rounds(n_cells: int) -> int:
    return 500 if n_cells <= 10_000 else 200
