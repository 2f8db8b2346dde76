"""Compare the shares of clusters, and of types, in each condition and in the control."""

from __future__ import annotations

from pathlib import Path

from scatlas.io import open_tables
from scatlas.workflow import script
from scatlas.workflow.conditions import shares
from scatlas.workflow.config.cli_options import add_sections, read_section
from scatlas.workflow.config.sections import Effects
from scatlas.workflow.labels import BY, Labels


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--cells", type=Path, required=True, help="atlas.zarr, or umap.h5ad")
    parser.add_argument("--labels", type=Path, help="labels.zarr, if cells have labels")
    parser.add_argument("--table", type=Path, required=True, help="composition.tsv to write")
    add_sections(parser, effects=Effects)
    args = parser.parse_args(argv)
    wanted = read_section(args, "effects", Effects)
    with script.recorded_run(args, outputs=[args.table]) as facts:
        with open_tables(args.cells) as (obs, _):
            by = [name for name in Labels.open(args.labels).columns if obs.columns[name].is_text]
            n_cells = obs.n_rows
        by = [BY, *(name for name in by if name != wanted.condition)]
        table = shares(args.cells, wanted, by)
        script.write_table(args.table, table)
        facts |= {"n_cells": n_cells, "by": by, "n_tested": int(table["p_value"].notna().sum())}


if __name__ == "__main__":
    script.run_main(main)
