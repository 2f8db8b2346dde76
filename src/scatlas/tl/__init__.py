"""Scores and ranks of genes, graphs of cells: scanpy's names, defaults and result keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from scatlas import blocks
from scatlas._util.lazy_exports import exports

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import scipy.sparse as sp
    from anndata import AnnData
    from leidenalg.VertexPartition import MutableVertexPartition

    from scatlas.tl._ingest import ingest
    from scatlas.tl._rank_genes_groups import rank_genes_groups, rank_genes_groups_logreg
    from scatlas.tl._score import score_genes, score_genes_cell_cycle

__all__ = ["ingest", "leiden", "lisi", "rank_genes_groups", "rank_genes_groups_logreg"]
__all__ += ["score_genes", "score_genes_cell_cycle", "umap"]
_RANKS = ("rank_genes_groups", "rank_genes_groups_logreg")
_SCORES = ("score_genes", "score_genes_cell_cycle")
__getattr__, _ = exports(
    __name__,
    dict.fromkeys(_RANKS, "_rank_genes_groups")
    | dict.fromkeys(_SCORES, "_score")
    | {"ingest": "_ingest"},
)


def __dir__() -> list[str]:
    return __all__


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
    (``adata.obsm['X_pca']`` is a CuPy array, or Dask array of these), cuML draws it there. Where
    cuML is not installed the CPU does it, and a warning is logged.

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
        Seed. None draws one; cuML then takes a quicker way.
    a, b
        Shape of the low-dimensional kernel; fitted to ``min_dist`` and ``spread`` when either is
        left out.
    method
        ``"umap"``: in rounds. ``"umap-learn"``: one edge after the other on one thread of the CPU,
        with umap-learn's numbers; several times slower.
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
    as well: with 100,000 simulated cells a trustworthiness of 0.981 where umap-learn's order gives
    0.980. The step of a round is that of an implicit scheme, and forces are limited by their length
    where umap-learn limits them along each axis: tight groups of few cells are round, and not
    crosses along the diagonals.

    The start of graphs with 4,000 cells and more are the same eigenvectors by Chebyshev filters on
    all threads (Zhou, Saad, Tiago, Chelikowsky 2006), where umap-learn takes ARPACK.

    With ``"umap-learn"`` the coordinates are those of umap-learn 0.5 bit for bit, up to 2,000,000
    cells. As there, the last bits belong to the processor: the optimisation amplifies them, so that
    another one gives a picture that differs in its details.

    With both methods, a graph in more than ``2 * n_components`` parts, whose start umap-learn
    leaves to chance, starts from the PCA of the parts' mean cells.

    On the GPU the picture is cuML's: its spectral start, and cells that move at the same time. It
    shows the same groups at other places. cuML promises the same coordinates for the same seed on
    the same GPU.
    """
    from scatlas.tl import _umap

    adata = adata.copy() if copy else adata
    _umap.umap(
        adata,
        min_dist=min_dist,
        spread=spread,
        n_components=n_components,
        maxiter=maxiter,
        alpha=alpha,
        gamma=gamma,
        negative_sample_rate=negative_sample_rate,
        init_pos=init_pos,
        random_state=random_state,
        a=a,
        b=b,
        method=method,
        key_added=key_added,
        neighbors_key=neighbors_key,
    )
    return adata if copy else None


