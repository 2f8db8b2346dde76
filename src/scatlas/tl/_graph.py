"""The neighbourhood graph that an AnnData holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas.elements import check_finite_values, is_on_gpu
from scatlas.errors import InputError

if TYPE_CHECKING:
    import scipy.sparse as sp
    from anndata import AnnData


def graph(adata: AnnData, neighbors_key: str | None = None) -> tuple[sp.csr_matrix, dict[str, Any]]:
    """Connectivities [cells x cells] under ``uns[neighbors_key]``, and their parameters."""
    key = "neighbors" if neighbors_key is None else neighbors_key
    if key not in adata.uns:
        raise InputError(f"no neighbourhood graph in uns[{key!r}]: run sa.pp.neighbors first")
    facts = adata.uns[key]
    where = facts.get("connectivities_key", "connectivities")
    if where not in adata.obsp:
        msg = f"uns[{key!r}] names obsp[{where!r}], which is missing: run sa.pp.neighbors again"
        raise InputError(msg)
    weights = check_graph(adata.obsp[where], f"obsp[{where!r}]", adata.n_obs)
    return weights, dict(facts.get("params", {}))


def check_graph(weights: Any, name: str, n_cells: int) -> sp.csr_matrix:
    """A graph [cells x cells] of any storage as CSR in the main memory, checked."""
    import scipy.sparse as sp

    weights = blocks.on_host(blocks.to_memory(weights))
    weights = weights.tocsr() if sp.issparse(weights) else sp.csr_matrix(np.asarray(weights))
    if weights.shape != (n_cells, n_cells):
        msg = f"{name} has shape {weights.shape}, but there are {n_cells} cells: give their graph"
        raise InputError(msg)
    blocks.check_type(weights, name, all_floats=True)
    weights = blocks.sum_repeats(weights)
    check_finite_values(weights, name, "run sa.pp.neighbors again, or remove these weights")
    return weights


def check_not_negative(weights: sp.csr_matrix, function: str) -> None:
    """Refuse negative weights, for which modularity and UMAP have no meaning."""
    if weights.data.size and weights.data.min() < 0:
        msg = f"the graph has negative weights, which {function} cannot use: remove or shift them"
        raise InputError(msg)


def works_on_gpu(adata: AnnData, params: dict[str, Any]) -> bool:
    """Whether the GPU processes a neighbourhood graph of the main memory: if the representation in
    which the neighbours were found (``X_pca``, or as `params` say) is there still.
    """
    return is_on_gpu(adata, use_rep=params.get("use_rep"), n_pcs=params.get("n_pcs"))
