"""Build the page that opens by a double click: the map of all cells, and the sample as points."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from scatlas.columns import GeneRule
from scatlas.matrix.measured_genes import MeasuredGenes
from scatlas.workflow import script
from scatlas.workflow.config.cli_options import add_sections, read_section
from scatlas.workflow.config.sections import Explore
from scatlas.workflow.explore import MapCells, build, choose, count_pixels
from scatlas.workflow.labels import Labels


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--cells", type=Path, required=True, help="atlas.zarr, or umap.h5ad")
    parser.add_argument("--umap", type=Path, required=True, help="umap.h5ad, the sample")
    parser.add_argument("--integrated", type=Path, help="integrated.h5ad, if there is one")
    parser.add_argument("--markers", type=Path, help="markers.tsv, if there are marker genes")
    for option, file in (("stores", "counts.zarr"), ("size-factors", "size_factors.parquet")):
        parser.add_argument(
            f"--{option}",
            nargs="+",
            default=[],
            metavar="PLATE=PATH",
            help=f"{file} of each plate, in the order of the atlas, for genes that it lacks",
        )
    parser.add_argument("--genes", choices=get_args(GeneRule), default="same")
    parser.add_argument("--gene-names", help="column of var with the symbols of the genes")
    parser.add_argument("--labels", type=Path, help="labels.zarr, if cells have labels")
    parser.add_argument("--effects", type=Path, help="effects.h5ad, if there is one")
    parser.add_argument("--html", type=Path, required=True, help="explore.html to write")
    add_sections(parser, explore=Explore)
    args = parser.parse_args(argv)
    wanted = read_section(args, "explore", Explore)
    with script.recorded_run(args, outputs=[args.html]) as facts:
        cells, sample = MapCells(args.cells), MapCells(args.umap)
        measured = None
        if args.stores:
            paths = (script.plate_paths(part) for part in (args.stores, args.size_factors))
            measured = MeasuredGenes(*paths, args.genes, args.gene_names)
        first = Labels.open(args.labels).columns
        columns, genes = choose(cells, sample, wanted, args.markers, measured, first)
        facts |= build(
            args.html,
            count_pixels(cells, sample, columns),
            cells,
            sample,
            mixed=MapCells(args.integrated) if args.integrated else None,
            columns=columns,
            genes=genes,
            markers=args.markers,
            n_points=wanted.points,
            max_bytes=int(wanted.max_mb * 1e6),
            measured=measured,
            effects=args.effects,
            **script.block_sizes(args),
        )


if __name__ == "__main__":
    script.run_main(main)
