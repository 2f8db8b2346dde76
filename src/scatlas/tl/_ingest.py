"""Labels and embeddings of new cells, by their nearest cells of a reference."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from scatlas import blocks, columns, elements
from scatlas._util.imports import from_extra
from scatlas._util.numbers import whole_number
from scatlas.errors import InputError
from scatlas.matrix import inverted_lists
from scatlas.matrix.components import project
from scatlas.matrix.reference_map import Layout, ReferenceMap, index_reference, join_parts
from scatlas.tl._graph import graph

if TYPE_CHECKING:
    from collections.abc import Iterable

    from anndata import AnnData
    from numpy.typing import NDArray


logger = logging.getLogger(__name__)

_METHODS = ("umap", "pca")
# Cells of the reference that are projected to find the projection of its mean.
_PROJECTED = 1000
# By this share of the largest coordinate the offset may differ between these cells: float32
# components of scanpy differ by 1e-5, other values of X by much more.
_SAME_OFFSET = 1e-3


@blocks.passes(1, "the neighbours; for a Dask X X_pca is lazy and takes one more when computed")
def ingest(
    adata: AnnData,
    adata_ref: AnnData,
    *,
    obs: str | Iterable[str] | None = None,
    embedding_method: str | Iterable[str] = _METHODS,
    labeling_method: str | Iterable[str] = "knn",
    neighbors_key: str | None = None,
    inplace: bool = True,
    k: int | None = None,
    random_state: int | np.random.RandomState = 0,
) -> AnnData | None:
    """Map labels and embeddings of a reference to new cells.

    New cells are projected on the reference's components, their nearest cells of the reference are
    found there (exactly among up to 10,000 cells, beyond by the inverted lists of
    :func:`scatlas.pp.neighbors`), and these cells give labels and coordinates. What a cell gets
    depends on its values, its number in ``adata`` and the reference alone: not on blocks, threads
    or other cells. X may be a Dask array; memory holds the results, the reference's components, and
    65,536 cells at a time.

    Parameters
    ----------
    adata
        New cells, with values like those of the reference: the same normalisation, and the genes
        of the reference in the same order.
    adata_ref
        Reference with the results of :func:`scatlas.pp.pca`, :func:`scatlas.pp.neighbors` and
        :func:`scatlas.tl.umap`. It is not changed.
    obs
        Columns of ``adata_ref.obs`` to map.
    embedding_method
        ``"umap"``, ``"pca"``, or both.
    labeling_method
        Only ``"knn"``: the label of most neighbours, each with one vote.
    neighbors_key
        Key of ``adata_ref.uns`` that names the neighbours, in place of ``"neighbors"``.
    inplace
        Write to ``adata``; ``False`` returns a changed copy.
    k
        Neighbours that vote; as many as the reference's neighbours were computed with when left
        out.
    random_state
        Seed of the inverted lists. The seed of the coordinates is that of the reference's UMAP.

    Returns
    -------
    None, or the copy. Written:

    ``obs[column]`` : categorical
        Categories of the reference. Of labels with as many votes, that of the nearest cell. Missing
        where no neighbour has a label.
    ``obsm['X_umap']`` : float32 ``[n_cells, n_components]``
        By the transform of umap-learn 0.5 in 30 rounds, in which the reference does not move
        (:func:`scatlas.matrix.projection.project_layout`).
    ``obsm['X_pca']`` : type of the reference's ``[n_cells, n_comps]``
        ``(X - mean) @ PCs`` with the mean of the reference; lazy for a Dask X.

    Raises
    ------
    InputError
        A reference without components, neighbours, UMAP or one of the labels; other genes; an X of
        the reference that is not the one of its components; neighbours in another metric than
        euclidean, l2, sqeuclidean and cosine; values that are not finite; or another option.

    References
    ----------
    Reference implementation: scanpy 1.11.5, ``tools/_ingest.py``; ``docs/differences.md`` lists
    what differs.
    """
    methods = columns.as_names(embedding_method, "embedding_method")
    names = columns.as_names(() if obs is None else obs, "obs")
    _check_options(methods, columns.as_names(labeling_method, "labeling_method"))
    _check_genes(adata, adata_ref)
    try:
        reference = _read_reference(adata_ref, neighbors_key, methods, k)
        table = elements.get_table(adata_ref, "obs")
        labels = {name: columns.get_labels(table, name, "obs") for name in names}
        pca = _components(adata_ref) if "pca" in methods or reference.name == "X_pca" else None
        cells = _to_dense(
            elements.get_representation(adata_ref, reference.use_rep, reference.n_pcs)
        )
        elements.check_finite_values(cells, reference.name)
    except InputError as error:
        raise InputError(f"adata_ref: {error}") from error
    x_pca = None
    if pca is not None:  # lazy for a Dask X
        new = elements.get_array(adata, pca.layer)
        x_pca = project(new, pca.PCs, pca.offset, dtype=pca.dtype)
    adata = adata if inplace else adata.copy()
    if "umap" in methods or labels:
        x = _representation(adata, reference, x_pca, cells.shape[1])
        codes = {column: known.codes.astype(np.int64) for column, known in labels.items()}
        coordinates, winners = _place(cells, reference, x, codes, random_state)
        if coordinates is not None:
            adata.obsm["X_umap"] = coordinates
        for column, known in labels.items():
            adata.obs[column] = pd.Categorical.from_codes(winners[column], dtype=known.dtype)
    if "pca" in methods:
        adata.obsm["X_pca"] = x_pca
    return None if inplace else adata


class _Reference(NamedTuple):
    """How the reference's neighbours were found, and its UMAP if that is requested."""

    name: str  # "X", or a key of obsm
    use_rep: str | None
    n_pcs: int | None
    metric: str
    n_neighbors: int
    k: int
    umap: Layout | None


