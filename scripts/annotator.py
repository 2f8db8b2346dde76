"""Make classifiers of types: of labelled cells, a CellTypist model, marker genes, or an atlas."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from scatlas.io import read_annotator, read_matrix, write_annotator
from scatlas.io.products.celltypist_models import read_model
from scatlas.matrix.train_annotator import train
from scatlas.workflow import script
from scatlas.workflow.annotation import read_marker_lists
from scatlas.workflow.config.cli_options import add_sections, read_section
from scatlas.workflow.config.sections import Annotate
from scatlas.workflow.labelled_cells import cells_of_plates, columns_of_file, types_in

if TYPE_CHECKING:
    from scatlas.io.products.annotators import Annotator


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    for option, file in (("stores", "counts.zarr"), ("qc", "qc.parquet")):
        parser.add_argument(
            f"--{option}", nargs="+", default=[], metavar="PLATE=PATH", help=f"{file} of each plate"
        )
    script.add_labels(parser)
    parser.add_argument("--stored", type=Path, help="folder of the classifiers of an atlas")
    add_sections(parser, annotate=Annotate)
    parser.add_argument(
        "--seed", type=int, default=0, help="random seed of the cells to learn from"
    )
    parser.add_argument(
        "--annotators",
        nargs="+",
        required=True,
        metavar="SOURCE=PATH",
        help="h5ad to write of reference (labelled cells), model and markers",
    )
    args = parser.parse_args(argv)
    paths = script.plate_paths(args.annotators)
    options = Annotate(model="-") if args.stored else read_section(args, "annotate", Annotate)
    with script.recorded_run(args, outputs=[*paths.values()]) as facts:
        for source, path in paths.items():
            if args.stored:
                write_annotator(path, read_annotator(args.stored / f"{source}.h5ad"))
            elif source == "reference":
                write_annotator(path, learned(options, args))
            elif source == "markers":
                write_annotator(path, read_marker_lists(Path(str(options.markers))))
            else:
                write_annotator(path, read_model(Path(str(options.model))))
            annotator = read_annotator(path)
            sizes = {"n_labels": annotator.labels.size, "n_genes": annotator.genes.size}
            facts[source] = {**sizes, "record": annotator.record}


def learned(options: Annotate, args: argparse.Namespace) -> Annotator:
    """A classifier of the labelled cells of a file, or of the plates."""
    if options.reference:
        x, var = read_matrix(options.reference, **script.block_sizes(args))
        obs, source = columns_of_file(options.reference, options), options.reference
        names, shared = var.index, None
    else:
        stores, kept = script.plate_paths(args.stores), script.plate_paths(args.qc)
        sizes = script.block_sizes(args)
        x, names, shared, obs = cells_of_plates(stores, kept, args.labels, options, **sizes)
        source = "the plates"
    groups = options.groups or ("plate" if args.stores else None)
    return train(
        x,
        names,
        **types_in(obs, options),
        groups=pd.Categorical(obs[groups].astype(object)) if groups else None,
        shared=shared,
        random_state=args.seed,
        source=source,
    )


if __name__ == "__main__":
    script.run_main(main)
