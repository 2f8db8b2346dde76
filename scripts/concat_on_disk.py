"""Merge the plates on disk, in the order of the plate sheet, in bounded memory."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from scatlas.columns import GeneRule
from scatlas.io import concat_on_disk
from scatlas.workflow import script


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument(
        "--selected", nargs="+", required=True, metavar="PLATE=PATH", help="selected.zarr of each"
    )
    parser.add_argument("--merged", type=Path, required=True, help="merged.zarr to write")
    script.add_labels(parser)
    parser.add_argument("--genes", choices=get_args(GeneRule), default="same")
    args = parser.parse_args(argv)
    with script.recorded_run(args, outputs=[args.merged]) as facts:
        facts |= concat_on_disk(
            script.plate_paths(args.selected),
            args.merged,
            label="plate",
            labels=args.labels,
            genes=args.genes,
            block_budget=script.block_budget(args),
        )


if __name__ == "__main__":
    script.run_main(main, blocks=False)