class _Pca(NamedTuple):
    """Components of the reference: float64 ``[n_genes, n_comps]`` and the projected mean."""

    PCs: NDArray[np.float64]
    offset: NDArray[np.float64]
    dtype: np.dtype[Any]
    layer: str | None


def _check_options(methods: list[str], labeling: list[str]) -> None:
    for option, given, offered in (
        ("embedding_method", methods, _METHODS),
        ("labeling_method", labeling, ("knn",)),
    ):
        unknown = [name for name in given if name not in offered]
        if unknown:
            msg = f"{option} {unknown[0]!r} is not offered: use {' or '.join(map(repr, offered))}"
            raise InputError(msg)


def _check_genes(adata: AnnData, adata_ref: AnnData) -> None:
    """Refuse other genes than the reference's, and other names: GAPDH is not Gapdh."""
    for given in (adata, adata_ref):
        elements.check_not_backed(given)
    if adata.n_vars != adata_ref.n_vars:
        raise InputError(
            f"adata has {adata.n_vars} genes, but adata_ref has {adata_ref.n_vars}: select the "
            "genes of the reference with adata[:, adata_ref.var_names]"
        )
    own, theirs = adata.var_names, adata_ref.var_names
    if other := np.flatnonzero(np.asarray(own != theirs)).tolist():
        remedy = "select the genes of the reference with adata[:, adata_ref.var_names]"
        if own.str.upper().equals(theirs.str.upper()) and not theirs.isin(own).all():
            remedy = "set adata.var_names = adata_ref.var_names if they are the same genes"
        raise InputError(
            f"gene {other[0]} of adata is {own[other[0]]!r}, but that of adata_ref is "
            f"{theirs[other[0]]!r}: {remedy}"
        )


def _read_reference(
    adata_ref: AnnData, neighbors_key: str | None, methods: list[str], k: int | None
) -> _Reference:
    _, params = graph(adata_ref, neighbors_key)
    metric = params.get("metric", "euclidean")
    if metric not in inverted_lists.METRICS or params.get("metric_kwds"):
        raise InputError(
            f"its neighbours are in the metric {metric!r}, but new cells are searched in one of "
            f"{', '.join(inverted_lists.METRICS)} without metric_kwds: run sa.pp.neighbors with one"
        )
    n_neighbors = int(params["n_neighbors"])
    k = whole_number(n_neighbors if k is None else k, "k", least=1, most=adata_ref.n_obs)
    use_rep, n_pcs = params.get("use_rep"), params.get("n_pcs")
    name = elements.representation_name(adata_ref, use_rep, n_pcs)
    umap = _read_map(adata_ref) if "umap" in methods else None
    return _Reference(name, use_rep, n_pcs, metric, n_neighbors, k, umap)


def _read_map(adata_ref: AnnData) -> Layout:
    with from_extra():
        from sklearn.utils import check_random_state

    params = adata_ref.uns.get("umap", {}).get("params", {})
    if "X_umap" not in adata_ref.obsm or not {"a", "b"} <= set(params):
        raise InputError(
            "no obsm['X_umap'] with uns['umap']['params']: run sa.tl.umap first, or leave 'umap' "
            "out of embedding_method"
        )
    coordinates = _to_dense(blocks.to_memory(elements.get_obsm(adata_ref, "X_umap")))
    elements.check_finite_values(coordinates, "X_umap")
    seed = int(check_random_state(params.get("random_state", 0)).randint(2**63))
    return Layout(coordinates.astype(np.float32), (float(params["a"]), float(params["b"])), seed)


