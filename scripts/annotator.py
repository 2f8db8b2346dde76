"""Make classifiers of types: of labelled cells, a CellTypist model, marker genes, or an atlas."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import pandas as pd

from scatlas.errors import InputError
from scatlas.io import open_tables, read_annotator, read_cells, read_matrix, write_annotator
from scatlas.io.products.celltypist_models import convert_celltypist
from scatlas.matrix.train_annotator import train
from scatlas.workflow import script
from scatlas.workflow.annotation import check_columns, read_marker_lists
from scatlas.workflow.config.cli_options import add_sections, read_section
from scatlas.workflow.config.sections import Annotate

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
            elif Path(str(options.model)).suffix == ".pkl":
                convert_celltypist(Path(str(options.model)), path)
            else:
                write_annotator(path, read_annotator(Path(str(options.model))))
            annotator = read_annotator(path)
            sizes = {"n_labels": annotator.labels.size, "n_genes": annotator.genes.size}
            facts[source] = {**sizes, "record": annotator.record}


def learned(options: Annotate, args: argparse.Namespace) -> Annotator:
    """A classifier of the labelled cells of a file, or of the plates."""
    *coarser, finest = options.label
    wanted = options.columns_of_cells
    if options.reference:
        x, var = read_matrix(options.reference, **script.block_sizes(args))
        obs, source = columns_of(Path(options.reference), options), f"{options.reference}: X"
    else:
        x, var, obs = cells_of_plates(args, wanted)
        source = "the plates"
    groups = options.groups or ("plate" if args.stores else None)
    table = {name: pd.Categorical(obs[name].astype(object)) for name in {*wanted, groups} if name}
    return train(
        x,
        var.index,
        table[finest],
        groups=table.get(groups),
        coarser={name: table[name] for name in coarser},
        ontology_ids=table.get(options.ontology),
        random_state=args.seed,
        source=source,
    )


def columns_of(path: Path, options: Annotate) -> pd.DataFrame:
    """Columns of obs of the labelled cells."""
    with open_tables(path) as (obs, _):
        check_columns(str(path), options, list(obs.columns))
        return obs.read(options.columns_of_cells, index=False)


def cells_of_plates(
    args: argparse.Namespace, wanted: list[str]
) -> tuple[Any, pd.DataFrame, pd.DataFrame]:
    """Counts and obs of the plates with labels; cells that were not kept have none."""
    kept, parts, tables, var = script.plate_paths(args.qc), [], [], pd.DataFrame()
    for plate, store in script.plate_paths(args.stores).items():
        constants = {"plate": plate, **{k: v for k, v in args.labels.get(plate, {}).items() if v}}
        with open_tables(store) as (obs, _):
            own = [name for name in wanted if name not in constants]
            if any(name not in obs.columns for name in own):
                continue  # a plate without labels
            table = obs.read(own, index=False) if own else pd.DataFrame(index=range(obs.n_rows))
        table = table.assign(**constants).astype(object).reset_index(drop=True)
        table[~read_cells(kept[plate], ["keep"])["keep"].to_numpy()] = np.nan
        x, own_var = read_matrix(store, compact=True, **script.block_sizes(args))
        if parts and not own_var.index.equals(var.index):
            raise InputError(
                f"annotate: plate {plate} has other genes, or another order of them, than the "
                "labelled plates before it: write labelled cells into one file, and name it as "
                "annotate.reference"
            )
        parts, tables, var = [*parts, x], [*tables, table], own_var
    if not parts:
        raise InputError(
            f"annotate: no plate has {', '.join(wanted)} in obs or in the plate sheet: correct "
            "annotate.label, or name labelled cells as annotate.reference"
        )
    return da.concatenate(parts), var, pd.concat(tables, ignore_index=True)


if __name__ == "__main__":
    script.run_main(main)
