"""Functions of cells: samples, doublets, neighbours, UMAP and clusters; transfer to a GPU."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
from anndata import AnnData

import scatlas as sa
from scatlas import blocks
from scatlas.arrays.kinds import is_dask
from scatlas.errors import GpuError
from scatlas.matrix.harmony import harmonize
from scatlas.matrix.scrublet import scrublet_of_counts
from scatlas.workflow.cell_filter import evaluate_filter, frequent_genes, qc_filter
from tests.adversarial.counting import exact_sums, held_by_another
from tests.adversarial.judge import Function, Refused, in_memory, refuse
from tests.adversarial.matrices import Form, Values, forms, values

# -- samples -------------------------------------------------------------------------------------


def _sample(adata: AnnData) -> dict[str, Any]:
    n = adata.n_obs // 2
    taken, at = sa.pp.sample(adata.X, n=n)
    np.testing.assert_array_equal(in_memory(taken), in_memory(adata.X)[at])
    assert np.unique(at).size == n
    copy = sa.pp.sample(adata, n=n, copy=True)
    mine = held_by_another(adata)
    sa.pp.sample(mine, n=n)
    assert list(mine.obs_names) == list(copy.obs_names) == list(adata.obs_names[at])
    genes = sa.pp.sample(adata, 0.5, axis="var", copy=True)
    return {"X": taken, "at": at, "in place": mine.X, "genes": genes.X}


def _downsample(adata: AnnData) -> dict[str, Any]:
    mine = held_by_another(adata)
    sa.pp.downsample_counts(mine, 5)
    every = sa.pp.downsample_counts(adata, total_counts=20, copy=True)
    again = sa.pp.downsample_counts(adata, 5, replace=True, copy=True)
    results = {"X": mine.X, "every": every.X, "again": again.X}
    before = in_memory(adata.X).astype(int)
    for name in ("X", "every"):
        assert (in_memory(results[name]).astype(int) <= before).all()
    totals = {f"{name} totals": exact_sums(in_memory(x), 1) for name, x in results.items()}
    return {**results, **totals}


def _downsampled(values: Values, bare: AnnData) -> dict[str, Any]:
    x = values.dense.astype(np.float64)
    refuse(not (np.isfinite(x).all() and (x >= 0).all() and (x == np.round(x)).all()), "no counts")
    totals = exact_sums(values.dense, 1)
    return {"X totals": np.minimum(totals, 5), "again totals": np.minimum(totals, 5)}


# -- doublets ------------------------------------------------------------------------------------


def _scrublet(adata: AnnData) -> dict[str, Any]:
    mine = held_by_another(adata)
    sa.pp.scrublet(mine, n_prin_comps=3, n_top_genes=10)
    found = scrublet_of_counts(adata.X, adata.var_names, n_prin_comps=3, n_top_genes=10)
    np.testing.assert_array_equal(found.score, mine.obs["doublet_score"])
    return {"score": mine.obs["doublet_score"].to_numpy()}


# -- neighbours ----------------------------------------------------------------------------------


def _neighbors(adata: AnnData) -> AnnData:
    mine = held_by_another(adata)
    sa.pp.neighbors(mine, 3, use_rep="X")
    return mine


def _graph(adata: AnnData) -> dict[str, Any]:
    mine = _neighbors(adata)
    sa.tl.lisi(mine, "batch")
    sa.tl.leiden(mine, flavor="igraph", n_iterations=2, directed=False)
    distances = mine.obsp["distances"]
    own = distances.data.reshape(adata.n_obs, -1)
    assert (np.diff(own, axis=1) >= 0).all()
    return {
        "distances": own,
        "connectivities": mine.obsp["connectivities"],
        "lisi": mine.obs["lisi_batch"].to_numpy(),
        "leiden": mine.obs["leiden"].to_numpy().astype(str),
    }


def _graph_expected(values: Values, bare: AnnData) -> dict[str, Any]:
    x = values.dense.astype(np.float64)
    n_cells = len(x)
    refuse(n_cells < 3, "fewer than three cells")
    refuse(x.shape[1] == 0, "no genes")
    refuse(not np.isfinite(x).all(), "values that are not finite")
    squares = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    np.fill_diagonal(squares, -1)  # the first neighbour of a cell is the cell itself
    return {"distances": np.sqrt(np.sort(squares, axis=1)[:, 1:3])}


def _lisi(adata: AnnData) -> dict[str, Any]:
    mine = _neighbors(adata)
    sa.tl.lisi(mine, "group")
    distances, labels = mine.obsp["distances"], mine.obs["group"].to_numpy()
    near = [labels[row.indices] for row in (distances[[i]] for i in range(mine.n_obs))]
    expected = [len(at) ** 2 / sum(np.unique(at, return_counts=True)[1] ** 2) for at in near]
    np.testing.assert_allclose(mine.obs["lisi_group"], expected, rtol=1e-15)
    return {"lisi": mine.obs["lisi_group"].to_numpy()}


def _umap(adata: AnnData) -> dict[str, Any]:
    mine = _neighbors(adata)
    sa.tl.umap(mine, maxiter=5)
    cells = mine.obsm["X_umap"]
    assert np.isfinite(cells).all()
    return {"cells": cells}


def _ingest(adata: AnnData) -> dict[str, Any]:
    reference = _neighbors(adata)
    sa.pp.pca(reference, 1, mask_var=None)
    sa.tl.umap(reference, maxiter=5)
    mine = held_by_another(adata)
    sa.tl.ingest(mine, reference, obs="group", k=1)
    known, found = in_memory(reference.obsm["X_pca"]), mine.obsm["X_pca"]
    np.testing.assert_allclose(in_memory(found), known, rtol=1e-5, atol=1e-5 * np.abs(known).max())
    labels = mine.obs["group"].to_numpy().astype(str)
    return {"X_pca": found, "X_umap": mine.obsm["X_umap"], "labels": labels}


def _harmony(adata: AnnData) -> dict[str, Any]:
    mine = AnnData(obs=adata.obs.copy(), obsm={"X_pca": adata.X})
    sa.pp.harmony_integrate(mine, "batch", max_iter_harmony=2)
    of_array = harmonize(in_memory(adata.X), {"batch": adata.obs["batch"]}, max_iter_harmony=2)
    np.testing.assert_array_equal(of_array, mine.obsm["X_pca_harmony"])
    return {"cells": mine.obsm["X_pca_harmony"]}


def _harmony_expected(values: Values, bare: AnnData) -> None:
    refuse(values.shape[0] < 60, "fewer than 60 cells")
    refuse(not np.isfinite(values.dense).all(), "values that are not finite")


# -- kept cells ----------------------------------------------------------------------------------


def _bounds(adata: AnnData) -> dict[str, Any]:
    obs, var = sa.pp.calculate_qc_metrics(adata, qc_vars=["mt"], percent_top=None, log1p=False)
    keep, taken = qc_filter(
        obs.assign(mine=adata.obs["batch"]),
        source="x.h5ad",
        filter="mine == 'b0'",
        min_genes=1,
        max_counts=40,
        max_pct_mt=60.0,
    )
    mask = evaluate_filter(adata.obs, "batch == 'b0'", source="x.h5ad")
    genes = frequent_genes(var["n_cells_by_counts"].to_numpy(), 1, source="x.h5ad")
    return {"keep": keep, "taken": np.array([*taken.values()]), "mask": mask, "genes": genes}


def _bounds_expected(values: Values, bare: AnnData) -> dict[str, Any]:
    x = values.dense
    totals = exact_sums(x, 1)
    mt = exact_sums(x[:, bare.var["mt"].to_numpy(bool)], 1)
    first = bare.obs["batch"].to_numpy() == "b0"
    keep = first & ((x != 0).sum(axis=1) >= 1) & (totals <= 40) & (mt / totals * 100 <= 60)
    refuse(not keep.any(), "no cell is left")
    return {"keep": keep, "mask": first, "genes": (x != 0).any(axis=0)}


# -- blocks, and transfer ------------------------------------------------------------------------


def _stream(adata: AnnData) -> dict[str, Any]:
    parts = [in_memory(part) for part in blocks.stream(adata.X)]
    results = {"X": np.concatenate(parts)}
    if is_dask(adata.X):
        results["X"] = blocks.map_blocks(lambda block: block.copy(), adata.X, dtype=adata.X.dtype)
        np.testing.assert_array_equal(in_memory(results["X"]), np.concatenate(parts))
    return results


def _to_cpu(adata: AnnData) -> dict[str, Any]:
    mine = held_by_another(adata)
    sa.get.anndata_to_CPU(mine, convert_all=True)
    assert sa.get.on_backend(adata.X) is adata.X or adata.is_view
    return {"X": sa.get.X_to_CPU(adata.X), "mine": mine.X}


def _to_gpu(adata: AnnData) -> dict[str, Any]:
    for move in (sa.get.X_to_GPU, sa.get.anndata_to_GPU):
        try:
            move(adata.X if move is sa.get.X_to_GPU else adata)
        except GpuError as error:
            last = error
    raise last


def _as_they_are(*names: str) -> Any:
    return lambda values, bare: dict.fromkeys(names, values.dense)


def _no_gpu(values: Values, bare: AnnData) -> None:
    raise Refused("there is no GPU")


COUNTED = values(kinds=("counts", "negative", "reals"))

MANY_CELLS = values(kinds=("counts",), cells=(40, 70), genes=(0, 60), top=20)
NEAR = values(kinds=("counts", "negative", "reals", "nonfinite"), cells=(0, 14))
DISTANCES = {"rtol": 1e-6, "why": "scikit-learn's distances of float32", "scale": lambda v: v.size}
EXACT_NEAR = values(kinds=("counts", "negative"), dtypes=("int32", "float64"), cells=(0, 30))
COMPONENTS = values(
    kinds=("reals", "nonfinite"), dtypes=("float32", "float64"), cells=(58, 64), genes=(2, 5)
)

FUNCTIONS = {
    "pp.sample": Function(_sample, None, lazy=("X", "in place", "genes")),
    "pp.downsample_counts": Function(_downsample, _downsampled, COUNTED, lazy=("X", "again")),
    "pp.scrublet": Function(
        _scrublet,
        None,
        MANY_CELLS,
        forms(views=False),
        rtol=1e-9,
        why="ties",
        storages="ties",
        typical=None,
    ),
    "pp.neighbors": Function(_graph, _graph_expected, NEAR, storages="ties", **DISTANCES),
    "tl.lisi": Function(_lisi, None, EXACT_NEAR, storages="ties"),
    "tl.umap": Function(_umap, None, EXACT_NEAR, storages="ties"),
    "tl.ingest": Function(_ingest, None, EXACT_NEAR, lazy=("X_pca",), storages="ties"),
    "pp.harmony_integrate": Function(
        _harmony,
        _harmony_expected,
        COMPONENTS,
        forms(views=False).filter(lambda form: not form.is_sparse),
        plain=Form(storage="c"),
        typical=None,
    ),
    "pp.qc_filter": Function(
        _bounds, _bounds_expected, values(kinds=("counts", "huge", "negative"))
    ),
    "blocks.stream": Function(_stream, _as_they_are("X"), lazy=("X",)),
    "get.X_to_CPU": Function(_to_cpu, _as_they_are("X", "mine"), lazy=("X", "mine")),
}
if find_spec("cupy") is None:
    FUNCTIONS["get.X_to_GPU"] = Function(_to_gpu, _no_gpu)
