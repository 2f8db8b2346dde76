"""From plates to X_pca with scanpy and Dask, as in the published 100M-cell notebook.

    python bench/sides/scanpy_dask.py OUT --plates a.h5ad b.h5ad --chunk 20000 --comps 300

Opens each plate lazily, filters by pass_filter, normalises, takes logarithms, finds highly variable
genes, and writes the genes that are found on more than two plates. Then merges the plates on disk,
computes the components and writes them. One worker per core, with one thread each. With
``--embed N`` neighbours and UMAP of N cells follow. Prints one JSON line per step.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections import Counter
from pathlib import Path

import anndata as ad
import dask.array as da
import h5py
import numpy as np
import scanpy as sc
import side
from dask.distributed import Client, LocalCluster
from side import step

warnings.filterwarnings("ignore")


def open_lazy(path: Path, chunk: int) -> ad.AnnData:
    with h5py.File(path, "r") as file:
        adata = ad.AnnData(obs=ad.io.read_elem(file["obs"]), var=ad.io.read_elem(file["var"]))
        shape = (chunk, adata.n_vars)
        adata.X = ad.experimental.read_elem_lazy(file["X"], chunks=shape)
    return adata


def main() -> None:
    parser = side.parser(__doc__)
    parser.add_argument("--chunk", type=int, default=20_000, help="cells per Dask block")
    parser.add_argument("--embed", type=int, default=0)
    args = parser.parse_args()
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    with step("start"):
        cores = len(os.sched_getaffinity(0))
        cluster = LocalCluster(
            n_workers=cores, threads_per_worker=1, dashboard_address=None, memory_limit=None
        )
        client = Client(cluster)
    plates = []
    for path in args.plates:
        with step("open"):
            adata = open_lazy(path, args.chunk)
            adata = adata[adata.obs["pass_filter"] == "full", :].copy()
        with step("normalize"):
            sc.pp.normalize_total(adata)
            sc.pp.log1p(adata)
        with step("hvg"):
            sc.pp.highly_variable_genes(adata, n_top_genes=args.top)
        plates.append(adata)
    with step("consensus"):
        votes = Counter(g for adata in plates for g in adata.var_names[adata.var.highly_variable])
        # In the order of var; the notebook uses a set, whose order differs from run to run.
        genes = [g for g in plates[0].var_names if votes[g] >= args.min_plates]
    for i, adata in enumerate(plates):
        with step("write"):
            adata[:, genes].copy().write_h5ad(args.out / f"plate{i}.h5ad")
    with step("concat"):
        ad.experimental.concat_on_disk(
            {f"plate{i}": str(args.out / f"plate{i}.h5ad") for i in range(len(plates))},
            str(args.out / "merged.h5ad"),
            label="plate",
        )
    with step("pca"):
        merged = open_lazy(args.out / "merged.h5ad", args.chunk)
        sc.pp.pca(merged, n_comps=args.comps, mask_var=None)
        merged.obsm["X_pca"].to_zarr(str(args.out / "pca.zarr"))
    if args.embed:
        with step("subset"):
            merged.obsm["X_pca"] = da.from_zarr(str(args.out / "pca.zarr"))
            rows = np.sort(np.random.default_rng(0).permutation(merged.n_obs)[: args.embed])
            subset = merged[rows].copy()
            subset.X = None
            subset.obsm["X_pca"] = subset.obsm["X_pca"].compute()
        with step("neighbors"):
            sc.pp.neighbors(subset, use_rep="X_pca")
        with step("umap"):
            sc.tl.umap(subset)
    client.close()
    cluster.close()
    side.write_result(
        args.out,
        merged.varm["PCs"],
        n_cells=merged.n_obs,
        hvgs=[sorted(a.var_names[a.var.highly_variable]) for a in plates],
        genes=genes,
        variance=np.asarray(merged.uns["pca"]["variance"]).tolist(),
    )


if __name__ == "__main__":
    main()
