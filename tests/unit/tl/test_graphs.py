"""Graphs and distances that are not finite, of another shape or storage, in all functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from anndata import AnnData

import scatlas as sa
from scatlas.errors import InputError
from scatlas.pp._neighbors import _check_found

if TYPE_CHECKING:
    from collections.abc import Callable

Z = np.random.default_rng(1).normal(size=(90, 4)) + 8 * np.eye(4)[np.arange(90) % 4]


def cells(values: Any = Z, *, graph: bool = True) -> AnnData:
    """Cells of four groups and their graph."""
    adata = AnnData(np.zeros((90, 1), "f4"), obsm={"r": values})
    adata.obs["g"] = np.array(["a", "b"])[np.arange(90) % 2]
    if graph:
        sa.pp.neighbors(adata, use_rep="r", n_neighbors=8)
    return adata


CALLS: dict[str, Callable[[AnnData], Any]] = {
    "leidenalg": lambda a: sa.tl.leiden(a),
    "igraph": lambda a: sa.tl.leiden(a, flavor="igraph", directed=False),
    "rounds": lambda a: sa.tl.leiden(a, flavor="rounds", obsp="connectivities"),
    "adjacency": lambda a: sa.tl.leiden(a, adjacency=a.obsp["connectivities"]),
    "umap": lambda a: sa.tl.umap(a, maxiter=1),
    "unweighted": lambda a: sa.tl.leiden(a, flavor="rounds", use_weights=False),
    "lisi": lambda a: sa.tl.lisi(a, "g"),
}


@pytest.mark.parametrize("name", CALLS)
def test_weights_that_are_not_finite_or_negative_are_refused(name: str) -> None:
    adata = cells()
    for bad in (np.nan, np.inf, -1):
        for key in ("connectivities", "distances"):
            adata.obsp[key].data[5] = bad
        if bad == -1 and name in {"unweighted", "lisi"}:
            CALLS[name](adata)
            continue
        what = (
            "negative weights, which .* cannot use" if bad == -1 else "values that are not finite"
        )
        with pytest.raises(InputError, match=f"{what}.*: (run|remove) "):
            CALLS[name](adata)


def test_graphs_of_any_storage_give_the_same_clusters_and_of_other_cells_none() -> None:
    adata, found = cells(), set()
    graph = adata.obsp["connectivities"]
    for stored in (graph, graph.tocsc(), graph.tocoo(), graph.toarray()):
        sa.tl.leiden(adata, flavor="rounds", adjacency=stored)
        found.add(tuple(adata.obs["leiden"]))
    assert len(found) == 1
    with pytest.raises(InputError, match=r"adjacency has shape \(80, 80\), but there are 90 cells"):
        sa.tl.leiden(adata, adjacency=graph[:80, :80])


def test_distances_that_are_not_finite_are_refused() -> None:
    odd = Z.copy()
    odd[:, 2] = odd[7] = 0  # a dimension and a cell without variance
    for metric in ("seuclidean", "correlation"):
        with pytest.raises(InputError, match=f"metric='{metric}' gives distances that are NaN"):
            sa.pp.neighbors(cells(odd, graph=False), use_rep="r", n_neighbors=6, metric=metric)
    with pytest.raises(InputError, match="1 cells, the first at position 2 "):
        _check_found(np.array([[0, 1], [1, 2], [2, -1]]), np.zeros((3, 2)), "odd")


def test_values_whose_squares_overflow_are_refused() -> None:
    adata = cells(Z * 1e200, graph=False)
    with pytest.raises(InputError, match="'r' holds values that are not finite, or not within"):
        sa.pp.neighbors(adata, use_rep="r")
    with pytest.raises(InputError, match=r"not finite, or beyond .*: remove"):
        sa.pp.harmony_integrate(adata, "g", basis="r")


@pytest.mark.parametrize("restrict_to", ["g", ("g",), ("g", []), ("g", ["a", "no"]), ("no", "a")])
def test_restrict_to_names_a_column_and_its_categories(restrict_to: Any) -> None:
    with pytest.raises(InputError, match=r"restrict_to.*: (pass|name)"):
        sa.tl.leiden(cells(), flavor="rounds", restrict_to=restrict_to)
