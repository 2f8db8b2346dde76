"""Put the plates' sums by group together, in the order of the plate sheet: one h5ad."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from scatlas.columns import GeneRule
from scatlas.io import merge_sums
from scatlas.workflow import script


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument(
        "--sums", nargs="+", required=True, metavar="PLATE=PATH", help="pseudobulk.zarr of each"
    )
    parser.add_argument("--genes", choices=get_args(GeneRule), default="same")
    script.add_labels(parser)
    parser.add_argument("--pseudobulk", type=Path, required=True, help="pseudobulk.h5ad to write")
    args = parser.parse_args(argv)
    with script.recorded_run(args, outputs=[args.pseudobulk]) as facts:
        facts |= merge_sums(
            script.plate_paths(args.sums),
            args.pseudobulk,
            labels=args.labels,
            genes=args.genes,
            block_budget=script.block_budget(args),
        )


if __name__ == "__main__":
    script.run_main(main)
