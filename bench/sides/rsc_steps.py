"""From QC to X_pca with rapids-singlecell on one GPU, out of core, as in its notebooks.

    python bench/sides/rsc_steps.py OUT --plates a.zarr --threads 8 --rows 20000

One process with Dask's threads, which saves all transfers between workers, and RMM's pool as in its
notebooks. Writes nothing: X_pca ends in host memory. ``--zarrs`` decodes Zarr with the Rust library
instead of zarr-python. Prints one JSON line per step.
"""

from __future__ import annotations

import warnings
from typing import Any

import side
from side import step

warnings.filterwarnings("ignore")


def host(x: Any) -> Any:
    return x.get() if hasattr(x, "get") else x


def main() -> None:
    parser = side.parser(__doc__)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True, help="cells per Dask block")
    parser.add_argument("--zarrs", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with step("start"):
        import without_cuml

        without_cuml.install()
        import anndata as ad
        import cupy as cp
        import dask
        import h5py
        import numpy as np
        import rapids_singlecell as rsc
        import rmm
        import zarr
        from rmm.allocators.cupy import rmm_cupy_allocator

        if args.zarrs:
            import zarrs  # noqa: F401

            zarr.config.set(
                {
                    "codec_pipeline.path": "zarrs.ZarrsCodecPipeline",
                    "threading.max_workers": args.threads,
                }
            )
        dask.config.set(scheduler="threads", num_workers=args.threads)
        rmm.reinitialize(
            pool_allocator=True, initial_pool_size=20 << 30, maximum_pool_size=120 << 30
        )
        cp.cuda.set_allocator(rmm_cupy_allocator)
        cp.zeros(1).get()
    with step("open"):
        path = str(args.plates[0])
        file = zarr.open(path, mode="r") if path.endswith(".zarr") else h5py.File(path)
        shape = (args.rows, int(file["X"].attrs["shape"][1]))
        adata = ad.AnnData(
            X=ad.experimental.read_elem_lazy(file["X"], chunks=shape),
            obs=ad.io.read_elem(file["obs"]),
            var=ad.io.read_elem(file["var"]),
        )
        rsc.get.anndata_to_GPU(adata)
    with step("qc"):
        rsc.pp.calculate_qc_metrics(adata)
    with step("filter"):
        adata = adata[(adata.obs["pass_filter"] == "full").to_numpy()].copy()
    with step("normalize"):
        rsc.pp.normalize_total(adata)
    with step("log1p"):
        rsc.pp.log1p(adata)
    with step("hvg"):
        rsc.pp.highly_variable_genes(adata, n_top_genes=args.top, flavor="seurat")
    with step("subset"):
        adata = adata[:, adata.var["highly_variable"].to_numpy()].copy()
    with step("pca fit"):
        rsc.pp.pca(adata, n_comps=args.comps, mask_var=None)
    with step("pca transform"):
        meta = np.zeros((0, 0), np.float32)
        x_pca = adata.obsm["X_pca"].map_blocks(host, dtype=np.float32, meta=meta).compute()
    side.write_result(
        args.out,
        host(adata.varm["PCs"]),
        n_cells=x_pca.shape[0],
        genes=adata.var_names.tolist(),
        variance=host(adata.uns["pca"]["variance"]).tolist(),
    )


if __name__ == "__main__":
    main()
