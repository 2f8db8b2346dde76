"""The steps of the published multi-GPU showcase on a persisted X, with a cluster and without one.

``python cluster_steps.py KIND N`` starts N workers and prints what is the same.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import anndata as ad
import dask.array as da
import numpy as np
import scipy.sparse as sp

import scatlas as sa
from scatlas import blocks
from scatlas.matrix.gram import GramAccumulator

OPTIONS = {
    "local-cpu": lambda n: {"n_workers": n, "threads_per_worker": 1},
    "local-gpu": lambda n: {"devices": n, "threads_per_worker": 2, "rmm_pool_size": "2GB"},
}


def on_host(x: Any) -> np.ndarray:
    return x if isinstance(x, np.ndarray) else x.get()


def found(*, gpu: bool, persisted: bool) -> tuple[dict[str, np.ndarray], bool]:
    """Results of 40 blocks, more than two groups; and whether the counts are as before."""
    rng = np.random.default_rng(0)
    counts = sp.csr_matrix(rng.poisson(rng.gamma(0.3, 2.0, 300), (4000, 300)).astype(np.float32))
    x = da.from_array(counts, chunks=(100, 300), asarray=False)
    x = sa.get.X_to_GPU(x) if gpu else x
    adata = ad.AnnData(X=x.persist() if persisted else x)
    counted = adata.X
    sa.pp.calculate_qc_metrics(adata, percent_top=None, inplace=True)
    sa.pp.filter_cells(adata, min_counts=1)
    sa.pp.filter_genes(adata, min_cells=3)
    sa.pp.normalize_total(adata)
    sa.pp.log1p(adata)
    sa.pp.highly_variable_genes(adata, n_top_genes=100)
    adata.obs["g"] = np.arange(adata.n_obs) % 3
    groups: dict[str, Any] = {}
    if not gpu:
        groups |= sa.get.aggregate(adata, "g", ["mean", "var", "count_nonzero", "median"]).layers
        groups |= sa.get.aggregate(adata, "g", "sum").layers  # few: block by block
    sa.pp.scale(adata, zero_center=False)
    sa.pp.pca(adata, n_comps=10)
    after = sum(float(block.sum()) for block in blocks.stream(counted))
    return {
        "counts": np.asarray(adata.obs["total_counts"]),
        "dispersions": np.asarray(adata.var["dispersions_norm"]),
        "genes": np.asarray(adata.var["highly_variable"]),
        "PCs": np.ascontiguousarray(adata.varm["PCs"]),
        "variance": np.asarray(adata.uns["pca"]["variance"]),
        "places": np.concatenate([on_host(x) for x in blocks.stream(adata.obsm["X_pca"])]),
        **groups,
    }, after == float(counts.sum())


def main(kind: str, n: int) -> dict[str, Any]:
    gpu = kind == "local-gpu"
    cpu, _ = found(gpu=False, persisted=False)
    called = []
    add = GramAccumulator.add
    with sa.cluster(kind, **OPTIONS[kind](n)) as client:
        GramAccumulator.add = lambda *args, **options: called.append(1) or add(*args, **options)
        there, unharmed = found(gpu=gpu, persisted=True)
        GramAccumulator.add = add
        workers = client.run(lambda: None)
    here = found(gpu=True, persisted=False)[0] if gpu else cpu
    apart = {
        key: float(np.abs(there[key] - cpu[key]).max() / np.abs(cpu[key]).max())
        for key in ("dispersions", "variance", "places")
    }
    return {
        "workers": len(workers),
        "unharmed": unharmed,
        "other bits": [key for key in here if here[key].tobytes() != there[key].tobytes()],
        "apart": max(apart.values()),
        "counts": there["counts"].tolist() == cpu["counts"].tolist(),
        "genes": there["genes"].tolist() == cpu["genes"].tolist(),
        "blocks here": len(called),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
