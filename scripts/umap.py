"""Find neighbours, draw the UMAP and cluster the cells of the subset."""

from __future__ import annotations

import logging
from pathlib import Path

import anndata as ad

from scatlas.get import on_backend
from scatlas.io import atomic_path
from scatlas.io.files.hdf5_writing import write_h5ad
from scatlas.pp import neighbors as find_neighbors
from scatlas.tl import leiden as find_clusters
from scatlas.tl import umap as draw
from scatlas.workflow import script
from scatlas.workflow.config.cli_options import add_options, from_options
from scatlas.workflow.config.sections import UMAP, Leiden, Neighbors

logger = logging.getLogger("scatlas")


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__, gpu=True)
    parser.set_defaults(cluster="")  # works in this process, on one GPU
    parser.add_argument("--subset", type=Path, required=True, help="subset.h5ad")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--umap", type=Path, required=True, help="umap.h5ad to write")
    for section in (Neighbors, UMAP, Leiden):
        add_options(parser, section)
    args = parser.parse_args(argv)
    neighbors = from_options(args, Neighbors)
    umap = from_options(args, UMAP)
    leiden = from_options(args, Leiden)
    with script.run_script(args, outputs=[args.umap]) as facts:
        adata = ad.read_h5ad(args.subset)
        cells = adata.obsm["X_pca"]
        # All three work where the components are, and say so where a library for that is missing.
        adata.obsm["X_pca"] = on_backend(cells)
        find_neighbors(
            adata,
            neighbors.n_neighbors,
            neighbors.n_pcs,
            use_rep="X_pca",
            random_state=args.seed,
        )
        logger.info("neighbours found; UMAP next")
        draw(adata, min_dist=umap.min_dist, random_state=args.seed)
        logger.info("UMAP drawn; Leiden next")
        find_clusters(
            adata,
            leiden.resolution,
            random_state=args.seed,
            flavor="igraph",
            n_iterations=2,
            directed=False,
        )
        adata.obsm["X_pca"] = cells
        with atomic_path(args.umap) as path:
            write_h5ad(path, adata)
        n_clusters = adata.obs["leiden"].nunique()
        logger.info("%d clusters of %s cells", n_clusters, f"{adata.n_obs:,}")
        facts |= {"n_cells": adata.n_obs, "n_clusters": n_clusters}


if __name__ == "__main__":
    script.run_main(main)
