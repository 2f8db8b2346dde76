"""What new plates need of an atlas, in one h5ad file, and the genes of the atlas on a new plate."""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import anndata as ad
import numpy as np

from scatlas._util.names import first_names
from scatlas.errors import InputError
from scatlas.io import atomic_path
from scatlas.io.files.hdf5_writing import write_h5ad
from scatlas.matrix.gene_scale import GeneScale
from scatlas.matrix.reference_map import Layout, Projection, ReferenceMap, index_reference
from scatlas.matrix.symphony import MixedClusters

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    from numpy.typing import NDArray

logger = logging.getLogger("scatlas")
_ENSEMBL = re.compile(r"^ENS[A-Z]*G\d{6,}")
# Genes that the log names.
_MAX_NAMED = 20


class FoundGenes(NamedTuple):
    """Genes of the atlas that a plate has: gene ``positions[i]`` of the plate is gene
    ``columns[i]`` (ascending) of the atlas. ``missing`` names the others.
    """

    positions: NDArray[np.int64]
    columns: NDArray[np.int32]
    missing: list[str]


def find_genes(var: pd.DataFrame, genes: pd.Index, *, max_missing: float) -> FoundGenes:
    """Find the genes of an atlas by their names on a plate, which may lack a share ``max_missing``.
    The error says whether the plate has ids in place of symbols.
    """
    positions = var.index.get_indexer(genes)
    found = positions >= 0
    missing = genes[~found].astype(str).tolist()
    n_missing = len(missing)
    if n_missing > max_missing * len(genes) or n_missing == len(genes):
        raise InputError(
            f"it lacks {n_missing:,} of the atlas's {len(genes):,} genes, and "
            f"new_plates.max_missing_genes is {max_missing:g}: {_mend(var, missing)}"
        )
    if missing:
        logger.warning(
            "%d of the atlas's %d genes are missing and count as zero: %s",
            *(n_missing, len(genes), first_names(missing, _MAX_NAMED)),
        )
    return FoundGenes(positions[found], np.flatnonzero(found).astype(np.int32), missing)


def _mend(var: pd.DataFrame, missing: list[str]) -> str:
    theirs, own = repr(missing[0]), repr(str(var.index[0])) if len(var) else "none"
    has_id, lacks_id = bool(_ENSEMBL.match(str(var.index[0]))), bool(_ENSEMBL.match(missing[0]))
    if has_id == lacks_id:
        return f"the atlas has {theirs}, the plate begins with {own}: give a plate of these genes"
    kinds = ("ids", "symbols") if has_id else ("symbols", "ids")
    named = next((name for name in var if var[name].astype(str).isin(missing).mean() > 0.01), None)
    where = f"its var column {named!r} has them" if named else "convert them"
    return (
        f"its genes have {kinds[0]} such as {own}, but those of the atlas have {kinds[1]} such as "
        f"{theirs}: {where}; make {kinds[1]} the index of var"
    )


_FACTS = "new_plates"
MIXED = "X_pca_harmony"


class Reference(NamedTuple):
    """A reference as read from its file: genes and projection, the sampled cells with their map,
    the dtype of each column of labels, and columns of each cluster. Neighbours are found on
    ``n_pcs`` components.
    """

    var: pd.DataFrame
    projection: Projection
    cells: ReferenceMap
    n_pcs: int
    labels: dict[str, pd.CategoricalDtype]
    votes: pd.DataFrame
    n_leading: int
    mixed: MixedClusters | None  # if the atlas is corrected: the components of its cells, too
    mixed_by: list[str]  # obs columns


def write_reference(
    path: Path,
    cells: ad.AnnData,
    *,
    projection: Projection,
    variance: pd.DataFrame,
    votes: pd.DataFrame,
    mixed: dict[str, Any] | None = None,
    **facts: Any,
) -> None:
    """Write a reference; atomic. ``cells`` are the sampled ones without X: ``obs`` with ``plate``
    and labels, ``var`` of the atlas, ``X_pca``, ``X_umap`` and ``uns['umap']``. If the atlas is
    corrected, ``X_pca`` is so, too, and ``mixed`` its ``uns['X_pca_harmony']``.

    The rest is as in :mod:`scatlas.matrix.reference_map`: ``variance`` of ``held_variance``, and
    the facts ``usual`` and ``distances`` of ``usual_distances``, ``n_neighbors``, ``seed`` and
    ``n_leading``.
    """
    scale = projection.scale
    facts = {"offset": projection.offset, **facts}
    if scale:
        facts["scale"] = {name: part for name, part in vars(scale).items() if part is not None}
    if mixed:
        facts["mixed"] = mixed
    umap = {"params": {name: cells.uns["umap"]["params"][name] for name in ("a", "b")}}
    out = ad.AnnData(
        obs=cells.obs,
        var=cells.var,
        obsm=dict(cells.obsm),
        varm={"PCs": projection.PCs},
        uns={"umap": umap, _FACTS: facts, "variance": variance, "votes": votes},
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
    mixed = MixedClusters.from_table(facts["mixed"]) if "mixed" in facts else None
    mixed_by = json.loads(facts["mixed"]["params"]["key"]) if mixed else []
    known = labels, stored.uns["votes"], int(facts["n_leading"]), mixed, mixed_by
    return Reference(stored.var, projection, cells, x_pca.shape[1], *known)
