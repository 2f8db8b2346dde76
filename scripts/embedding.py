"""Join the sampled cells' genes and obs with their neighbours, UMAP and clusters."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from scatlas.io import atomic_path
from scatlas.io.files.hdf5_writing import create_hdf5, write_element, write_h5ad
from scatlas.io.files.local_zarr import open_store
from scatlas.io.matrices.subset import take_csr, take_rows
from scatlas.io.products.assemble_atlas import read_sample
from scatlas.workflow import script
from scatlas.workflow.sample import ATLAS_ROW, read_column, read_uns, rows_of_sample


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--merged", type=Path, required=True, help="merged.zarr")
    parser.add_argument("--pca", type=Path, required=True, help="pca.zarr")
    script.add_obsm(parser)
    parser.add_argument("--genes", type=Path, required=True, help="consensus.parquet")
    parser.add_argument("--subset", type=Path, required=True, help="subset.zarr")
    for step in ("neighbors", "umap", "leiden"):
        parser.add_argument(f"--{step}", type=Path, required=True, help=f"{step}.zarr of the step")
    parser.add_argument("--map", type=Path, help="manifest of map, which numbers the clusters")
    parser.add_argument("--labels", type=Path, help="labels.zarr, if cells have labels")
    parser.add_argument("--embedding", type=Path, required=True, help="h5ad to write")
    args = parser.parse_args(argv)
    with script.recorded_run(args, outputs=[args.embedding]) as facts:
        rows = rows_of_sample(args.subset)
        adata = read_sample(
            args.merged,
            args.pca,
            rows,
            var=pd.read_parquet(args.genes),
            obsm=script.plate_paths(args.obsm),
            block_budget=script.block_budget(args),
        )
        adata.obs[ATLAS_ROW] = rows
        clusters = read_column(args.leiden, "leiden")
        if args.map:
            numbers = np.array(json.loads(args.map.read_text("utf-8"))["cluster_numbers"])
            clusters = pd.Categorical.from_codes(numbers[clusters.codes], clusters.categories)
        adata.obs["leiden"] = clusters
        for name in open_store(args.labels)["obs"] if args.labels else ():
            adata.obs[name] = read_column(args.labels, name, rows)
        adata.obsm["X_umap"] = take_rows(args.umap, "obsm/X_umap")
        for store in (args.neighbors, args.umap, args.leiden):
            adata.uns.update(read_uns(store))
        with atomic_path(args.embedding) as path:
            write_h5ad(path, adata)
            del adata  # before the graph, which may be as large
            with create_hdf5(path, append=True) as file:
                for name in ("distances", "connectivities"):
                    write_element(file["obsp"], name, take_csr(args.neighbors, f"obsp/{name}"))
        facts |= {"n_cells": rows.size, "n_clusters": clusters.categories.size}


if __name__ == "__main__":
    script.run_main(main)
