"""The neighbourhood graph that an AnnData holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scatlas import blocks
from scatlas.elements import is_on_gpu
from scatlas.errors import InputError

if TYPE_CHECKING:
    import scipy.sparse as sp
    from anndata import AnnData


def graph(adata: AnnData, neighbors_key: str | None = None) -> tuple[sp.csr_matrix, dict[str, Any]]:
    """Connectivities [cells x cells] under ``uns[neighbors_key]``, and their parameters.

    Raises
    ------
    InputError
        When the neighbours were not computed.
    """
    key = "neighbors" if neighbors_key is None else neighbors_key
    if key not in adata.uns:
        msg = f"no neighbourhood graph in uns[{key!r}]: run sa.pp.neighbors first"
        raise InputError(msg)
    facts = adata.uns[key]
    where = facts.get("connectivities_key", "connectivities")
    if where not in adata.obsp:
        msg = f"uns[{key!r}] names obsp[{where!r}], which is missing: run sa.pp.neighbors again"
        raise InputError(msg)
    return blocks.sum_repeats(adata.obsp[where]), dict(facts.get("params", {}))


def works_on_gpu(adata: AnnData, params: dict[str, Any]) -> bool:
    """Whether the GPU processes a neighbourhood graph.

    The graph itself is kept in the main memory. The GPU takes it where the cells' representation,
    in which the neighbours were found, is there (still): ``adata.obsm['X_pca']``, or what else
    `params` of the graph name.
    """
    return is_on_gpu(adata, use_rep=params.get("use_rep"), n_pcs=params.get("n_pcs"))
