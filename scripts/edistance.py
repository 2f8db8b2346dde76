"""Measure how far the cells of each condition are from those of the control, in components."""

from __future__ import annotations

from pathlib import Path

from scatlas.workflow import script
from scatlas.workflow.conditions import distances
from scatlas.workflow.config.cli_options import add_sections, read_section
from scatlas.workflow.config.sections import Effects


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--cells", type=Path, required=True, help="atlas with obsm['X_pca']")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--table", type=Path, required=True, help="edistance.tsv to write")
    add_sections(parser, effects=Effects)
    args = parser.parse_args(argv)
    wanted = read_section(args, "effects", Effects)
    with script.recorded_run(args, outputs=[args.table]) as facts:
        table = distances(args.cells, wanted, seed=args.seed)
        script.write_table(args.table, table)
        facts |= {"n_conditions": len(table), "n_without": int(table["edistance"].isna().sum())}


if __name__ == "__main__":
    script.run_main(main)
