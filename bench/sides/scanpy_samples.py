"""Many small samples with scanpy: all cells in memory, one script.

    python bench/sides/scanpy_samples.py OUT --plates s0.h5ad s1.h5ad --comps 50 --embed 20000

From h5ad files to components, and a map with clusters of some of the cells. Prints one JSON line
per step.
"""

from __future__ import annotations

import json
import warnings

import anndata as ad
import numpy as np
import scanpy as sc
import side
from side import step

warnings.filterwarnings("ignore")


def main() -> None:
    parser = side.parser(__doc__)
    parser.add_argument("--embed", type=int, default=20_000)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with step("read"):
        samples = {path.stem: ad.read_h5ad(path) for path in args.plates}
        adata = ad.concat(samples, label="plate", index_unique="-")
        del samples
    with step("qc"):
        sc.pp.calculate_qc_metrics(adata, inplace=True, percent_top=None)
    with step("normalize"):
        sc.pp.normalize_total(adata)
        sc.pp.log1p(adata)
    with step("hvg"):
        sc.pp.highly_variable_genes(adata, n_top_genes=args.top, batch_key="plate")
    with step("pca"):
        adata = adata[:, adata.var["highly_variable"]].copy()
        sc.pp.pca(adata, n_comps=args.comps)
    with step("map"):
        n = min(args.embed, adata.n_obs)
        rows = np.sort(np.random.default_rng(0).choice(adata.n_obs, n, replace=False))
        subset = adata[rows].copy()
        sc.pp.neighbors(subset)
        sc.tl.umap(subset)
        sc.tl.leiden(subset, flavor="igraph", n_iterations=2)
    result = {"cells": adata.n_obs, "genes": adata.var_names.tolist()}
    (args.out / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
