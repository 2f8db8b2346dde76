"""Leiden clustering; ``scatlas.tl`` has the signature and the documentation."""

from __future__ import annotations

import logging
import random
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from natsort import natsorted

from scatlas import blocks, columns, elements
from scatlas._util.imports import from_extra
from scatlas._util.numbers import check_positive, random_state_of, seed_number, whole_number
from scatlas.errors import InputError
from scatlas.matrix import communities
from scatlas.tl._graph import check_graph, check_not_negative, graph, works_on_gpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import igraph
    import scipy.sparse as sp
    from anndata import AnnData
    from leidenalg.VertexPartition import MutableVertexPartition

logger = logging.getLogger(__name__)

_PART = 1_000_000  # edges


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
    (``adata.obsm['X_pca']`` is a CuPy array, or Dask array of these), the rounds of
    ``flavor="rounds"`` run there, with the CPU's clusters. The other flavours, and a graph given as
    ``adjacency`` or ``obsp``, are the CPU's.

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
        Rounds; -1 until nothing changes. 2 is enough for most data and much quicker.
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
    The same graph and seed give the same clusters. With ``flavor="rounds"`` one of four
    cells, chosen by a hash, moves at the same time: its clusters are connected, and others than
    igraph's, with a modularity within 0.5% of it. Iterations end when one of them adds less than
    1e-5 of the modularity.
    """
    _check_flavor(flavor, directed=directed, partition_type=partition_type)
    if resolution is not None:
        check_positive(resolution, "resolution")
    random_state = seed_number(random_state)
    n_iterations = whole_number(n_iterations, "n_iterations", least=-1)
    adata = adata.copy() if copy else adata
    to_device: Callable[[Any], Any] = np.asarray
    if adjacency is None:
        adjacency, params = _find_graph(adata, obsp, neighbors_key)
        if flavor == "rounds" and params is not None and works_on_gpu(adata, params):
            from scatlas.arrays.pinned_copies import to_gpu

            logger.info("Leiden of %d cells: on the GPU", adjacency.shape[0])
            to_device = to_gpu
    else:
        adjacency = check_graph(adjacency, "adjacency", adata.n_obs)
    if use_weights and _takes_modularity(flavor, partition_type, clustering_args):
        check_not_negative(adjacency, f"leiden with flavor={flavor!r}")
    restriction = None if restrict_to is None else _restriction(adata, restrict_to)
    if restriction is not None:
        cells, labels, part = restriction
        adjacency = adjacency[cells][:, cells]

    args = {**clustering_args, "n_iterations": n_iterations}
    if flavor == "rounds":
        membership = _in_rounds(
            adjacency,
            resolution,
            args,
            seed=random_state,
            weighted=use_weights,
            to_device=to_device,
        )
    elif flavor == "leidenalg":
        edges = _edges(adjacency, directed=True if directed is None else directed)
        membership = _by_leidenalg(
            edges, partition_type, resolution, args, seed=random_state, weighted=use_weights
        )
    else:
        edges = _edges(adjacency, directed=False)
        membership = _by_igraph(edges, resolution, args, seed=random_state, weighted=use_weights)

    numbers = [str(number) for number in range(membership.max(initial=-1) + 1)]
    found = pd.Categorical.from_codes(membership, numbers)
    if restriction is not None:
        key_added = "leiden_R" if key_added == "leiden" else key_added
        labels[cells] = [f"{part},{name}" for name in found]
        found = pd.Categorical(labels, categories=natsorted(set(labels[~pd.isna(labels)])))
    adata.obs[key_added] = found
    adata.uns[key_added] = {
        "params": {
            "resolution": resolution,
            "random_state": random_state,
            "n_iterations": n_iterations,
        }
    }
    return adata if copy else None


def _check_flavor(flavor: str, *, directed: bool | None, partition_type: type | None) -> None:
    if flavor not in {"igraph", "leidenalg", "rounds"}:
        raise InputError(f"flavor is {flavor!r}: use 'igraph', 'leidenalg' or 'rounds'")
    if flavor != "leidenalg" and directed:
        raise InputError(f"flavor={flavor!r} clusters undirected graphs: pass directed=False")
    if flavor != "leidenalg" and partition_type is not None:
        msg = "partition_type belongs to flavor='leidenalg': leave it out or change the flavor"
        raise InputError(msg)


def _in_rounds(
    adjacency: sp.spmatrix | sp.sparray,
    resolution: float | None,
    args: dict[str, Any],
    *,
    seed: int,
    weighted: bool,
    to_device: Callable[[Any], Any],
) -> np.ndarray:
    n_iterations = args.pop("n_iterations")
    if args or resolution is None:
        refused = ", ".join(args) or "resolution=None"
        msg = f"flavor='rounds' does not offer {refused}: leave it out or change the flavor"
        raise InputError(msg)
    weights = adjacency
    if not weighted:
        weights = (weights != 0).astype(np.int64)
    labels = communities.leiden(
        weights, resolution=resolution, n_iterations=n_iterations, seed=seed, to_device=to_device
    )
    return communities.by_size(labels)


def _by_leidenalg(
    edges: igraph.Graph,
    partition_type: type | None,
    resolution: float | None,
    args: dict[str, Any],
    *,
    seed: int,
    weighted: bool,
) -> np.ndarray:
    with from_extra():
        import leidenalg

    if resolution is not None:
        args["resolution_parameter"] = resolution
    if weighted:
        args["weights"] = edges.es["weight"]
    kind = partition_type or leidenalg.RBConfigurationVertexPartition
    return np.asarray(leidenalg.find_partition(edges, kind, **args, seed=seed).membership)


def _by_igraph(
    edges: igraph.Graph,
    resolution: float | None,
    args: dict[str, Any],
    *,
    seed: int,
    weighted: bool,
) -> np.ndarray:
    if resolution is not None:
        args["resolution"] = resolution
    if weighted:
        args["weights"] = "weight"
    args.setdefault("objective_function", "modularity")
    with _igraph_seed(seed):
        return np.asarray(edges.community_leiden(**args).membership)


def _find_graph(
    adata: AnnData, obsp: str | None, neighbors_key: str | None
) -> tuple[sp.csr_matrix, dict[str, Any] | None]:
    """The graph, and the parameters of the neighbours if it came from them."""
    if obsp is None:
        return graph(adata, neighbors_key)
    if neighbors_key is not None:
        raise InputError("obsp and neighbors_key both name a graph: pass one of them")
    if obsp not in adata.obsp:
        raise InputError(f"no {obsp!r} in obsp: there are {list(adata.obsp)}")
    return check_graph(adata.obsp[obsp], f"obsp[{obsp!r}]", adata.n_obs), None


def _restriction(adata: AnnData, restrict_to: Any) -> tuple[np.ndarray, np.ndarray, str]:
    """Cells whose column is one of the categories of ``(column, categories)``, bool [cells]; the
    labels of all as texts or None; and the name of the part.
    """
    if isinstance(restrict_to, str) or len(restrict_to) != 2:
        msg = f"restrict_to is {restrict_to!r}: pass a column and its categories, ('leiden', ['1'])"
        raise InputError(msg)
    column, names = restrict_to[0], [*map(str, columns.as_names(restrict_to[1], "restrict_to"))]
    values = columns.get_labels(elements.get_table(adata, "obs"), column, "restrict_to")
    texts = np.array([*map(str, values.categories), None], object)  # the last for code -1
    labels = texts[values.codes]
    cells = np.isin(values.codes, np.flatnonzero(np.isin(texts[:-1], names)))
    if not (names and set(names) <= set(labels)):
        raise InputError(
            f"restrict_to names {names}, which are not all in obs[{column!r}]: name one or several "
            f"of {natsorted(set(labels) - {None})}"
        )
    return cells, labels, "-".join(names)


def _takes_modularity(flavor: str, partition_type: type | None, args: dict[str, Any]) -> bool:
    """Whether the quality that clusters optimise has no meaning for negative weights; leidenalg's
    C++ part refuses these for all qualities but one.
    """
    if flavor == "igraph":
        return str(args.get("objective_function", "modularity")).lower() == "modularity"
    return partition_type is None or partition_type.__name__ != "CPMVertexPartition"


def _edges(adjacency: sp.spmatrix | sp.sparray, *, directed: bool) -> igraph.Graph:
    """Graph with one edge for each non-zero entry, in row order; undirected, a symmetric matrix
    doubles every weight, which changes neither modularity nor what scanpy finds.
    """
    with from_extra():
        import igraph

    entries = adjacency.tocoo()
    there = entries.data != 0
    rows, columns = entries.row[there], entries.col[there]
    # Pairs of Python numbers, one part at a time: three times as fast as an array of pairs, and
    # a graph of a million cells never becomes Python objects all at once.
    pairs = chain.from_iterable(
        zip(rows[i : i + _PART].tolist(), columns[i : i + _PART].tolist(), strict=True)
        for i in range(0, rows.size, _PART)
    )
    network = igraph.Graph(n=adjacency.shape[0], edges=pairs, directed=directed)
    network.es["weight"] = entries.data[there].astype(np.float64).tolist()
    return network


class _SeededNumbers:
    """Random numbers for igraph as scanpy draws them: the same seed gives scanpy's clusters, and
    Python's own generator stays as it is.
    """

    def __init__(self, seed: int) -> None:
        self._state = random_state_of(seed)
        self.random = self._state.random_sample
        self.gauss = self._state.normal

    def getrandbits(self, k: int) -> int:
        return int(self._state.tomaxint()) & ((1 << k) - 1)

    def randint(self, low: int, high: int) -> int:
        return int(self._state.randint(low, high + 1))


@contextmanager
def _igraph_seed(seed: int) -> Iterator[None]:
    with from_extra():
        import igraph

    igraph.set_random_number_generator(_SeededNumbers(seed))
    try:
        yield
    finally:
        igraph.set_random_number_generator(random)
