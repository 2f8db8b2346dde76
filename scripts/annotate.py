"""Give each kept cell of one plate its type, in one pass over its counts for each classifier."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from scatlas.columns import known_names
from scatlas.errors import prefix_errors
from scatlas.io import read_annotator, read_cells, read_matrix
from scatlas.io.files.atomic import atomic_path
from scatlas.matrix.annotate import annotate_values
from scatlas.matrix.marker_lists import list_scores
from scatlas.workflow import script
from scatlas.workflow.annotation import table_of_answers, table_of_scores


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--plate", required=True, help="name of the plate")
    parser.add_argument("--store", type=Path, required=True, help="the plate's counts.zarr")
    parser.add_argument("--qc", type=Path, required=True, help="the plate's qc.parquet")
    parser.add_argument(
        "--annotators", nargs="+", required=True, metavar="SOURCE=PATH", help="classifiers (h5ad)"
    )
    parser.add_argument("--table", type=Path, required=True, help="annotation.parquet to write")
    args = parser.parse_args(argv)
    with (
        script.recorded_run(args, outputs=[args.table]) as facts,
        prefix_errors(f"plate {args.plate}"),
    ):
        keep = read_cells(args.qc, ["keep"])["keep"].to_numpy()
        x, var = read_matrix(args.store, compact=True, **script.block_sizes(args))
        columns, facts["unknown"] = {}, {}
        for source, path in script.plate_paths(args.annotators).items():
            annotator = read_annotator(path)
            names = known_names(var, pd.Index(annotator.genes))
            if annotator.link == "lists":
                scores = list_scores(x, names, annotator, keep=keep, source=str(args.store))
                columns |= table_of_scores(scores, source)
                continue
            answers = annotate_values(x, names, annotator, keep=keep, source=str(args.store))
            columns |= table_of_answers(answers, source)
            facts["unknown"][source] = float((answers.codes < 0).mean()) if keep.any() else None
        facts |= {"plate": args.plate, "n_cells": int(keep.sum())}
        with atomic_path(args.table) as path:
            pd.DataFrame(columns).to_parquet(path, index=False)


if __name__ == "__main__":
    script.run_main(main)
