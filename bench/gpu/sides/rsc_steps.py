"""From QC to X_pca with rapids-singlecell on one GPU, out of core, as in its notebooks.

    python bench/gpu/sides/rsc_steps.py OUT --store a.zarr --threads 8 --rows 20000

One process with Dask's threads, which saves all transfers between workers, and RMM's pool as in its
notebooks. Writes nothing: X_pca ends in host memory. ``--zarrs`` decodes Zarr with the Rust library
instead of zarr-python. Prints one JSON line per step.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")


@contextmanager
def step(name: str):
    start = time.perf_counter()
    yield
    print(json.dumps({"step": name, "seconds": time.perf_counter() - start}), flush=True)


def host(x: Any) -> Any:
    return x.get() if hasattr(x, "get") else x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True, help="cells per Dask block")
    parser.add_argument("--zarrs", action="store_true")
    parser.add_argument("--top", type=int, default=2304)
    parser.add_argument("--comps", type=int, default=300)
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
        path = str(args.store)
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
    np.savez(
        args.out / "result.npz",
        genes=adata.var_names.to_numpy(str),
        variance=host(adata.uns["pca"]["variance"]),
        PCs=host(adata.varm["PCs"]),
        n_cells=x_pca.shape[0],
    )


if __name__ == "__main__":
    main()