@blocks.passes(0, "works on the graph in obsp alone")
def leiden(
    adata: AnnData,
    resolution: float | None = 1,
    *,
    restrict_to: tuple[str, Sequence[str]] | None = None,
    random_state: int = 0,
    key_added: str = "leiden",
    adjacency: sp.spmatrix | sp.sparray | None = None,
    directed: bool | None = None,
    use_weights: bool = True,
    n_iterations: int = -1,
    partition_type: type[MutableVertexPartition] | None = None,
    neighbors_key: str | None = None,
    obsp: str | None = None,
    copy: bool = False,
    flavor: Literal["leidenalg", "igraph", "rounds"] = "leidenalg",
    **clustering_args: Any,
) -> AnnData | None:
    """Cluster the cells by the Leiden algorithm (Traag, Waltman, van Eck 2019).

    Where the representation that the neighbours were found in lies on the GPU
    (``adata.obsm['X_pca']`` is a CuPy array, or Dask array of these), cuGraph clusters the cells
    there, whatever the ``flavor``: by modularity, with weights in float32, until it grows no more.
    Where cuGraph is not installed, or does not offer the options (``directed=True``,
    ``resolution=None``, ``partition_type``, ``clustering_args``), the CPU does it, and a warning
    is logged. A graph given as ``adjacency`` or ``obsp`` is the CPU's.

    Parameters
    ----------
    adata
        Annotated data with the graph of :func:`scatlas.pp.neighbors`.
    resolution
        Higher gives more clusters. None for a ``partition_type`` that takes none.
    restrict_to
        ``(column, categories)``: cluster only the cells of these categories of an ``obs`` column.
    random_state
        Seed.
    key_added
        Column of ``obs`` and key of ``uns``.
    adjacency
        Graph [cells x cells] in place of the one in ``obsp``.
    directed
        Take each entry as a directed edge; True for ``flavor="leidenalg"``, and not possible for
        ``"igraph"``.
    use_weights
        Use the values of the graph, not only where they are.
    n_iterations
        Rounds; -1 until nothing changes. 2 is enough for most data and much quicker. cuGraph has
        no such rounds.
    partition_type
        Class of leidenalg; :class:`leidenalg.RBConfigurationVertexPartition` when left out.
    neighbors_key, obsp
        Take the graph that ``uns[neighbors_key]`` names, or ``obsp[obsp]``; not both.
    copy
        Return a changed copy and leave ``adata`` as it is.
    flavor
        ``"leidenalg"`` (scanpy's default), ``"igraph"`` (the C implementation, several times
        quicker; optimises modularity) or ``"rounds"`` (modularity, for large graphs: on all
        threads, without a copy of the graph as Python objects).
    **clustering_args
        For :func:`leidenalg.find_partition` or :meth:`igraph.Graph.community_leiden`.

    Returns
    -------
    None, or the copy. Written: ``obs['leiden']``, categorical of ``'0'``, ``'1'``, ... in
    natural order (``'0'`` is the largest cluster, but for igraph), and
    ``uns['leiden']['params']`` with ``resolution``, ``random_state`` and ``n_iterations``.

    Raises
    ------
    InputError
        No graph there, a flavour or category that does not exist, or options that contradict.

    Notes
    -----
    On the CPU the same graph and seed give the same clusters. With ``flavor="rounds"`` one of four
    cells, chosen by a hash, moves at the same time: its clusters are connected, and others than
    igraph's, with a modularity within 0.5% of it. Iterations end when one of them adds less than
    1e-5 of the modularity. cuGraph takes the seed, but does not
    promise the same clusters from two runs: cells between two clusters may change sides.
    """
    from scatlas.tl import _leiden

    adata = adata.copy() if copy else adata
    _leiden.leiden(
        adata,
        resolution,
        restrict_to=restrict_to,
        random_state=random_state,
        key_added=key_added,
        adjacency=adjacency,
        directed=directed,
        use_weights=use_weights,
        n_iterations=n_iterations,
        partition_type=partition_type,
        neighbors_key=neighbors_key,
        obsp=obsp,
        flavor=flavor,
        clustering_args=clustering_args,
    )
    return adata if copy else None


@blocks.passes(0, "works on the graph in obsp alone")
def lisi(
    adata: AnnData,
    key: str,
    *,
    neighbors_key: str | None = None,
    key_added: str | None = None,
    copy: bool = False,
) -> AnnData | None:
    """Count the values of a column that meet in each cell's neighbourhood (LISI).

    Local inverse Simpson's index (Korsunsky et al., Nature Methods 2019): 1 where all neighbours
    of a cell have one value, and the number of values where each has the same share of them. Of
    plates (iLISI) it says how well they are mixed, of cell types (cLISI) how far apart they are.

    Here each of the graph's neighbours counts the same, so that the number is exact for a graph;
    the original weighs 90 neighbours by their distance. Means of 15 neighbours stay below the
    number of values even where plates are mixed at random.

    Parameters
    ----------
    adata
        Annotated data with the graph of :func:`scatlas.pp.neighbors`.
    key
        Column of ``obs``: categories, text or whole numbers.
    neighbors_key
        Key of ``uns`` that names the graph; ``"neighbors"`` when left out.
    key_added
        Column of ``obs`` for the result, in place of ``lisi_{key}``.
    copy
        Return a changed copy and leave ``adata`` as it is.

    Returns
    -------
    None, or the copy. Written: ``obs['lisi_{key}']``, float64; NaN for a cell none of whose
    neighbours has a value.

    Raises
    ------
    InputError
        No such column, or no neighbours.
    """
    from scatlas import elements
    from scatlas.errors import InputError
    from scatlas.tl import _lisi

    obs = elements.get_table(adata, "obs")
    if key not in obs:
        msg = f"obs has no column {key!r} (key); it has {', '.join(obs.columns)}"
        raise InputError(msg)
    index = _lisi.lisi(_lisi.neighbors_of(adata, neighbors_key), obs[key])
    adata = adata.copy() if copy else adata
    adata.obs[key_added or f"lisi_{key}"] = index
    return adata if copy else None
