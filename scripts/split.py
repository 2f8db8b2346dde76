"""Divide one file of many samples into one store per sample, for `load`."""

from __future__ import annotations

import json
from pathlib import Path

from scatlas.io import list_samples, split_samples
from scatlas.io.files.cell_files import ListColumns
from scatlas.workflow import script
from scatlas.workflow.config.loading import plate_names


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--source", required=True, help="h5ad or Zarr store of all samples")
    parser.add_argument("--by", required=True, help="obs column that names the samples")
    parser.add_argument("--counts", default="X", help="where the counts are: X, raw, layers/NAME")
    parser.add_argument(
        "--lists", type=json.loads, default={}, metavar="JSON", help="genes and marker of Parquet"
    )
    parser.add_argument(
        "--folder", type=Path, required=True, help="folder for {plate}.zarr of each sample"
    )
    args = parser.parse_args(argv)
    with script.recorded_run(args, outputs=[]) as facts:
        names = plate_names(list_samples(args.source, args.by), args.source)
        stores = {sample: args.folder / f"{name}.zarr" for sample, name in names.items()}
        facts |= split_samples(
            args.source,
            stores,
            by=args.by,
            counts_in=args.counts,
            lists=ListColumns(**args.lists),
            block_budget=script.block_budget(args),
        )


if __name__ == "__main__":
    script.run_main(main)
