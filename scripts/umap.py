"""Draw the UMAP of the sampled cells."""

from __future__ import annotations

from pathlib import Path

from scatlas.get import on_backend
from scatlas.io import atomic_path
from scatlas.tl import umap as draw
from scatlas.workflow import script
from scatlas.workflow.config.atlas_sections import UMAP
from scatlas.workflow.config.cli_options import add_sections, read_section
from scatlas.workflow.sample import add_graph, read_sample, write_part


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__, gpu=True)
    parser.set_defaults(cluster="")  # works in this process, on one GPU
    parser.add_argument("--subset", type=Path, required=True, help="subset.h5ad")
    parser.add_argument("--neighbors", type=Path, required=True, help="neighbors.h5ad")
    parser.add_argument("--basis", default="X_pca", help="components of the cells in obsm")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--umap", type=Path, required=True, help="h5ad to write")
    add_sections(parser, umap=UMAP)
    args = parser.parse_args(argv)
    options = read_section(args, "umap", UMAP)
    with script.recorded_run(args, outputs=[args.umap]) as facts:
        cells = read_sample(args.subset, basis=args.basis)
        add_graph(cells, args.neighbors)
        # It works where the components are.
        cells.obsm["X_pca"] = on_backend(cells.obsm["X_pca"])
        draw(cells, min_dist=options.min_dist, random_state=args.seed)
        del cells.obsm["X_pca"], cells.obsp["connectivities"], cells.uns["neighbors"]
        with atomic_path(args.umap) as path:
            write_part(path, cells, args.subset)
        facts |= {"n_cells": cells.n_obs}


if __name__ == "__main__":
    script.run_main(main)
