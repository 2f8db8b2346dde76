"""Count the cells of one plate by pixel of the map, and sum its genes, for explore.html."""

from __future__ import annotations

from pathlib import Path

from scatlas.errors import prefix_errors
from scatlas.workflow import script
from scatlas.workflow.config.cli_options import add_sections, read_section
from scatlas.workflow.config.sections import ExploreContent
from scatlas.workflow.explore import MapCells, choose, count_plate, write_pixels


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--plate", required=True, help="name of the plate")
    parser.add_argument("--cells", type=Path, required=True, help="atlas.zarr, or umap.h5ad")
    parser.add_argument("--umap", type=Path, required=True, help="umap.h5ad, the sample")
    parser.add_argument("--markers", type=Path, help="markers.tsv, if there are marker genes")
    parser.add_argument("--pixels", type=Path, required=True, help="HDF5 file to write")
    add_sections(parser, explore=ExploreContent)
    args = parser.parse_args(argv)
    with (
        script.recorded_run(args, outputs=[args.pixels]) as facts,
        prefix_errors(f"plate {args.plate}"),
    ):
        cells, sample = MapCells(args.cells), MapCells(args.umap)
        content = read_section(args, "explore", ExploreContent)
        columns, genes = choose(cells, sample, content, args.markers)
        rows = cells.rows_of(args.plate)
        sizes = script.block_sizes(args)
        found = count_plate(cells, rows, sample, columns, genes, **sizes)
        write_pixels(args.pixels, found)
        facts |= {"plate": args.plate, "n_cells": found.n_cells}


if __name__ == "__main__":
    script.run_main(main)
