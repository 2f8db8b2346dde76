"""Join the user's names, and the types of the cells, with the cells of the atlas: obs columns."""

from __future__ import annotations

import argparse
import json
import logging
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from scatlas.errors import InputError
from scatlas.io.files.local_zarr import open_store
from scatlas.io.products.embeddings import write_parts
from scatlas.workflow import script
from scatlas.workflow.annotation import join_annotations
from scatlas.workflow.labels import Clusters, LabelTable, read_tables, rows_of_cells, values_of
from scatlas.workflow.sample import read_column

if TYPE_CHECKING:
    from collections.abc import Iterable

# obs columns of types with which the report and the explorer do not begin.
NOT_FIRST = ("_probability", "_runner_up", "_ontology_term_id", "_vote")

logger = logging.getLogger("scatlas")


def options() -> argparse.ArgumentParser:
    """Parser of the script's options."""
    parser = script.parser(__doc__)
    parser.add_argument("--tables", type=Path, nargs="*", default=[], help="tables of the user")
    parser.add_argument(
        "--annotations", nargs="+", metavar="PLATE=PATH", help="annotation.parquet of each plate"
    )
    parser.add_argument(
        "--annotators", nargs="+", metavar="SOURCE=PATH", help="classifiers, with --annotations"
    )
    parser.add_argument("--key", default="cell_type", help="obs column of the types")
    parser.add_argument(
        "--compared", nargs="*", default=[], metavar="COLUMN", help="own labels of the cells"
    )
    parser.add_argument("--out", type=Path, help="folder for the tables of types")
    parser.add_argument("--merged", type=Path, required=True, help="merged.zarr")
    parser.add_argument("--concat", type=Path, required=True, help="manifest of concat_on_disk")
    parser.add_argument("--map", type=Path, help="map.zarr, if all cells were mapped")
    parser.add_argument("--subset", type=Path, required=True, help="subset.zarr")
    parser.add_argument("--leiden", type=Path, required=True, help="leiden.zarr of the step")
    parser.add_argument("--labels", type=Path, required=True, help="labels.zarr to write")
    return parser


def main(argv: list[str] | None = None) -> None:
    args = options().parse_args(argv)
    outputs = [args.labels]
    with script.recorded_run(args, outputs=outputs) as facts:
        tables = read_tables(args.tables)
        there = open_store(args.merged)["obs"].attrs["column-order"]
        plates = json.loads(args.concat.read_text("utf-8"))["plates"]
        ends = np.cumsum([0, *(plate["n_cells"] for plate in plates.values())]).tolist()
        clusters = Clusters.read(args.map, args.subset, args.leiden)
        values, names, problems, minor = {}, {}, [], []
        for table in tables:
            problem = clusters.problem_of(table) if table.is_of_clusters else None
            problems += [problem] if problem else []
            rows = np.full(ends[-1], -1) if problem else rows_in(table, clusters, args.merged)
            for name in table.columns:
                if name in there:
                    raise InputError(
                        f"{table.path}: the cells have an obs column {name!r} already: rename that "
                        f"of the table, for example to {name}_label"
                    )
                labels = values_of(table.rows[name] if not problem else table.rows[name].str[:0])
                values[name] = pd.api.extensions.take(labels, rows, allow_fill=True)
            if table.is_of_clusters and not problem:
                names |= {} if names else dict(table.rows[table.columns[0]])
        if args.annotations:
            compared = [name for name in args.compared if name in there]
            own = {name: pd.Series(read_column(args.merged, name)) for name in compared}
            sources = script.plate_paths(args.annotations), script.plate_paths(args.annotators)
            types, written = join_annotations(*sources, args.key, clusters, own)
            minor += [name for name in types if name.endswith(NOT_FIRST)]
            refuse_taken(types, there, values)
            values |= types
            for name, found in written.items():
                outputs.append(args.out / f"{name}.tsv")
                script.write_table(outputs[-1], found)
        facts |= {
            "columns": [
                name
                for name, column in values.items()
                if name not in minor and pd.notna(column).any()
            ],
            "names": names,
            "rows": dict(zip(plates, pairwise(ends), strict=True)),
        }
        write_parts(args.labels, obs=values, attributes={"labels": dict(facts)})
        facts["not_used"] = problems


def refuse_taken(types: Iterable[str], there: list[str], named: Iterable[str]) -> None:
    """Refuse columns of types that the cells or the user's tables have already."""
    for name in types:
        if name in there:
            raise InputError(
                f"annotate.key: the cells have an obs column {name!r} already: give another key, "
                "for example predicted_type"
            )
        if name in named:
            raise InputError(
                f"annotate.key: a table of labels has a column {name!r}, too: give another key, "
                "or rename the column"
            )


def rows_in(table: LabelTable, clusters: Clusters, merged: Path) -> np.ndarray:
    """Row of each cell of the atlas in a table, -1 for none."""
    if not table.is_of_clusters:
        return rows_of_cells(table, merged)
    of_cluster = np.append(table.rows.index.get_indexer(clusters.names), -1)
    return of_cluster[clusters.of_cells(open_store(merged)["X"].attrs["shape"][0])]


if __name__ == "__main__":
    script.run_main(main)
