"""Find the neighbours of the sampled cells."""

from __future__ import annotations

from pathlib import Path

from scatlas.get import on_backend
from scatlas.io.products.embeddings import write_parts
from scatlas.pp import neighbors as find_neighbors
from scatlas.workflow import script
from scatlas.workflow.config.atlas_sections import Neighbors
from scatlas.workflow.config.cli_options import add_sections, read_section
from scatlas.workflow.sample import SampledCells, components_of_sample


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__, gpu=True)
    parser.set_defaults(cluster="")  # works in this process, on one GPU
    parser.add_argument("--subset", type=Path, required=True, help="subset.zarr")
    parser.add_argument(
        "--components", type=Path, required=True, help="pca.zarr, or harmony.zarr of mixed cells"
    )
    parser.add_argument("--basis", default="X_pca", help="components of the cells in obsm")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--neighbors", type=Path, required=True, help="neighbors.zarr to write")
    add_sections(parser, neighbors=Neighbors)
    args = parser.parse_args(argv)
    options = read_section(args, "neighbors", Neighbors)
    with script.recorded_run(args, outputs=[args.neighbors]) as facts:
        x = components_of_sample(args.subset, args.components, args.basis)
        cells = SampledCells(len(x), obsm={"X_pca": on_backend(x)})
        find_neighbors(
            cells, options.n_neighbors, options.n_pcs, use_rep="X_pca", random_state=args.seed
        )
        params = cells.uns["neighbors"]["params"]
        params["use_rep"] = args.basis
        if args.basis == "X_pca":
            # As of the components of X: scanpy's ingest projects X, and does not look for X_pca.
            del params["use_rep"]
        params["n_pcs"] = options.n_pcs or x.shape[1]
        write_parts(args.neighbors, obsp=cells.obsp, uns=cells.uns)
        facts |= {"n_cells": cells.n_obs}


if __name__ == "__main__":
    script.run_main(main)
