"""Cluster the sampled cells."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from scatlas.get import on_backend
from scatlas.io.products.embeddings import write_parts
from scatlas.tl import leiden as find_clusters
from scatlas.workflow import script
from scatlas.workflow.config.atlas_sections import Leiden
from scatlas.workflow.config.cli_options import add_sections, read_section
from scatlas.workflow.sample import cells_with_graph, number_by_size
from scatlas.workflow.sizes import IGRAPH_CELLS

logger = logging.getLogger("scatlas")


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__, gpu=True)
    parser.set_defaults(cluster="")  # works in this process, on one GPU
    parser.add_argument("--neighbors", type=Path, required=True, help="neighbors.zarr")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--leiden", type=Path, required=True, help="leiden.zarr to write")
    add_sections(parser, leiden=Leiden)
    args = parser.parse_args(argv)
    options = read_section(args, "leiden", Leiden)
    with script.recorded_run(args, outputs=[args.leiden]) as facts:
        cells = cells_with_graph(args.neighbors)
        # It works where the components are, and needs none of them.
        cells.obsm["X_pca"] = on_backend(np.empty((cells.n_obs, 0), np.float32))
        find_clusters(
            cells,
            options.resolution,
            random_state=args.seed,
            flavor="igraph" if cells.n_obs <= IGRAPH_CELLS else "rounds",
            n_iterations=2,
            directed=False,
        )
        number_by_size(cells.obs, "leiden")
        clusters = cells.obs["leiden"].array
        write_parts(args.leiden, obs={"leiden": clusters}, uns={"leiden": cells.uns["leiden"]})
        n_clusters = clusters.categories.size
        logger.info("%d clusters of %s cells", n_clusters, f"{cells.n_obs:,}")
        facts |= {"n_cells": cells.n_obs, "n_clusters": n_clusters}


if __name__ == "__main__":
    script.run_main(main)
