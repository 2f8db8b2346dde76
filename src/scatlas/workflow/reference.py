"""What new plates need of an atlas, in one h5ad file: sampled cells, components, variances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import anndata as ad
import numpy as np

from scatlas.io import atomic_path
from scatlas.io.files.hdf5_elements import write_h5ad
from scatlas.matrix.gene_scale import GeneScale
from scatlas.matrix.reference_map import Layout, Projection, ReferenceMap, index_reference

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

_FACTS = "new_plates"


class Reference(NamedTuple):
    """A reference as read from its file: the atlas's genes and the projection on its components,
    the sampled cells with their map, and the dtype of each column of labels. Neighbours are found
    on ``n_pcs`` components; the share of the variance is measured for ``n_leading``.
    """

    var: pd.DataFrame
    projection: Projection
    cells: ReferenceMap
    n_pcs: int
    labels: dict[str, pd.CategoricalDtype]
    n_leading: int


def write_reference(
    path: Path,
    cells: ad.AnnData,
    *,
    projection: Projection,
    usual: np.ndarray,
    distances: np.ndarray,
    n_neighbors: int,
    seed: int,
    variance: pd.DataFrame,
    n_leading: int,
) -> None:
    """Write a reference; atomic. ``cells`` are the sampled ones without X: ``obs`` with ``plate``
    and labels, ``var`` of the atlas, ``X_pca`` with the components on which neighbours are found,
    ``X_umap`` and ``uns['umap']``. ``variance`` is the table of
    :func:`scatlas.matrix.reference_map.held_variance`, ``usual`` and ``distances`` those of
    :func:`scatlas.matrix.reference_map.usual_distances`, and the rest is as in
    :class:`scatlas.matrix.reference_map.ReferenceMap`.
    """
    scale = projection.scale
    facts: dict[str, Any] = {
        "offset": projection.offset,
        "usual": usual,
        "distances": distances,
        "n_neighbors": n_neighbors,
        "seed": seed,
        "n_leading": n_leading,
    }
    if scale:
        facts["scale"] = {"mean": scale.mean, "std": scale.std, "zero_center": scale.zero_center}
        facts["scale"] |= {} if scale.max_value is None else {"max_value": scale.max_value}
    umap = {"params": {name: cells.uns["umap"]["params"][name] for name in ("a", "b")}}
    out = ad.AnnData(
        obs=cells.obs,
        var=cells.var,
        obsm=dict(cells.obsm),
        varm={"PCs": projection.PCs},
        uns={"umap": umap, _FACTS: facts, "variance": variance},
    )
    with atomic_path(path) as partial:
        write_h5ad(partial, out)


def read_reference(path: Path) -> Reference:
    """Read a reference and index its cells."""
    stored = ad.read_h5ad(path)
    facts, params = stored.uns[_FACTS], stored.uns["umap"]["params"]
    scale = None
    if "scale" in facts:
        given = facts["scale"]
        bound = float(given["max_value"]) if "max_value" in given else None
        scale = GeneScale(given["mean"], given["std"], bool(given["zero_center"]), bound)
    columns = {name: stored.obs[name].astype("category") for name in stored.obs if name != "plate"}
    n_neighbors, seed = int(facts["n_neighbors"]), int(facts["seed"])
    x_pca = np.ascontiguousarray(stored.obsm["X_pca"], np.float32)
    coordinates = np.ascontiguousarray(stored.obsm["X_umap"], np.float32)
    cells = ReferenceMap(
        index_reference(x_pca, n_neighbors + 1, seed=seed),
        n_neighbors,
        {name: column.cat.codes.to_numpy(np.int64) for name, column in columns.items()},
        Layout(coordinates, (float(params["a"]), float(params["b"])), seed),
        (facts["usual"], facts["distances"]),
    )
    projection = Projection(np.asarray(stored.varm["PCs"]), facts["offset"], scale)
    labels = {name: column.dtype for name, column in columns.items()}
    n_leading = int(facts["n_leading"])
    return Reference(stored.var, projection, cells, x_pca.shape[1], labels, n_leading)
