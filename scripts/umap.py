"""Draw the UMAP of the sampled cells."""

from __future__ import annotations

from pathlib import Path

from scatlas.get import on_backend
from scatlas.io.products.embeddings import write_parts
from scatlas.tl import umap as draw
from scatlas.workflow import script
from scatlas.workflow.config.atlas_sections import UMAP
from scatlas.workflow.config.cli_options import add_sections, read_section
from scatlas.workflow.sample import cells_with_graph, components_of_sample


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__, gpu=True)
    parser.set_defaults(cluster="")  # works in this process, on one GPU
    parser.add_argument("--subset", type=Path, required=True, help="subset.zarr")
    parser.add_argument(
        "--components", type=Path, required=True, help="pca.zarr, or harmony.zarr of mixed cells"
    )
    parser.add_argument("--neighbors", type=Path, required=True, help="neighbors.zarr")
    parser.add_argument("--basis", default="X_pca", help="components of the cells in obsm")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--umap", type=Path, required=True, help="umap.zarr to write")
    add_sections(parser, umap=UMAP)
    args = parser.parse_args(argv)
    options = read_section(args, "umap", UMAP)
    with script.recorded_run(args, outputs=[args.umap]) as facts:
        cells = cells_with_graph(args.neighbors)
        # It works where the components are.
        cells.obsm["X_pca"] = on_backend(
            components_of_sample(args.subset, args.components, args.basis)
        )
        draw(cells, min_dist=options.min_dist, random_state=args.seed)
        of_umap = {"X_umap": cells.obsm["X_umap"]}
        write_parts(args.umap, obsm=of_umap, uns={"umap": cells.uns["umap"]})
        facts |= {"n_cells": cells.n_obs}


if __name__ == "__main__":
    script.run_main(main)