def _components(adata_ref: AnnData) -> _Pca:
    """Components of the reference, with the projection of the mean that was subtracted, which no
    AnnData holds: ``X @ PCs - X_pca`` of any cell.
    """
    for element, key in (("varm", "PCs"), ("obsm", "X_pca")):
        if key not in getattr(adata_ref, element):
            raise InputError(f"no {element}[{key!r}], so no components: run sa.pp.pca first")
    PCs, x_pca = (
        np.asarray(adata_ref.varm["PCs"], np.float64),
        elements.get_obsm(adata_ref, "X_pca"),
    )
    if PCs.shape[1] != x_pca.shape[1]:
        raise InputError(
            f"varm['PCs'] has {PCs.shape[1]} components, but obsm['X_pca'] has {x_pca.shape[1]}: "
            "run sa.pp.pca again"
        )
    layer = adata_ref.uns.get("pca", {}).get("params", {}).get("layer")
    rows = np.arange(min(_PROJECTED, adata_ref.n_obs))
    x = blocks.select_rows(elements.get_array(adata_ref, layer), rows)
    uncentred, centred = (
        blocks.on_host(blocks.to_memory(part)).astype(np.float64)
        for part in (
            project(x, PCs, np.zeros(PCs.shape[1]), dtype=np.float64),
            blocks.select_rows(x_pca, rows),
        )
    )
    offsets = uncentred - centred
    offset = offsets.mean(axis=0)
    largest = max(np.abs(uncentred).max(initial=0), np.abs(centred).max(initial=0))
    if not np.abs(offsets - offset).max(initial=0) <= _SAME_OFFSET * largest:
        raise InputError(
            "obsm['X_pca'] is not the projection of its "
            f"{'X' if layer is None else f'layers[{layer!r}]'} on varm['PCs']: run sa.pp.pca, "
            "sa.pp.neighbors and sa.tl.umap on the values that it holds"
        )
    dtype = x_pca.dtype if x_pca.dtype == np.float64 else np.dtype(np.float32)
    return _Pca(PCs, offset, dtype, layer)


def _representation(adata: AnnData, reference: _Reference, x_pca: Any, n_dims: int) -> Any:
    """The matrix of new cells that is like the one in which the reference's neighbours are."""
    if reference.name == "X_pca":
        return x_pca[:, :n_dims]
    if reference.name == "X":
        return elements.get_matrix(adata, all_floats=True)
    x = elements.get_matrix(adata, obsm=reference.name, all_floats=True)
    x = x if reference.n_pcs is None else x[:, : reference.n_pcs]
    if x.shape[1] != n_dims:
        raise InputError(
            f"obsm[{reference.name!r}] of adata has {x.shape[1]} dimensions, but that of adata_ref "
            f"has {n_dims}: compute it as for the reference"
        )
    return x


def _to_dense(x: Any) -> NDArray[Any]:
    """Float32 or float64 in the host's memory."""
    x = blocks.on_host(x)
    x = x.toarray() if blocks.is_sparse(x) else np.ascontiguousarray(x)
    return x if x.dtype in (np.float32, np.float64) else x.astype(np.float64)


def _place(
    cells: NDArray[Any],
    reference: _Reference,
    x: Any,
    codes: dict[str, NDArray[np.int64]],
    random_state: int | np.random.RandomState,
) -> tuple[NDArray[np.float32] | None, dict[str, NDArray[np.int64]]]:
    """Coordinates, if requested, and the code of each label, part by part of the new cells."""
    index = index_reference(
        cells, reference.n_neighbors, metric=reference.metric, seed=random_state
    )
    logger.info(
        "nearest of %d cells in %d dimensions: inverted lists, %d of %d per cell, recall %.4f",
        *(*cells.shape, index.n_probes, index.n_lists, index.recall),
    )
    layout = reference.umap
    known = ReferenceMap(index, reference.n_neighbors if layout else 1, codes, layout)
    coordinates = None
    if layout is not None:
        coordinates = np.empty((x.shape[0], layout.coordinates.shape[1]), np.float32)
    winners = {column: np.empty(x.shape[0], np.int64) for column in codes}
    start = 0
    for part in join_parts(blocks.stream(x, _to_dense)):
        elements.check_finite_values(part, reference.name)
        rows = slice(start, start + len(part))
        keys = np.arange(rows.start, rows.stop, dtype=np.uint64)
        placed = known.place(part, keys, n_voters=reference.k)
        for column, labels in placed.labels.items():
            winners[column][rows] = labels
        if coordinates is not None:
            coordinates[rows] = placed.coordinates
        start = rows.stop
    return coordinates, winners
